"""What a search was told: checked, in order, with what was asked and what failed.

Legend: a result is a measurement or a failure. Results of configurations that were asked for count
against the budget; others (the baselines' configurations) inform the search and do not count.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.frontier import hypervolume
from kareus.core.measurement import FailedMeasurement, Measurement, PartitionOption
from kareus.core.partition import Partition
from kareus.errors import MeasurementError
from kareus.search.space import Encoding, describe


def check_measurement(partition: Partition, measurement: Measurement) -> None:
    """Refuse a measurement that cannot be searched with.

    Raises:
        MeasurementError: It belongs to another partition, has no energy, or its time or energy is
            not a positive finite number.
    """
    place = f"partition {partition.name} at {describe(measurement.configuration)}"
    if measurement.partition != partition.name:
        raise MeasurementError(
            f"{place}: the measurement belongs to partition {measurement.partition}; "
            "tell it to that partition's search"
        )
    if measurement.energy_j is None:
        source = measurement.conditions.get("energy_source", "none recorded")
        raise MeasurementError(
            f"{place}: energy was not measured (energy source: {source}), so time and energy cannot"
            " be traded; measure on a GPU with an energy counter or use the simulator"
        )
    for quantity, value in (("time", measurement.time_s), ("energy", measurement.energy_j)):
        if not (math.isfinite(value) and value > 0):
            raise MeasurementError(
                f"{place}: the {quantity} {value} is not a positive finite number; "
                "remove or repeat this measurement"
            )


def check_static_power(static_power_w: float) -> None:
    """Refuse a static power that is not a finite number of at least 0 W."""
    if not (math.isfinite(static_power_w) and static_power_w >= 0):
        raise MeasurementError(
            f"static power {static_power_w} W is not a finite number of at least 0; "
            "measure it while the GPU is blocked on communication"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Averaged:
    """The mean of all measurements of one configuration.

    Attributes:
        configuration: The configuration.
        time_s: Mean seconds.
        energy_j: Mean total energy in joules.
        num_measurements: How many were averaged, at least 1.
        time_noise: Relative deviation of one time as its source states it; None where it does not.
        energy_noise: Likewise of a total energy.
    """

    configuration: Configuration
    time_s: float
    energy_j: float
    num_measurements: int
    time_noise: float | None = None
    energy_noise: float | None = None


def average(partition: Partition, measurements: Iterable[Measurement]) -> tuple[Averaged, ...]:
    """Return one mean per configuration, in the order of `Configuration.sort_key`.

    Raises:
        MeasurementError: A measurement cannot be used (`check_measurement`).
    """
    groups: dict[Configuration, list[Measurement]] = {}
    for one in measurements:
        check_measurement(partition, one)
        groups.setdefault(one.configuration, []).append(one)
    return tuple(
        _averaged(configuration, groups[configuration])
        for configuration in sorted(groups, key=Configuration.sort_key)
    )


def _averaged(configuration: Configuration, group: Sequence[Measurement]) -> Averaged:
    """Mean of one configuration's measurements."""
    time_s = math.fsum(one.time_s for one in group) / len(group)
    energy_j = math.fsum(one.energy_j or 0.0 for one in group) / len(group)
    return Averaged(
        configuration=configuration,
        time_s=time_s,
        energy_j=energy_j,
        num_measurements=len(group),
        time_noise=_relative([one.time_spread_s for one in group], time_s),
        energy_noise=_relative([one.energy_spread_j for one in group], energy_j),
    )


def _relative(spreads: Sequence[float | None], value: float) -> float | None:
    """Mean of the stated spreads relative to the value; None if one is unknown or none at all."""
    stated = [one for one in spreads if one is not None and math.isfinite(one) and one > 0]
    return math.fsum(stated) / len(stated) / value if len(stated) == len(spreads) else None


def measured_options(
    partition: Partition, measurements: Iterable[Measurement]
) -> tuple[PartitionOption, ...]:
    """Return every measured configuration with its measured values, averaged over repeats."""
    return tuple(
        PartitionOption(configuration=one.configuration, time_s=one.time_s, energy_j=one.energy_j)
        for one in average(partition, measurements)
    )


