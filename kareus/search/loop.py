"""The search of one partition: ask for the next configurations, tell what was measured.

    search = make_search(SearchKind.KAREUS, partition, candidates, static_power_w=..., seed=...,
                         budget=...)
    search.tell(baseline_results)               # informs it, does not count
    while batch := search.ask():
        results = [measure(one, repeat=search.next_repeat(one)) for one in batch]
        search.tell(results)
    options = search.options()

A search is a function of its seed and of what it was told, call by call: a study that was stopped
asks and tells the stored measurements again and goes on where it was. A batch may be told in parts
and in any order within one `tell`; `ask` before all of it is told returns what is missing.
"""

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration
from kareus.core.frontier import non_dominated
from kareus.core.measurement import FailedMeasurement, Measurement, PartitionOption
from kareus.core.partition import MeasuringBudget, Partition
from kareus.errors import ConfigError
from kareus.search.acquisition import Acquisition, expected_regret
from kareus.search.base import BaseSearch, RandomSearch
from kareus.search.design import corners, initial_design
from kareus.search.history import average
from kareus.search.kind import SearchKind
from kareus.search.smoothing import posterior_means
from kareus.search.surrogate import PosteriorSamples, Prior, Surrogate

INITIAL_SIZE = 24
# Batches grow by this many with every 72 measurements from 144 on: late ones change little by
# waiting.
_BATCH_SIZE = 8
_NUM_SAMPLES = 32
_LEAST_POINTS = 4
# Repeats compete for the last part of a partition's own budget only: before, a new point teaches as
# much. Where the whole study has one budget they compete from the first batch.
_REPEAT_SHARE = 0.25
_MAX_REPEATS = 4
# Expected gain (weighted shares) below which a repeat is not worth its measurement.
_LEAST_REPEAT_GAIN = 2e-4
# Joint samples cost the cube of the number of configurations: about 0.1 s at this one.
_MAX_JOINT = 1000


class PartitionSearch(Protocol):
    """Searches one partition; see the module's words for the order of calls."""

    @property
    def partition(self) -> Partition:
        """The partition searched."""

    @property
    def num_counted(self) -> int:
        """Results told that count against the budget: those of what was asked for."""

    @property
    def hypervolume_trace(self) -> tuple[tuple[int, float], ...]:
        """(measurements, share of the box of all measured values) after every tell."""

    @property
    def expected_regret(self) -> float:
        """Relative cost per execution expected from what is not measured yet; 0 if nothing is left.

        It compares partitions; searches without a model return a figure that falls with the
        number of measurements.
        """

    def ask(self, limit: int | None = None) -> tuple[Configuration, ...]:
        """Return the next batch, initial design first; empty when budget or space is exhausted.

        Args:
            limit: At most this many; None leaves it to the search.

        Raises:
            MeasurementError: All measurements of the initial design failed.
        """

    def next_repeat(self, configuration: Configuration) -> int:
        """Return the `repeat` to measure an asked configuration with: how often it was measured."""

    def tell(self, results: Sequence[Measurement | FailedMeasurement]) -> None:
        """Take results, asked for or not.

        Raises:
            MeasurementError: A result cannot be used; then none of the call is taken.
        """

    def options(self) -> tuple[PartitionOption, ...]:
        """Return all measured configurations, those of the baselines too, by `sort_key`.

        Raises:
            MeasurementError: Nothing was measured.
        """


