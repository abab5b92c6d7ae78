"""Static power: what a GPU draws while it is blocked on point-to-point communication."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kareus.device.clocks import ClockKeeper
from kareus.device.nvml import Device
from kareus.errors import DeviceError
from kareus.profiling.group import RankGroup
from kareus.profiling.protocol import Request, Task
from kareus.profiling.source import default_device, group_devices, parse_device
from kareus.profiling.trial import DeviceKind

_PATIENCE_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticPower:
    """A measured static power.

    Attributes:
        static_power_w: Mean over the blocked GPUs.
        spread_w: Standard deviation between them; None for a single one.
        window_s: How long each was watched.
        gpus: Unique names of the blocked GPUs.
        energy_source: What the energy was read from.
        device: What was measured on.
    """

    static_power_w: float
    spread_w: float | None
    window_s: float
    gpus: tuple[str, ...]
    energy_source: str
    device: DeviceKind

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


def measure_static_power(
    *,
    num_gpus: int = 2,
    device: DeviceKind | str | None = None,
    devices: Sequence[Device] | None = None,
    window_s: float = 5.0,
) -> StaticPower:
    """Measure the power of GPUs that wait for a message from another one.

    Claims the GPUs, so that nothing else is measured on them, and locks no clock.

    Args:
        num_gpus: GPUs taking part; all but one are blocked.
        device: What to measure on; None for `KAREUS_DEVICE`, else CUDA.
        devices: The GPUs; None for the first ones CUDA shows.
        window_s: How long to watch.

    Raises:
        DeviceError: There are fewer than two GPUs, or their energy cannot be measured.
    """
    kind = default_device() if device is None else parse_device(device)
    if not kind.uses_gpus:
        raise DeviceError(
            "static power is a GPU's: without an NVIDIA GPU it cannot be measured; "
            "the catalogue's figure is used"
        )
    if num_gpus < 2:
        raise DeviceError(
            f"static power on {num_gpus} GPU cannot be measured: one waits for a message of "
            "another, so use at least 2"
        )
    chosen = group_devices(num_gpus, devices)
    with (
        ClockKeeper(chosen) as keeper,
        RankGroup(num_gpus, device=kind, devices=chosen) as group,
    ):
        keeper.claim()
        reply = group.ask(
            Request(task=Task.STATIC_POWER, window_s=window_s), timeout_s=_PATIENCE_S + 2 * window_s
        )
    windows = [reading.window for reading in reply.readings if reading.window is not None]
    powers_w = [w.energy_j / w.duration_s for w in windows if w.energy_j is not None]
    if len(powers_w) < num_gpus - 1:
        flags = sorted({flag for window in windows for flag in window.flags})
        raise DeviceError(f"the static power could not be measured: {'; '.join(flags)}")
    return StaticPower(
        static_power_w=statistics.fmean(powers_w),
        spread_w=statistics.stdev(powers_w) if len(powers_w) > 1 else None,
        window_s=window_s,
        gpus=tuple(device.uuid for device in chosen[1:]),
        energy_source=max(window.energy_source.value for window in windows),
        device=kind,
    )
