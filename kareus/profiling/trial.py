"""One trial: what a configuration's measurement consists of, and what its ranks' readings say.

    lock clock ─ settle ─ cool down ─ warm up ─ window ─ (throttled? again, cooler)
    └── the process that asked ──┘ └──── the ranks of the group ────┘

Every rank repeats the unit equally often in the window and divides; time and energy are averaged
over the ranks. Nothing here needs torch or a GPU.
"""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, SourceKind
from kareus.device.clocks import CLOCK_TOLERANCE_MHZ
from kareus.device.energy import EnergySource
from kareus.device.monitor import WindowReading
from kareus.errors import ConfigError

_PHASES = ("settle_s", "cooldown_s", "warmup_s", "window_s")


class DeviceKind(StrEnum):
    """What is measured on.

    `CUDA`: NVIDIA GPUs. `CPU`: real time, no clock, no GPU energy. `REHEARSAL`: computation on the
    CPU while clocks and energy are those of NVIDIA GPUs: everything of a campaign but its numbers,
    to try out a machine's permissions and a job's handling; every measurement says so.
    """

    CUDA = "cuda"
    CPU = "cpu"
    REHEARSAL = "rehearsal"

    @property
    def uses_gpus(self) -> bool:
        """Whether clocks and energy are those of NVIDIA GPUs."""
        return self is not DeviceKind.CPU


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSettings:
    """How long the phases of a trial take.

    Attributes:
        settle_s: After setting a clock, until it holds.
        cooldown_s: Rest before warming up.
        warmup_s: Repetitions that are not counted, at least.
        window_s: The measuring window.
        max_retries: Further attempts where the clock was throttled, each with twice the rest.
    """

    settle_s: float = 2.0
    cooldown_s: float = 5.0
    warmup_s: float = 1.0
    window_s: float = 5.0
    max_retries: int = 2

    @staticmethod
    def from_environment() -> "TrialSettings":
        """Return the defaults with what `KAREUS_SETTLE_S` and its like say instead.

        Raises:
            ConfigError: One of them is no number, or cannot be.
        """
        given: dict[str, float] = {}
        for name in _PHASES:
            variable = f"KAREUS_{name.upper()}"
            text = os.environ.get(variable)
            if text:
                try:
                    given[name] = float(text)
                except ValueError:
                    raise ConfigError(f"{variable}={text!r}: it must be seconds") from None
        return TrialSettings(**given)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        for name in _PHASES:
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (name == "window_s" and value == 0):
                raise ConfigError(f"{name} = {value:g}: it must be seconds, at least 0")
        if self.max_retries < 0:
            raise ConfigError(f"max_retries = {self.max_retries}: it must be at least 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankReading:
    """What one rank measured in a window.

    Attributes:
        rank: Which.
        time_s: Seconds per execution.
        time_spread_s: Standard deviation of the means of the window's tenths.
        num_executions: Executions in the window.
        warmup_s: How long it had warmed up.
        window: What its GPU read; None without one.
        processor_energy_j: Energy of the machine's processors over the window; None if not read.
        allocation_applied: Whether the collectives' backend keeps to an SM allocation.
    """

    rank: int
    time_s: float
    time_spread_s: float | None
    num_executions: int
    warmup_s: float
    window: WindowReading | None = None
    processor_energy_j: float | None = None
    allocation_applied: bool = False


def is_throttled(readings: Sequence[RankReading]) -> bool:
    """Return whether something held a rank's clock down during the window."""
    return any(
        reading.window is not None and reading.window.throttle_reasons for reading in readings
    )


def combine_readings(
    partition: str,
    configuration: Configuration,
    readings: Sequence[RankReading],
    *,
    settings: TrialSettings,
    device: DeviceKind,
    cooldown_s: float,
    num_attempts: int = 1,
    repeat: int = 0,
    gpus: Sequence[str] = (),
) -> Measurement:
    """Return the measurement that the readings of all ranks make.

    Args:
        partition: The unit's name.
        configuration: What was asked for.
        readings: One per rank.
        settings: The trial's.
        device: What was measured on.
        cooldown_s: The rest before the attempt that counted.
        num_attempts: Attempts made, the counted one included.
        repeat: Which measurement of the configuration it is.
        gpus: Unique names of the GPUs, by rank.
    """
    windows = [reading.window for reading in readings if reading.window is not None]
    flags = [flag for window in windows for flag in window.flags]
    if device is DeviceKind.REHEARSAL:
        flags.append("rehearsal: computed on the processor while these GPUs idled")
    energies_j = [
        window.energy_j / reading.num_executions
        for reading in readings
        if (window := reading.window) is not None and window.energy_j is not None
    ]
    complete = len(energies_j) == len(readings)
    sources = {window.energy_source for window in windows}
    energy_source = EnergySource.NOT_MEASURED
    if complete:
        # A single rank without a counter makes the average an integral in part.
        energy_source = max(sources, key=lambda source: source is EnergySource.POWER)
    elif energies_j:
        flags.append(f"energy of {len(readings) - len(energies_j)} ranks is missing")
    throttled = is_throttled(readings)
    achieved_mhz = [w.achieved_clock_mhz for w in windows if w.achieved_clock_mhz is not None]
    if achieved_mhz and not throttled:
        lowest_mhz = min(achieved_mhz)
        if abs(lowest_mhz - configuration.clock_mhz) > CLOCK_TOLERANCE_MHZ:
            flags.append(f"ran at {lowest_mhz:g} MHz instead of {configuration.clock_mhz} MHz")
    conditions: dict[str, object] = {
        "device": device.value,
        "num_ranks": len(readings),
        "num_executions": readings[0].num_executions,
        "cooldown_s": cooldown_s,
        "warmup_s": round(max(reading.warmup_s for reading in readings), 3),
        "window_s": settings.window_s,
        "energy_source": energy_source.value,
        "clock_applied": device.uses_gpus,
        "sm_allocation_applied": all(reading.allocation_applied for reading in readings),
        "attempts": num_attempts,
        "throttled": throttled,
        "rank_times_s": [reading.time_s for reading in readings],
    }
    if device.uses_gpus:
        conditions["settle_s"] = settings.settle_s
        conditions["achieved_clock_mhz"] = min(achieved_mhz, default=None)
        conditions["lowest_clock_mhz"] = min(
            (w.lowest_clock_mhz for w in windows if w.lowest_clock_mhz is not None), default=None
        )
        conditions["temperature_c"] = max(
            (w.temperature_c for w in windows if w.temperature_c is not None), default=None
        )
        conditions["throttle_reasons"] = sorted({r for w in windows for r in w.throttle_reasons})
        conditions["power_integral_j"] = _mean(
            [
                window.power_integral_j / reading.num_executions
                for reading in readings
                if (window := reading.window) is not None and window.power_integral_j is not None
            ]
        )
        conditions["gpus"] = list(gpus)
    processor_j = [r.processor_energy_j for r in readings if r.processor_energy_j is not None]
    if processor_j:
        # No GPU's energy: beside, never in place of one.
        conditions["processor_energy_j"] = sum(processor_j) / readings[0].num_executions
        if not device.uses_gpus:
            conditions["energy_source"] = EnergySource.RAPL.value
    if flags:
        conditions["flags"] = list(dict.fromkeys(flags))
    spreads_s = [r.time_spread_s for r in readings if r.time_spread_s is not None]
    spreads_j = [
        window.energy_spread_j / reading.num_executions
        for reading in readings
        if (window := reading.window) is not None and window.energy_spread_j is not None
    ]
    return Measurement(
        partition=partition,
        configuration=configuration,
        time_s=statistics.fmean(reading.time_s for reading in readings),
        energy_j=statistics.fmean(energies_j) if complete else None,
        source=SourceKind.MEASURED,
        time_spread_s=_mean(spreads_s),
        energy_spread_j=_mean(spreads_j) if complete else None,
        repeat=repeat,
        conditions=conditions,
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
