"""What measuring a configuration yields, and the seam behind which the three sources stand."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from kareus.core.configuration import Configuration
from kareus.core.partition import Partition


class SourceKind(StrEnum):
    """Where measurements come from; the values are the words of the command line."""

    SIMULATOR = "simulator"
    MEASURED = "measured"
    REPLAY = "replay"


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """Time and energy of one execution of a partition at one configuration, per GPU.

    Averaged over the ranks of the group.

    Attributes:
        partition: The partition's name.
        configuration: What was asked for.
        time_s: Seconds per execution.
        energy_j: Total energy per execution and GPU in joules; None where it could not be measured.
        time_spread_s: Standard deviation of the time; None where unknown.
        energy_spread_j: Standard deviation of the energy; None where unknown.
        source: Where it comes from.
        repeat: 0 for the first measurement of this configuration, 1 for the next, ...
        conditions: What else was recorded: temperature_c, achieved_clock_mhz, throttle_reasons,
            cooldown_s, warmup_s, window_s, energy_source, ...; JSON values only.
    """

    partition: str
    configuration: Configuration
    time_s: float
    energy_j: float | None
    source: SourceKind
    time_spread_s: float | None = None
    energy_spread_j: float | None = None
    repeat: int = 0
    conditions: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedMeasurement:
    """A configuration that could not be measured, with the reason; it is stored, never dropped.

    Attributes:
        partition: The partition's name.
        configuration: What was asked for.
        reason: Why there is no result, in one line.
        repeat: Which measurement of the configuration it would have been.
    """

    partition: str
    configuration: Configuration
    reason: str
    repeat: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionOption:
    """A configuration with the time and energy the composition counts with.

    They are the measured values (averaged over repeats) or posterior means of them.

    Attributes:
        configuration: The configuration.
        time_s: Seconds per execution.
        energy_j: Total energy per execution and GPU in joules.
    """

    configuration: Configuration
    time_s: float
    energy_j: float

    def effective_energy_j(self, static_power_w: float) -> float:
        """Return the dynamic energy: total less static power times time."""
        return self.energy_j - static_power_w * self.time_s


class MeasurementSource(Protocol):
    """Gives measurements. Nothing above this seam may know which source it is."""

    @property
    def kind(self) -> SourceKind:
        """Where its measurements come from."""

    @property
    def repeatable(self) -> bool:
        """Whether a configuration can be measured again; a record holds what it holds."""

    def space(self, partition: Partition) -> tuple[Configuration, ...]:
        """Return the configurations of the partition this source can measure.

        The partition's space and baseline configurations, or what of them was recorded.
        """

    def measure(
        self, partition: Partition, configurations: Sequence[Configuration], *, repeat: int = 0
    ) -> Iterator[Measurement | FailedMeasurement]:
        """Yield one result per configuration, in order, each as soon as it is there.

        Deterministic sources give the same value for the same (seed, partition, configuration,
        repeat) whatever was asked before, so that a resumed study repeats nothing and differs
        in nothing.
        """
