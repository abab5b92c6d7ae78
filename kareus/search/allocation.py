"""One budget for a whole study: which partition gets the next batch.

    allocator = StudyAllocator(searches, weights=weights, num_measurements=N)
    while request := allocator.ask():
        name, batch = request
        allocator.tell(name, measure(batch))

First an initial design of 24, or of an equal share where that is less, for every partition: small
budgets are equal shares. Then half of an equal share each, so that a poor estimate cannot starve
one; the rest, batch by batch, goes where ignorance costs the iteration most: expected
regret of the partition (relative, per execution; see `acquisition`) times its weight, the
partition's share of the iteration's time and energy, multiplicity included.
"""

import math
from collections.abc import Mapping, Sequence

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement
from kareus.errors import ConfigError
from kareus.search.budget import minimum_measurements
from kareus.search.loop import INITIAL_SIZE, PartitionSearch

_SURE_SHARE = 0.5


class StudyAllocator:
    """Spends a study's measurements on its partitions.

    A function of what was told, like the searches themselves: asked and told again in the same
    order it goes on where it was.

    Args:
        searches: The searches, by partition name, with budgets of the whole space.
        weights: Weight of each partition: executions per iteration x time (or energy) of one, in
            any unit; at least 0.
        num_measurements: Measurements of the whole study, baselines not counted.

    Raises:
        ConfigError: The number is below the initial designs' (the message names it), or a weight is
            missing, negative or not finite.
    """

    def __init__(
        self,
        searches: Mapping[str, PartitionSearch],
        *,
        weights: Mapping[str, float],
        num_measurements: int,
    ) -> None:
        least = minimum_measurements(search.partition for search in searches.values())
        if num_measurements < least:
            raise ConfigError(
                f"a budget of {num_measurements} measurements is too small: {len(searches)} "
                f"partitions need {least} for their corner configurations; give at least {least}"
            )
        for name in searches:
            weight = weights.get(name, math.nan)
            if not (math.isfinite(weight) and weight >= 0):
                raise ConfigError(
                    f"partition {name}: weight {weights.get(name)} is not a finite number of at "
                    "least 0; give executions per iteration times time"
                )
        self._searches = dict(sorted(searches.items()))
        self._weights = dict(weights)
        self._num_measurements = num_measurements
        self._regrets: dict[str, tuple[int, float]] = {}

    @property
    def num_counted(self) -> int:
        """Measurements spent so far."""
        return sum(search.num_counted for search in self._searches.values())

    def ask(self) -> tuple[str, tuple[Configuration, ...]] | None:
        """Return a partition's name and its next batch; None when all is spent or exhausted."""
        room = self._num_measurements - self.num_counted
        if room <= 0:
            return None
        for floor in (self._first, self._floor):
            for name, search in self._searches.items():
                missing = floor(search) - search.num_counted
                if missing > 0 and (batch := search.ask(limit=min(missing, room))):
                    return name, batch
        order = sorted(self._searches, key=lambda name: (-self._cost(name), name))
        for name in order:
            if batch := self._searches[name].ask(limit=room):
                return name, batch
        return None

    def tell(self, name: str, results: Sequence[Measurement | FailedMeasurement]) -> None:
        """Take a partition's results, asked for or not.

        Raises:
            MeasurementError: A result cannot be used.
        """
        self._searches[name].tell(results)

    def _first(self, search: PartitionSearch) -> int:
        """Size of a partition's first design, asked for at once."""
        share = self._num_measurements // len(self._searches)
        return min(INITIAL_SIZE, share) if search.partition.searched else 0

    def _floor(self, search: PartitionSearch) -> int:
        """What a partition gets in any case: half of an equal share."""
        share = _SURE_SHARE * self._num_measurements / len(self._searches)
        return math.floor(share) if search.partition.searched else 0

    def _cost(self, name: str) -> float:
        """Expected cost of ignorance in this partition, in the weights' unit."""
        search = self._searches[name]
        counted = search.num_counted
        if name not in self._regrets or self._regrets[name][0] != counted:
            self._regrets[name] = (counted, search.expected_regret)
        return self._weights[name] * self._regrets[name][1]
