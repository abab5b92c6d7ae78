"""Measurements of the machine itself: the third source beside simulator and replay.

This process locks clocks and asks; the ranks of a group, started when they are first needed,
measure. Use it as a context, or call `close`: ranks are then stopped and clocks released. Should
this process end without, its watchdog releases the clocks and the ranks end by themselves.
"""

import contextlib
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.device.clocks import ClockKeeper
from kareus.device.nvml import Device, visible_devices
from kareus.device.preflight import Check, preflight, require
from kareus.errors import ConfigError, DeviceError
from kareus.profiling.group import RankGroup
from kareus.profiling.protocol import Reply, Request, Task
from kareus.profiling.trial import (
    DeviceKind,
    TrialSettings,
    combine_readings,
    is_throttled,
)

DEVICE_VARIABLE = "KAREUS_DEVICE"
# Preparing a large unit, making a communicator, a machine under load.
_PATIENCE_S = 600.0


def default_device() -> DeviceKind:
    """Return what `KAREUS_DEVICE` names; CUDA if it is not set.

    Raises:
        ConfigError: It names nothing known.
    """
    return parse_device(os.environ.get(DEVICE_VARIABLE) or DeviceKind.CUDA)


def parse_device(name: str) -> DeviceKind:
    """Return the kind of device of a name.

    Raises:
        ConfigError: There is no such kind.
    """
    try:
        return DeviceKind(name.strip().lower())
    except ValueError:
        known = ", ".join(DeviceKind)
        raise ConfigError(f"device {name!r} is unknown: use one of {known}") from None


