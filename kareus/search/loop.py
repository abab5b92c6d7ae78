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

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, PartitionOption
from kareus.core.partition import MeasuringBudget, Partition
from kareus.errors import ConfigError
from kareus.search.acquisition import Acquisition, expected_regret
from kareus.search.base import BaseSearch, RandomSearch
from kareus.search.design import corners, initial_design
from kareus.search.history import average
from kareus.search.smoothing import posterior_means
from kareus.search.surrogate import PosteriorSamples, Prior, Surrogate

# As of this many measurements a batch is a fifth of them rather than `_BATCH_SIZE`.
_BATCH_SIZE = 8
_INITIAL = 24
_NUM_SAMPLES = 32
_LEAST_POINTS = 4


class SearchKind(StrEnum):
    """How a partition is searched; the values are the words of the command line."""

    KAREUS = "kareus"
    PUBLISHED = "published"
    RANDOM = "random"


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
    of 8 up to 72 measurements and grow after that, whatever the budget's own split.

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
        self._cached: tuple[int, list[Configuration], PosteriorSamples] | None = None

    @property
    def expected_regret(self) -> float:
        """Relative cost per execution expected from what is not measured yet."""
        if not self._open():
            return 0.0
        if len(self._history.measured()) < _LEAST_POINTS:
            return 1.0
        points, samples = self._samples()
        return expected_regret(samples, clocks_mhz=_clocks(points), measured=self._mask(points))

    def options(self) -> tuple[PartitionOption, ...]:
        """Return all measured configurations with their posterior means."""
        self._history.require_measurements()
        return posterior_means(
            self.partition,
            self._history.measurements,
            static_power_w=self._history.static_power_w,
            prior=self._prior,
        )

    def _initial_size(self) -> int:
        least = len(corners(self.partition))
        return min(max(least, _INITIAL), self._budget.initial or self._budget.total)

    def _propose(self, room: int) -> tuple[Configuration, ...]:
        pool = self._open()
        if room >= len(pool):
            return tuple(pool)
        missing = self._initial_size() - self.num_counted
        if missing > 0 or len(self._history.measured()) < _LEAST_POINTS:
            known = self._history.measured() | self._history.failed()
            size = min(max(missing, _LEAST_POINTS), room)
            return initial_design(
                self.partition, self._candidates, size, rng=self._rng(), known=known
            )
        size = min(max(_BATCH_SIZE, self.num_counted // 72 * _BATCH_SIZE), room)
        points, samples = self._samples()
        acquisition = Acquisition(samples, clocks_mhz=_clocks(points), measured=self._mask(points))
        return tuple(points[column] for column, _ in acquisition.choose(size))

    def _samples(self) -> tuple[list[Configuration], PosteriorSamples]:
        """Posterior samples at the open and the measured configurations of this step."""
        if self._cached is None or self._cached[0] != self._history.num_told:
            averaged = average(self.partition, self._history.measurements)
            surrogate = Surrogate(
                self.partition,
                averaged,
                static_power_w=self._history.static_power_w,
                prior=self._prior,
            )
            points = [one.configuration for one in averaged] + self._open()
            samples = surrogate.sample(points, _NUM_SAMPLES, self._rng())
            self._cached = (self._history.num_told, points, samples)
        return self._cached[1], self._cached[2]

    def _mask(self, points: Sequence[Configuration]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        measured = self._history.measured()
        return np.array([one in measured for one in points], dtype=np.bool_)


def _clocks(points: Sequence[Configuration]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.array([one.clock_mhz for one in points], dtype=np.intp)


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
