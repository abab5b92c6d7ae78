"""The points a search works on, as numbers: log clock and SM allocation, scaled, and launch slot.

Legend: m points; columns are clock in [0, 1] (0 = lowest, logarithmic), SMs in [0, 1] (likewise)
and the launch slot's index. A logarithm, because time falls roughly as a power of both.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Partition
from kareus.errors import MeasurementError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """Scales of one partition's space.

    Attributes:
        partition_name: For messages.
        clock_range: (lowest, highest) clock in MHz.
        sm_range: (fewest, most) SMs; None where nothing is launched.
        slots: Launch points in order of the computation, `none` last.
    """

    partition_name: str
    clock_range: tuple[int, int]
    sm_range: tuple[int, int] | None
    slots: tuple[LaunchPoint, ...]

    @classmethod
    def of(cls, partition: Partition) -> "Encoding":
        """Return the encoding of a partition's space."""
        sms = list(partition.sm_allocations)
        if partition.default_sm_allocation is not None and sms:
            sms.append(partition.default_sm_allocation)
        return cls(
            partition_name=partition.name,
            clock_range=(min(partition.clocks_mhz), max(partition.clocks_mhz)),
            sm_range=(min(sms), max(sms)) if sms else None,
            slots=(*partition.launch_points, LaunchPoint.NONE),
        )

    def encode(self, configurations: Sequence[Configuration]) -> FloatArray:
        """Return the points as numbers, shape (m, 3): clock, SMs, slot.

        Raises:
            MeasurementError: A configuration has a launch point the partition does not offer, or a
                clock or SM allocation that is not positive.
        """
        return np.array([self._row(one) for one in configurations], dtype=np.float64).reshape(-1, 3)

    def _row(self, configuration: Configuration) -> tuple[float, float, float]:
        clock, sms = configuration.clock_mhz, configuration.sm_allocation
        if clock <= 0 or (sms is not None and sms <= 0):
            raise MeasurementError(
                f"partition {self.partition_name}: {describe(configuration)} has a clock or SM "
                "allocation that is not positive; give what the device offers"
            )
        launch = configuration.launch_point or LaunchPoint.NONE
        if launch not in self.slots:
            raise MeasurementError(
                f"partition {self.partition_name} has no launch point {launch.value!r}; "
                f"it offers {', '.join(slot.value for slot in self.slots)}"
            )
        return (
            _scaled(clock, self.clock_range),
            0.5 if sms is None or self.sm_range is None else _scaled(sms, self.sm_range),
            float(self.slots.index(launch)),
        )


def _scaled(value: int, limits: tuple[int, int]) -> float:
    """Position of the value between the limits on a log scale; 0.5 if they are equal."""
    low, high = limits
    if low == high:
        return 0.5 + math.log(value / low)
    return math.log(value / low) / math.log(high / low)


def describe(configuration: Configuration) -> str:
    """Return a configuration in words, such as `1200 MHz, 12 SMs, norm_0`."""
    words = [f"{configuration.clock_mhz} MHz"]
    if configuration.sm_allocation is not None:
        words.append(f"{configuration.sm_allocation} SMs")
    if configuration.launch_point is not None:
        words.append(configuration.launch_point.value)
    return ", ".join(words)


def searchable(
    partition: Partition, candidates: Iterable[Configuration]
) -> tuple[Configuration, ...]:
    """Return the candidates a search may propose: once each, in a fixed order.

    `none` is left out where the partition is searched: it is measured beside the search.
    """
    kept = {
        one
        for one in candidates
        if not (partition.searched and one.launch_point in (None, LaunchPoint.NONE))
    }
    return tuple(sorted(kept, key=Configuration.sort_key))
