"""NVIDIA GPUs: what they are, what they read, and their clock.

Energy, temperature and clocks go through zeus, which also knows how to ask its daemon (zeusd) for
what needs privileges; the rest through NVML. zeus' own list of devices is not used: it cannot read
every form of `CUDA_VISIBLE_DEVICES`; its objects for single GPUs take the driver's numbers. They
are slow to import, so that waits until there is a GPU.

A reading that a GPU does not have raises `MissingReadingError`; none is ever replaced by 0.
"""

import functools
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import pynvml
from zeus.exception import ZeusBaseError

from kareus.device.visible import ORDER_VARIABLE, VISIBLE_VARIABLE, DeviceIdentity, select_visible
from kareus.errors import DeviceError

if TYPE_CHECKING:
    from zeus.utils.zeusd import ZeusdClient, ZeusdConfig

P = ParamSpec("P")
T = TypeVar("T")

LOCK_REMEDY = (
    "run as root, give the process the capability SYS_ADMIN "
    "(docker run --cap-add SYS_ADMIN), or start zeusd as root and set ZEUSD_SOCK_PATH"
)

_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x200: "board_limit",
    0x400: "reliability",
}
_USER_CLOCKS = 0x02


class MissingReadingError(DeviceError):
    """A GPU does not offer a reading."""


class ClockPermissionError(DeviceError):
    """This process may not set clocks."""


def _reading(
    what: str,
) -> Callable[[Callable[Concatenate["Device", P], T]], Callable[Concatenate["Device", P], T]]:
    """Turn the errors of NVML and zeus into ours, naming GPU and reading."""

    def decorate(
        method: Callable[Concatenate["Device", P], T],
    ) -> Callable[Concatenate["Device", P], T]:
        @functools.wraps(method)
        def wrapped(self: "Device", /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except DeviceError:
                raise
            except (pynvml.NVMLError, ZeusBaseError, OSError) as error:
                raise _translate(error, f"GPU {self.index} ({self.name}): {what}") from error

        return wrapped

    return decorate


class Device:
    """One whole GPU.

    Args:
        identity: What names it.
        daemon: A connection to zeusd, which sets clocks where this process may not; None without.
    """

    def __init__(self, identity: DeviceIdentity, daemon: "ZeusdClient | None" = None) -> None:
        from zeus.device.gpu.nvidia import NVIDIAGPU, ZeusdNVIDIAGPU

        self.identity = identity
        try:
            self._gpu: NVIDIAGPU = (
                NVIDIAGPU(identity.index)
                if daemon is None
                else ZeusdNVIDIAGPU(identity.index, daemon)
            )
        except (pynvml.NVMLError, ZeusBaseError) as error:
            raise _translate(error, f"GPU {identity.index} ({identity.name}): open") from error
        # Its warning about privileges would stand beside our error about them.
        self._gpu._disable_sys_admin_warning = True
        self._handle = self._gpu.handle

    @property
    def index(self) -> int:
        """Its number for the driver."""
        return self.identity.index

    @property
    def uuid(self) -> str:
        """Its unique name."""
        return self.identity.uuid

    @property
    def name(self) -> str:
        """Its model."""
        return self.identity.name

    @_reading("supported clocks")
    def supported_clocks_mhz(self) -> tuple[int, ...]:
        """Return the SM clocks it can be locked to at its highest memory clock, ascending."""
        memory_mhz = max(self._gpu.get_supported_memory_clocks())
        return tuple(sorted(set(self._gpu.get_supported_graphics_clocks(memory_mhz))))

    @_reading("SM clock")
    def clock_mhz(self) -> int:
        """Return the SM clock of this moment in MHz."""
        return int(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))

    @_reading("lock its clock")
    def lock_clock(self, clock_mhz: int) -> None:
        """Lock the SM clock; it outlives this process until it is reset.

        Use `kareus.device.clocks`, which sees to that.

        Raises:
            ClockPermissionError: This process may not, and there is no daemon that may.
        """
        self._gpu.set_gpu_locked_clocks(clock_mhz, clock_mhz)

    @_reading("reset its clock")
    def reset_clock(self) -> None:
        """Give the SM clock back to the GPU.

        Raises:
            ClockPermissionError: This process may not, and there is no daemon that may.
        """
        self._gpu.reset_gpu_locked_clocks()

    @_reading("energy counter")
    def energy_j(self) -> float:
        """Return the counter of its total energy in joules (GPU and memory).

        Raises:
            MissingReadingError: It has none (before Volta).
        """
        if not self._gpu.supports_get_total_energy_consumption():
            raise MissingReadingError(
                f"GPU {self.index} ({self.name}): it has no energy counter; "
                "energy is then integrated from sampled power"
            )
        return float(self._gpu.get_total_energy_consumption()) / 1e3

    @_reading("power")
    def power_w(self) -> float:
        """Return the power drawn at this moment in watts."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return float(self._gpu.get_instant_power_usage()) / 1e3
        except (ZeusBaseError, pynvml.NVMLError):
            # Before Ampere there is only this one.
            return float(pynvml.nvmlDeviceGetPowerUsage(self._handle)) / 1e3

    @_reading("power limit")
    def power_limit_w(self) -> float:
        """Return the limit in force on its power, in watts."""
        return float(pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle)) / 1e3

    @_reading("temperature")
    def temperature_c(self) -> float:
        """Return its temperature in degrees Celsius."""
        try:
            return float(self._gpu.get_gpu_temperature())
        except (ZeusBaseError, pynvml.NVMLError):
            # Drivers before 570 do not have the new call.
            sensor = pynvml.NVML_TEMPERATURE_GPU
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return float(pynvml.nvmlDeviceGetTemperature(self._handle, sensor))

    @_reading("reasons of its clock")
    def throttle_reasons(self) -> tuple[str, ...]:
        """Return what keeps its clock below what was asked for; empty if nothing does."""
        reasons = self._clock_reasons()
        return tuple(name for bit, name in _REASONS.items() if reasons & bit)

    @_reading("reasons of its clock")
    def limited_by_user(self) -> bool:
        """Return whether somebody's setting (a locked clock) limits its clock."""
        return bool(self._clock_reasons() & _USER_CLOCKS)

    def _clock_reasons(self) -> int:
        try:
            return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except pynvml.NVMLError_FunctionNotFound:
            # Drivers before 535 know it by its old name.
            return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    @_reading("MIG mode")
    def mig_enabled(self) -> bool:
        """Return whether it is divided into instances (MIG)."""
        try:
            return bool(pynvml.nvmlDeviceGetMigMode(self._handle)[0])
        except pynvml.NVMLError_NotSupported:
            return False

    @_reading("persistence mode")
    def persistent(self) -> bool:
        """Return whether the driver keeps it initialised without a process on it."""
        return bool(pynvml.nvmlDeviceGetPersistenceMode(self._handle))

    @_reading("processes")
    def compute_processes(self) -> tuple[int, ...]:
        """Return the numbers of the processes that compute on it, as the driver sees them."""
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return tuple(int(process.pid) for process in running)


