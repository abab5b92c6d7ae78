"""What all searches of a partition share, and the random one.

A batch may be told in parts and in any order within one `tell`; `ask` before all of it is told
returns what is missing.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, PartitionOption
from kareus.core.partition import MeasuringBudget, Partition
from kareus.errors import ConfigError, MeasurementError
from kareus.search.history import History, measured_options
from kareus.search.space import searchable


class BaseSearch:
    """What all searches share: history, budget, batches told in parts.

    Args:
        partition: The partition.
        candidates: What the source can measure of it.
        static_power_w: Static power in watts.
        seed: Seed of every random choice.
        budget: Its total bounds the number of configurations asked for.
    """

    def __init__(
        self,
        partition: Partition,
        candidates: Sequence[Configuration],
        *,
        static_power_w: float,
        seed: int,
        budget: MeasuringBudget,
    ) -> None:
        self._candidates = searchable(partition, candidates)
        if not self._candidates:
            raise MeasurementError(
                f"partition {partition.name}: its source offers no configuration to measure; "
                "give measurements of it or choose another source"
            )
        if budget.total < 1:
            raise ConfigError(
                f"partition {partition.name}: a budget of {budget.total} measurements finds "
                "nothing; give at least 1"
            )
        self._history = History(partition, static_power_w=static_power_w)
        self._seed = seed
        self._budget = budget
        self._batch: tuple[Configuration, ...] = ()

    @property
    def partition(self) -> Partition:
        """The partition searched."""
        return self._history.partition

    @property
    def num_counted(self) -> int:
        """Results told that count against the budget."""
        return self._history.num_counted

    @property
    def hypervolume_trace(self) -> tuple[tuple[int, float], ...]:
        """(measurements, share of the box of all measured values) after every tell."""
        return self._history.hypervolume_trace()

    @property
    def expected_regret(self) -> float:
        """Falls with the number of measurements; 0 when the space is exhausted."""
        return 1.0 / (1 + self._history.num_told) if self._open() else 0.0

    def ask(self, limit: int | None = None) -> tuple[Configuration, ...]:
        """Return the next batch, or what is missing of the last one."""
        if self._history.pending:
            return tuple(one for one in self._batch if one in self._history.pending)
        history = self._history
        room = self._budget.total - history.num_counted
        if limit is not None:
            room = min(room, limit)
        if history.num_counted >= min(self._initial_size(), self._budget.total):
            history.require_measurements()
        if room <= 0:
            return ()
        self._batch = self._propose(room)
        history.pending = set(self._batch)
        return self._batch

    def next_repeat(self, configuration: Configuration) -> int:
        """Return how often the configuration was measured."""
        return self._history.next_repeat(configuration)

    def tell(self, results: Sequence[Measurement | FailedMeasurement]) -> None:
        """Take results, asked for or not."""
        self._history.add(results)

    def options(self) -> tuple[PartitionOption, ...]:
        """Return all measured configurations with their measured values."""
        self._history.require_measurements()
        return measured_options(self.partition, self._history.measurements)

    def _open(self) -> list[Configuration]:
        """Candidates neither measured nor failed."""
        closed = self._history.measured() | self._history.failed()
        return [one for one in self._candidates if one not in closed]

    def _rng(self) -> np.random.Generator:
        """Generator of this step: a function of seed, partition and number of results told."""
        name = zlib.crc32(self.partition.name.encode())
        return np.random.default_rng([self._seed, name, self._history.num_told])

    def _initial_size(self) -> int:
        """Measurements before the first fit."""
        return self._budget.initial

    def _propose(self, room: int) -> tuple[Configuration, ...]:
        """Choose the next batch, at most `room`; empty when the space is exhausted."""
        raise NotImplementedError


class RandomSearch(BaseSearch):
    """Configurations drawn without replacement: the baseline every search must beat."""

    def _propose(self, room: int) -> tuple[Configuration, ...]:
        size = self._budget.initial if self.num_counted == 0 else self._budget.batch_size
        return drawn(self._open(), min(size or self._budget.total, room), self._rng())


def drawn(
    pool: Sequence[Configuration], num_configurations: int, rng: np.random.Generator
) -> tuple[Configuration, ...]:
    """Return so many of the pool without replacement; all of it if it is smaller."""
    if not pool:
        return ()
    places = rng.choice(len(pool), size=min(num_configurations, len(pool)), replace=False)
    return tuple(pool[place] for place in places)
