"""Start a partition from what other studies measured: same GPU, another model or shape.

Two things carry over. The shape of the surfaces: how far clock, SMs and launch point reach, fitted
on the donors, is the prior of the new partition's own fit, which its measurements overrule. And the
first guesses: beside the corners, the initial design takes the configurations that the donors'
surrogates would recommend instead of spreading evenly. Values do not carry over: the SM allocation
at which the collective stops being the bottleneck moves with the shape, and predictions with that
bend in the wrong place were found to cost more than they give.

A donor counts only while it agrees: its own measurements must show a pattern, and the times it
predicts must go with those measured here, the clock's part taken out of both.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement
from kareus.core.partition import Partition
from kareus.errors import MeasurementError
from kareus.search.acquisition import Acquisition
from kareus.search.history import Averaged, average, check_static_power
from kareus.search.surrogate import PosteriorSamples, Surrogate

# Configurations a donor must have measured.
LEAST_MEASURED = 8
# A donor whose fit takes more than half of its times' deviation for noise shows no pattern.
_LEAST_EXPLAINED = 0.5
# Times expected from a donor and times measured correlate at least so well, over as many points.
_LEAST_CORRELATION = 0.6
_LEAST_COMPARED = 4


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
    """What donors tell about a new partition.

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
        self._fitted = tuple((donor, _fitted(partition, donor)) for donor in self.donors)

    def agreeing(self, averaged: Sequence[Averaged]) -> "TransferPrior | None":
        """Return the prior of the donors that agree with measurements; None if none does."""
        kept = tuple(pair for pair in self._fitted if _agrees(*pair, averaged))
        if not kept:
            return None
        prior = copy.copy(self)
        prior.donors = tuple(donor for donor, _ in kept)
        prior._fitted = kept
        return prior

    def medians(self, quantity: str) -> Mapping[str, float]:
        """Return the donors' hyperparameters, geometric means over those that have them."""
        fitted = [surrogate.hyperparameters(quantity) for _, surrogate in self._fitted]
        names = {name for one in fitted for name in one}
        return {
            name: float(np.exp(np.mean([np.log(one[name]) for one in fitted if name in one])))
            for name in sorted(names)
        }

    def suggestions(
        self, candidates: Sequence[Configuration], num_configurations: int
    ) -> tuple[Configuration, ...]:
        """Return the candidates that the donors' expected values make the best set of."""
        means = [
            surrogate.means([_translated(one, donor.partition) for one in candidates])
            for donor, surrogate in self._fitted
        ]
        picks = Acquisition(
            PosteriorSamples(
                log_time=np.vstack([one.log_time for one in means]),
                log_effective=np.vstack([one.log_effective for one in means]),
                log_total=np.vstack([one.log_total for one in means]),
            ),
            clocks_mhz=np.array([one.clock_mhz for one in candidates], dtype=np.intp),
            held=np.zeros(len(candidates), dtype=np.bool_),
            factor=np.ones(len(candidates)),
        ).choose(num_configurations)
        return tuple(candidates[place] for _, place in picks)


def _fitted(partition: Partition, donor: Donor) -> Surrogate:
    """A donor's own surrogate."""
    check_static_power(donor.static_power_w)
    averaged = average(donor.partition, donor.measurements)
    if len(averaged) < LEAST_MEASURED:
        raise MeasurementError(
            f"partition {partition.name}: study {donor.study} measured {len(averaged)} "
            f"configurations of it; to start from it takes at least {LEAST_MEASURED}"
        )
    return Surrogate(donor.partition, averaged, static_power_w=donor.static_power_w)


def _agrees(donor: Donor, surrogate: Surrogate, averaged: Sequence[Averaged]) -> bool:
    """Whether a donor shows a pattern and its times go with those measured."""
    if surrogate.explained_share < _LEAST_EXPLAINED or len(averaged) < _LEAST_COMPARED:
        return False
    configurations = [_translated(one.configuration, donor.partition) for one in averaged]
    expected = surrogate.means(configurations).log_time[0]
    measured = np.log([one.time_s for one in averaged])
    trend = np.vander(np.log([one.configuration.clock_mhz for one in averaged]), 2)
    rest = [one - trend @ np.linalg.lstsq(trend, one)[0] for one in (expected, measured)]
    size = float(np.linalg.norm(rest[0]) * np.linalg.norm(rest[1]))
    return float(rest[0] @ rest[1]) >= _LEAST_CORRELATION * max(size, 1e-12)


def _translated(configuration: Configuration, partition: Partition) -> Configuration:
    """The donor's configuration nearest in kind: a launch point it lacks becomes its first."""
    if configuration.launch_point in {*partition.launch_points, LaunchPoint.NONE, None}:
        return configuration
    return Configuration(
        clock_mhz=configuration.clock_mhz,
        sm_allocation=configuration.sm_allocation,
        launch_point=partition.launch_points[0] if partition.launch_points else None,
    )
