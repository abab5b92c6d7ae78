"""Start a partition from what other studies measured: same GPU, another model or shape.

A donor's own surrogate predicts log time and log effective energy at the new partition's
configurations; those predictions, centred and scaled, become further inputs with a linear kernel.
How much they count is a hyperparameter fitted with the others, so a donor that is unlike fades out
as measurements of the partition itself come in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement
from kareus.core.partition import Partition
from kareus.errors import MeasurementError
from kareus.search.history import average, check_static_power
from kareus.search.space import describe
from kareus.search.surrogate import Surrogate

FloatArray = NDArray[np.float64]

_LEAST_POINTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Donor:
    """A partition measured in another study on the same GPU.

    Attributes:
        study: The study's name, for display.
        partition: Its partition.
        measurements: What was measured of it, at least eight configurations.
        static_power_w: Static power of that study's GPU in watts.
    """

    study: str
    partition: Partition
    measurements: tuple[Measurement, ...]
    static_power_w: float


class TransferPrior:
    """Predictions of donors as further inputs of a new partition's surrogate.

    Args:
        partition: The new partition.
        donors: At least one.

    Raises:
        MeasurementError: There is no donor, or one has too few or unusable measurements.
    """

    def __init__(self, partition: Partition, donors: Iterable[Donor]) -> None:
        self.donors = tuple(donors)
        if not self.donors:
            raise MeasurementError(
                f"partition {partition.name}: no other study to start from; measure without"
            )
        space = sorted(
            {*partition.space(), *partition.baseline_configurations()}, key=Configuration.sort_key
        )
        times, energies = [], []
        for donor in self.donors:
            check_static_power(donor.static_power_w)
            averaged = average(donor.partition, donor.measurements)
            if len(averaged) < _LEAST_POINTS:
                raise MeasurementError(
                    f"partition {partition.name}: study {donor.study} measured "
                    f"{len(averaged)} configurations of it; to start from it takes at least "
                    f"{_LEAST_POINTS}"
                )
            surrogate = Surrogate(donor.partition, averaged, static_power_w=donor.static_power_w)
            means = surrogate.means([_translated(one, donor.partition) for one in space])
            times.append(means.log_time[0])
            energies.append(means.log_effective[0])
        self._space = {one: place for place, one in enumerate(space)}
        self._columns = {"time": _scaled(times), "energy": _scaled(energies)}

    def columns(self, configurations: Sequence[Configuration], quantity: str) -> FloatArray:
        """Return one column per donor, shape (m, donors).

        Raises:
            MeasurementError: A configuration is not one of the partition's.
        """
        unknown = [one for one in configurations if one not in self._space]
        if unknown:
            raise MeasurementError(
                f"{describe(unknown[0])} is not in the partition's space; it cannot be predicted "
                "from other studies"
            )
        places = [self._space[one] for one in configurations]
        chosen: FloatArray = self._columns[quantity][places]
        return chosen


def _translated(configuration: Configuration, partition: Partition) -> Configuration:
    """The donor's configuration nearest in kind: a launch point it lacks becomes its first."""
    offered = {*partition.launch_points, LaunchPoint.NONE, None}
    if configuration.launch_point in offered:
        return configuration
    launch = partition.launch_points[0] if partition.launch_points else None
    return Configuration(
        clock_mhz=configuration.clock_mhz,
        sm_allocation=configuration.sm_allocation,
        launch_point=launch,
    )


def _scaled(columns: Sequence[FloatArray]) -> FloatArray:
    """Centre and scale each donor's predictions, shape (m, donors)."""
    stacked = np.stack(columns, axis=1)
    deviation = stacked.std(axis=0)
    scaled: FloatArray = (stacked - stacked.mean(axis=0)) / np.where(
        deviation > 1e-12, deviation, 1.0
    )
    return scaled