class MeasuredSource:
    """Measures a workload's partitions on this machine.

    Args:
        workload: The workload; tp x cp ranks measure together.
        device: What to measure on; None for `KAREUS_DEVICE`, else CUDA.
        settings: The phases of a trial; None for those the environment gives, else the defaults.
        devices: The GPU of each rank; None for the first ones CUDA shows.
        check: Whether to refuse to measure on a machine that fails the preflight.
        seed: Of weights and inputs.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        device: DeviceKind | str | None = None,
        settings: TrialSettings | None = None,
        devices: Sequence[Device] | None = None,
        check: bool = True,
        seed: int = 0,
    ) -> None:
        self._workload = workload
        self.device = default_device() if device is None else parse_device(device)
        self._settings = settings or TrialSettings.from_environment()
        self._given_devices = tuple(devices) if devices is not None else None
        self._check = check
        self._seed = seed
        self._group: RankGroup | None = None
        self._keeper: ClockKeeper | None = None
        self._devices: tuple[Device, ...] = ()
        self._locked_mhz: int | None = None
        self._aborted = False
        self._resources = contextlib.ExitStack()
        # Also where nobody closes it: at the end of the process at the latest.
        self._finalizer = weakref.finalize(self, self._resources.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def kind(self) -> SourceKind:
        """Where its measurements come from."""
        return SourceKind.MEASURED

    @property
    def repeatable(self) -> bool:
        """Whether a configuration can be measured again: always."""
        return True

    @property
    def num_ranks(self) -> int:
        """Ranks that measure together."""
        return self._workload.parallelism.tp * self._workload.parallelism.cp

    def space(self, partition: Partition) -> tuple[Configuration, ...]:
        """Return the partition's space, then its baseline configurations not in it."""
        return tuple(dict.fromkeys((*partition.space(), *partition.baseline_configurations())))

    def preflight(self, *, num_groups: int = 1, set_clocks: bool = True) -> tuple[Check, ...]:
        """Return the machine's checks for this workload; none on a CPU.

        Args:
            num_groups: Groups of ranks that are to measure side by side.
            set_clocks: Whether to try setting clocks.
        """
        if not self.device.uses_gpus:
            return ()
        gpu = self._workload.gpu
        return preflight(
            num_gpus=self.num_ranks * num_groups,
            set_clocks=set_clocks,
            model=gpu.name,
            clocks_mhz=gpu.clocks_mhz,
            static_power_w=gpu.static_power_w,
            static_power_measured=gpu.static_power_measured,
            settle_s=self._settings.settle_s,
        )

    def measure(
        self, partition: Partition, configurations: Sequence[Configuration], *, repeat: int = 0
    ) -> Iterator[Measurement | FailedMeasurement]:
        """Yield one result per configuration, in order, each as soon as it is there.

        A throttled window is measured again after a longer rest, a bounded number of times; the
        last one counts and is marked.

        Raises:
            DeviceError: The machine fails the preflight, a clock cannot be locked, or a rank ended.
        """
        for configuration in configurations:
            yield self._measure(partition, configuration, repeat)

    def close(self) -> None:
        """Stop the ranks and release the clocks; measuring again starts anew."""
        self._group = self._keeper = self._locked_mhz = None
        self._resources.close()

    def abort(self) -> None:
        """End a measurement that runs in another thread, which then gets a `DeviceError`."""
        self._aborted = True
        group = self._group
        if group is not None:
            group.abort()

    def _measure(
        self, partition: Partition, configuration: Configuration, repeat: int
    ) -> Measurement | FailedMeasurement:
        try:
            group = self._start()
            cooldown_s = self._settings.cooldown_s
            for attempt in range(1, self._settings.max_retries + 2):
                self._lock(configuration.clock_mhz, again=attempt > 1)
                reply = self._ask(group, partition, configuration, cooldown_s)
                if reply.refused is not None:
                    return FailedMeasurement(
                        partition=partition.name,
                        configuration=configuration,
                        reason=reply.refused,
                        repeat=repeat,
                    )
                if not is_throttled(reply.readings) or attempt > self._settings.max_retries:
                    break
                cooldown_s *= 2
        except BaseException:
            self.close()
            raise
        return combine_readings(
            partition.name,
            configuration,
            reply.readings,
            settings=self._settings,
            device=self.device,
            cooldown_s=cooldown_s,
            num_attempts=attempt,
            repeat=repeat,
            gpus=[device.uuid for device in self._devices],
        )

    def _ask(
        self,
        group: RankGroup,
        partition: Partition,
        configuration: Configuration,
        cooldown_s: float,
    ) -> Reply:
        settings = self._settings
        phases_s = cooldown_s + settings.warmup_s + settings.window_s
        return group.ask(
            Request(
                task=Task.MEASURE,
                partition=partition.name,
                configuration=configuration,
                cooldown_s=cooldown_s,
                warmup_s=settings.warmup_s,
                window_s=settings.window_s,
            ),
            timeout_s=_PATIENCE_S + 3 * phases_s,
        )

    def _start(self) -> RankGroup:
        """Check the machine, claim the GPUs, start the ranks: once."""
        if self._group is not None:
            return self._group
        if self.device.uses_gpus:
            if self._check:
                require(self.preflight())
            self._devices = group_devices(self.num_ranks, self._given_devices)
            self._keeper = self._resources.enter_context(ClockKeeper(self._devices))
            self._keeper.claim()
        self._group = self._resources.enter_context(
            RankGroup(
                self.num_ranks,
                device=self.device,
                devices=self._devices,
                workload=self._workload,
                seed=self._seed,
            )
        )
        if self._aborted:
            raise DeviceError("the measurement was aborted")
        return self._group

    def _lock(self, clock_mhz: int, *, again: bool) -> None:
        """Lock the clock and let it settle, where it is not locked to that already."""
        if self._keeper is None or (clock_mhz == self._locked_mhz and not again):
            return
        self._keeper.lock(clock_mhz)
        self._locked_mhz = clock_mhz
        time.sleep(self._settings.settle_s)


def group_devices(num_ranks: int, given: Sequence[Device] | None = None) -> tuple[Device, ...]:
    """Return the GPUs of a group's ranks: those given, or the first ones CUDA shows.

    Raises:
        DeviceError: There are too few.
    """
    devices = tuple(given) if given is not None else visible_devices()
    if len(devices) < num_ranks:
        raise DeviceError(
            f"{num_ranks} ranks (tp x cp) need as many GPUs, but {len(devices)} can be used: "
            "use fewer ranks, or show more GPUs in CUDA_VISIBLE_DEVICES"
        )
    return devices[:num_ranks]