class KareusSearch(BaseSearch):
    """Gaussian processes and expected hypervolume over posterior samples (see `acquisition`).

    The budget bounds the total; the initial design has at most 24 configurations and batches are
    of 8 up to 143 measurements and grow after that, whatever the budget's own split.

    Args:
        partition, candidates, static_power_w, seed, budget: See `BaseSearch`.
        prior: Measurements of other studies to start from; None without.
        repeats: Whether configurations may be asked for again where noise decides. A source that
            replays recorded measurements cannot repeat them.
    """

    def __init__(
        self,
        partition: Partition,
        candidates: Sequence[Configuration],
        *,
        static_power_w: float,
        seed: int,
        budget: MeasuringBudget,
        prior: Prior | None = None,
        repeats: bool = True,
    ) -> None:
        super().__init__(
            partition, candidates, static_power_w=static_power_w, seed=seed, budget=budget
        )
        self._prior = prior
        self._repeats = repeats
        self._cached: tuple[int, _Belief] | None = None

    @property
    def expected_regret(self) -> float:
        """Relative cost per execution expected from what is not measured yet."""
        if not self._open():
            return 0.0
        if len(self._history.measured()) < _LEAST_POINTS:
            return 1.0
        belief = self._belief()
        return expected_regret(
            belief.samples, clocks_mhz=belief.clocks_mhz, measured=belief.measured
        )

    def options(self) -> tuple[PartitionOption, ...]:
        """Return all measured configurations with their posterior means."""
        self._history.require_measurements()
        return posterior_means(
            self.partition,
            self._history.measurements,
            static_power_w=self._history.static_power_w,
            prior=self._trusted(),
        )

    def _initial_size(self) -> int:
        least = len(corners(self.partition))
        return min(max(least, INITIAL_SIZE), self._budget.initial or self._budget.total)

    def _propose(self, room: int) -> tuple[Configuration, ...]:
        pool = self._open()
        if room >= len(pool):
            return tuple(pool)
        missing = self._initial_size() - self.num_counted
        if missing > 0 or len(self._history.measured()) < _LEAST_POINTS:
            return self._initial(pool, min(max(missing, _LEAST_POINTS), room))
        size = min(max(_BATCH_SIZE, self.num_counted // 72 * _BATCH_SIZE), room)
        belief = self._belief()
        picks = Acquisition(
            belief.samples,
            clocks_mhz=belief.clocks_mhz,
            held=belief.measured,
            factor=(~belief.measured).astype(np.float64),
        ).choose(size)
        if self._repeats and room <= _REPEAT_SHARE * self._budget.total:
            picks = tuple(heapq.nlargest(size, picks + self._repeated(belief, size)))
        return tuple(belief.points[column] for _, column in picks)

    def _initial(self, pool: list[Configuration], size: int) -> tuple[Configuration, ...]:
        """The next part of the initial design.

        Where other studies are at hand, every second corner comes first. What it shows decides
        whether the rest is what they suggest or spreads evenly.
        """
        known = self._history.measured() | self._history.failed()
        if self._prior is not None:
            at_corner = corners(self.partition)
            # Product order: these alternate between clock and SMs from one launch point to the
            # next.
            half = {one for place, one in enumerate(at_corner) if (place ^ place >> 1) & 1}
            first = tuple(one for one in pool if one in half)
            if first:
                return first[:size]
            if (trusted := self._trusted()) is not None:
                return trusted.suggestions(pool, size)
        return initial_design(self.partition, self._candidates, size, rng=self._rng(), known=known)

    def _trusted(self) -> Prior | None:
        """What other studies tell, as far as it agrees with what was measured here."""
        if self._prior is None:
            return None
        return self._prior.agreeing(average(self.partition, self._history.measurements))

    def _repeated(self, belief: "_Belief", size: int) -> tuple[tuple[float, int], ...]:
        """Gains of measuring again what was measured.

        What a user is offered are the fronts of posterior means. A measured configuration off them
        loses its sampled gain over them; one more measurement is taken to recover the share of it
        by which it would cut the energy's variance. So repeats win where noise, not ignorance of
        the rest, decides.
        """
        held = np.zeros(len(belief.points), dtype=np.bool_)
        for clock in np.unique(belief.clocks_mhz[belief.measured]):
            places = np.flatnonzero(belief.measured & (belief.clocks_mhz == clock))
            held[places[non_dominated(belief.means[places])]] = True
        counts = Counter(one.configuration for one in self._history.measurements)
        failed = self._history.failed()
        factor = np.where(belief.measured & ~held, belief.resolutions, 0.0)
        for place in np.flatnonzero(factor):
            one = belief.points[place]
            if one in failed or counts[one] > _MAX_REPEATS:
                factor[place] = 0.0
        picks = Acquisition(
            belief.samples, clocks_mhz=belief.clocks_mhz, held=held, factor=factor
        ).choose(size)
        return tuple(pick for pick in picks if pick[0] >= _LEAST_REPEAT_GAIN)

    def _belief(self) -> "_Belief":
        """What is believed at this step about the measured and the open configurations."""
        if self._cached is None or self._cached[0] != self._history.num_told:
            averaged = average(self.partition, self._history.measurements)
            surrogate = Surrogate(
                self.partition,
                averaged,
                static_power_w=self._history.static_power_w,
                prior=self._trusted(),
            )
            known = [one.configuration for one in averaged]
            points = known + _promising(surrogate, self._open(), _MAX_JOINT - len(known))
            samples = surrogate.sample(points, _NUM_SAMPLES, self._rng())
            means = surrogate.means(points)
            belief = _Belief(
                points=points,
                samples=samples,
                means=np.stack([means.log_time[0], means.log_effective[0]], axis=1),
                clocks_mhz=np.array([one.clock_mhz for one in points], dtype=np.intp),
                measured=np.arange(len(points)) < len(known),
                resolutions=surrogate.resolutions(samples, means),
            )
            self._cached = (self._history.num_told, belief)
        return self._cached[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Belief:
    """Posterior of one step; m configurations, the measured ones first.

    Attributes:
        points: The configurations.
        samples: Joint samples, shape (s, m).
        means: Posterior means of (log time, log effective energy), shape (m, 2).
        clocks_mhz: Shape (m,).
        measured: Shape (m,).
        resolutions: See `Surrogate.resolutions`, shape (m,).
    """

    points: list[Configuration]
    samples: PosteriorSamples
    means: NDArray[np.float64]
    clocks_mhz: NDArray[np.intp]
    measured: NDArray[np.bool_]
    resolutions: NDArray[np.float64]


def _promising(
    surrogate: Surrogate, configurations: list[Configuration], limit: int
) -> list[Configuration]:
    """Leave out those whose means most others of their clock dominate, if there are too many."""
    if len(configurations) <= limit:
        return configurations
    means = surrogate.means(configurations)
    time, energy = means.log_time[0], means.log_effective[0]
    clocks_mhz = np.array([one.clock_mhz for one in configurations])
    dominating = np.zeros(len(configurations))
    for clock in np.unique(clocks_mhz):
        places = np.flatnonzero(clocks_mhz == clock)
        better = (time[places, None] < time[None, places]) & (
            energy[places, None] < energy[None, places]
        )
        dominating[places] = better.mean(axis=0)
    kept = np.sort(np.argsort(dominating, kind="stable")[: max(limit, 1)])
    return [configurations[place] for place in kept]


def make_search(
    kind: SearchKind,
    partition: Partition,
    candidates: Sequence[Configuration],
    *,
    static_power_w: float,
    seed: int,
    budget: MeasuringBudget,
    prior: Prior | None = None,
    repeats: bool = True,
) -> PartitionSearch:
    """Return a search of the given kind.

    Args:
        kind: How to search.
        partition: The partition.
        candidates: What the source can measure of it; `none` and duplicates are left out.
        static_power_w: Static power in watts.
        seed: Seed of every random choice, at least 0.
        budget: Its total bounds the number of configurations asked for; initial and batch size are
            followed by `published` and `random`, upper bounds for `kareus`.
        prior: Measurements of other studies to start from (`kareus` only); None without.
        repeats: Whether configurations may be asked for again where noise decides.

    Raises:
        MeasurementError: There is nothing to measure, or the static power is no such figure.
        ConfigError: The budget is empty, or a prior is given to a search that cannot use it.
    """
    if kind is SearchKind.KAREUS:
        return KareusSearch(
            partition,
            candidates,
            static_power_w=static_power_w,
            seed=seed,
            budget=budget,
            prior=prior,
            repeats=repeats,
        )
    if prior is not None:
        raise ConfigError(
            f"search {kind.value!r} cannot start from other studies; use search 'kareus'"
        )
    if kind is SearchKind.PUBLISHED:
        # The published method's trees load scikit-learn: only where they are wanted.
        from kareus.search.published import PublishedSearch

        return PublishedSearch(
            partition, candidates, static_power_w=static_power_w, seed=seed, budget=budget
        )
    return RandomSearch(
        partition, candidates, static_power_w=static_power_w, seed=seed, budget=budget
    )