def find_devices() -> tuple[Device, ...]:
    """Return every GPU of this machine in the order of the driver.

    Raises:
        DeviceError: There is no driver, or zeusd was named and does not serve.
    """
    return _open(_identities())


def visible_devices(environment: dict[str, str] | None = None) -> tuple[Device, ...]:
    """Return the GPUs that CUDA shows to a process, in CUDA's order.

    Args:
        environment: The process' environment; None for this one's.

    Raises:
        DeviceError: There is no GPU, or `CUDA_VISIBLE_DEVICES` cannot be mapped to whole GPUs.
    """
    variables = os.environ if environment is None else environment
    identities = _identities()
    if not identities:
        raise DeviceError(
            "the NVIDIA driver knows no GPU: check nvidia-smi, or use --source simulator"
        )
    return _open(
        select_visible(
            variables.get(VISIBLE_VARIABLE), identities, order=variables.get(ORDER_VARIABLE)
        )
    )


def device_by_uuid(uuid: str) -> Device:
    """Return the GPU of a unique name.

    Raises:
        DeviceError: This machine has no such GPU.
    """
    for identity in _identities():
        if identity.uuid == uuid:
            return _open([identity])[0]
    raise DeviceError(f"GPU {uuid} is not there any more: check nvidia-smi -L")


def driver_version() -> str:
    """Return the version of the driver.

    Raises:
        DeviceError: There is no driver.
    """
    _initialise()
    return str(pynvml.nvmlSystemGetDriverVersion())


def uses_daemon() -> bool:
    """Return whether clocks are set through zeusd (`ZEUSD_SOCK_PATH` or `ZEUSD_HOST_PORT`)."""
    from zeus.utils.zeusd import ZeusdConfig

    return ZeusdConfig.from_env() is not None


def _initialise() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise DeviceError(
            "no NVIDIA driver: libnvidia-ml.so.1 is not there; install the driver "
            "(in a container: --gpus all), or use --source simulator"
        ) from error
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"the NVIDIA driver does not answer ({error}): check nvidia-smi, "
            "or use --source simulator"
        ) from error


def _identities() -> tuple[DeviceIdentity, ...]:
    _initialise()
    try:
        handles: list[Any] = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return tuple(
            DeviceIdentity(
                index=index,
                uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
                name=str(pynvml.nvmlDeviceGetName(handle)),
            )
            for index, handle in enumerate(handles)
        )
    except pynvml.NVMLError as error:
        raise DeviceError(f"the GPUs cannot be listed ({error}): check nvidia-smi") from error


def _open(identities: Sequence[DeviceIdentity]) -> tuple[Device, ...]:
    from zeus.utils.zeusd import ZeusdConfig

    config = ZeusdConfig.from_env()
    daemon = None
    if config is not None:
        if config.socket_path is not None and not Path(config.socket_path).exists():
            raise DeviceError(
                f"zeusd does not answer at {config.endpoint} (there is no such socket): start it "
                "as root, or unset ZEUSD_SOCK_PATH"
            )
        try:
            daemon = _daemon(config)
        except (ZeusBaseError, OSError, ValueError, KeyError) as error:
            raise DeviceError(
                f"zeusd does not answer at {config.endpoint} ({_one_line(error)}): start it as "
                "root, or unset ZEUSD_SOCK_PATH and ZEUSD_HOST_PORT"
            ) from error
    return tuple(Device(identity, daemon) for identity in identities)


@functools.lru_cache(maxsize=4)
def _daemon(config: "ZeusdConfig") -> "ZeusdClient":
    """One connection per daemon: zeus never closes them."""
    from zeus.utils.zeusd import ZeusdClient

    return ZeusdClient(config)


def _translate(error: Exception, what: str) -> DeviceError:
    """Our error for one of NVML's or zeus'."""
    from zeus.device.gpu.common import ZeusGPUNoPermissionError, ZeusGPUNotSupportedError

    if isinstance(error, pynvml.NVMLError_NoPermission | ZeusGPUNoPermissionError):
        return ClockPermissionError(f"{what}: no permission; {LOCK_REMEDY}")
    if isinstance(error, pynvml.NVMLError_NotSupported | ZeusGPUNotSupportedError):
        return MissingReadingError(f"{what}: not supported by this GPU or its driver")
    return DeviceError(f"{what}: {_one_line(error)}; check nvidia-smi")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