class History:
    """The results a search was told, and the state that follows from them alone.

    Args:
        partition: The partition searched.
        static_power_w: Static power of the GPU in watts.
    """

    def __init__(self, partition: Partition, *, static_power_w: float) -> None:
        check_static_power(static_power_w)
        self.partition = partition
        self.static_power_w = static_power_w
        self.measurements: list[Measurement] = []
        self.failures: list[FailedMeasurement] = []
        self.pending: set[Configuration] = set()
        self.num_counted = 0
        self._encoding = Encoding.of(partition)
        self._told: set[tuple[Configuration, int]] = set()
        self._steps: list[int] = []

    @property
    def num_told(self) -> int:
        """Results told so far, failures and baselines included."""
        return len(self.measurements) + len(self.failures)

    def add(self, results: Sequence[Measurement | FailedMeasurement]) -> None:
        """Take results; all or, if one is refused, none of them.

        Their order within one call does not matter.

        Raises:
            MeasurementError: A result cannot be used or was told before.
        """
        ordered = sorted(results, key=lambda one: (one.configuration.sort_key(), _repeat(one)))
        self._encoding.encode([one.configuration for one in ordered])
        new: set[tuple[Configuration, int]] = set()
        for one in ordered:
            if isinstance(one, FailedMeasurement):
                if one.partition != self.partition.name:
                    raise MeasurementError(
                        f"partition {self.partition.name}: told a failure of partition "
                        f"{one.partition}; tell it to that partition's search"
                    )
                continue
            check_measurement(self.partition, one)
            key = (one.configuration, one.repeat)
            if key in self._told or key in new:
                raise MeasurementError(
                    f"partition {self.partition.name} at {describe(one.configuration)}: repeat "
                    f"{one.repeat} was told twice; number repeated measurements 0, 1, 2, ..."
                )
            new.add(key)
        self._told |= new
        for one in ordered:
            if one.configuration in self.pending:
                self.pending.discard(one.configuration)
                self.num_counted += 1
            if isinstance(one, FailedMeasurement):
                self.failures.append(one)
            else:
                self.measurements.append(one)
        if new:
            self._steps.append(len(self.measurements))

    def measured(self) -> set[Configuration]:
        """Configurations with at least one measurement."""
        return {one.configuration for one in self.measurements}

    def failed(self) -> set[Configuration]:
        """Configurations that failed at least once; a search does not propose them again."""
        return {one.configuration for one in self.failures}

    def next_repeat(self, configuration: Configuration) -> int:
        """Number the next measurement of this configuration carries (`Measurement.repeat`)."""
        told = [repeat for one, repeat in self._told if one == configuration]
        return max(told, default=-1) + 1

    def require_measurements(self) -> None:
        """Refuse to go on without a single success.

        Raises:
            MeasurementError: Nothing was measured; names the partition and the last reason.
        """
        if self.measurements:
            return
        if self.failures:
            raise MeasurementError(
                f"partition {self.partition.name}: all {len(self.failures)} measurements failed "
                f"(last: {self.failures[-1].reason}); check the device and start it again"
            )
        raise MeasurementError(
            f"partition {self.partition.name}: nothing was measured; measure before asking for "
            "options"
        )

    def hypervolume_trace(self) -> tuple[tuple[int, float], ...]:
        """Return (number of measurements, hypervolume) after every tell with a measurement.

        Share of the box between the best and 1.1 x the worst values measured in the end, in (time,
        effective energy): between 0 and 1, ascending. It shows convergence, not how much is left.
        """
        if not self.measurements:
            return ()
        points = np.array(
            [
                (one.time_s, (one.energy_j or 0.0) - self.static_power_w * one.time_s)
                for one in self.measurements
            ]
        )
        best, worst = points.min(axis=0), points.max(axis=0)
        extent = np.where(worst > best, worst - best, np.maximum(np.abs(worst), 1e-12))
        scaled = (points - best) / extent
        return tuple(
            (count, hypervolume(scaled[:count], (1.1, 1.1)) / 1.21) for count in self._steps
        )


def _repeat(result: Measurement | FailedMeasurement) -> int:
    return result.repeat if isinstance(result, Measurement) else -1
