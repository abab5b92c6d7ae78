"""How many measurements a partition, or a whole study, may take.

`published`: what the paper's artifact uses (engine table), no more than the space. `fast`: a tenth
of the space, at least 24 and at most 72, no more than the space. `exhaustive`: all. A number: so
many for the whole study, given to partitions as the search goes (`allocation`). The baselines'
configurations are measured beside all of these and do not count.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kareus.core.partition import MeasuringBudget, Partition
from kareus.errors import ConfigError
from kareus.search.design import corners

_FAST_SHARE = 0.1
_FAST_LEAST = 24
_FAST_MOST = 72
_INITIAL_SHARE = 1 / 3
_BATCH_SIZE = 8


# More measurements than this many digits say no study has room for.
_MOST_DIGITS = 12


class BudgetKind(StrEnum):
    """Named budgets, and `number` for a count of the whole study."""

    PUBLISHED = "published"
    FAST = "fast"
    EXHAUSTIVE = "exhaustive"
    NUMBER = "number"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What was asked for with `--budget`.

    Attributes:
        kind: Named budget or `number`.
        num_measurements: Measurements of the whole study where the kind is `number`, else None.
    """

    kind: BudgetKind
    num_measurements: int | None = None

    def __str__(self) -> str:
        return self.kind.value if self.num_measurements is None else str(self.num_measurements)


def parse_budget(text: str) -> Budget:
    """Return the budget written as `published`, `fast`, `exhaustive` or a positive number.

    Raises:
        ConfigError: It is none of these.
    """
    word = text.strip().lower()
    named = [kind for kind in BudgetKind if kind is not BudgetKind.NUMBER]
    for kind in named:
        if word == kind.value:
            return Budget(kind=kind)
    if word.isascii() and word.isdigit() and len(word) <= _MOST_DIGITS and int(word) > 0:
        return Budget(kind=BudgetKind.NUMBER, num_measurements=int(word))
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    raise ConfigError(
        f"budget {shown!r} is neither {', '.join(kind.value for kind in named)} nor a positive "
        f"number of measurements of at most {_MOST_DIGITS} digits"
    )


def partition_budget(partition: Partition, budget: Budget) -> MeasuringBudget:
    """Return the measuring budget of one partition.

    With a number, the bound is the whole space: the study's allocator decides how much of it is
    used (`allocation.StudyAllocator`).
    """
    size = len(partition.space())
    if not partition.searched or budget.kind is BudgetKind.EXHAUSTIVE:
        return MeasuringBudget(initial=size, num_batches=0, batch_size=0)
    if budget.kind is BudgetKind.NUMBER:
        initial = min(max(_FAST_LEAST, len(corners(partition))), size)
        return _split(size, initial, _BATCH_SIZE)
    if budget.kind is BudgetKind.PUBLISHED and partition.published_budget is not None:
        published = partition.published_budget
        if published.total <= size:
            return published
        scale = size / published.total
        batch = math.floor(published.batch_size * scale)
        return MeasuringBudget(
            initial=size - published.num_batches * batch,
            num_batches=published.num_batches if batch else 0,
            batch_size=batch,
        )
    total = min(max(math.floor(_FAST_SHARE * size), _FAST_LEAST), _FAST_MOST, size)
    least = max(round(_INITIAL_SHARE * total), min(len(corners(partition)), total))
    return _split(total, least, _BATCH_SIZE)


def _split(total: int, least_initial: int, batch_size: int) -> MeasuringBudget:
    """As many whole batches as leave at least `least_initial` for the initial design."""
    num_batches = (total - least_initial) // batch_size
    return MeasuringBudget(
        initial=total - num_batches * batch_size,
        num_batches=num_batches,
        batch_size=batch_size if num_batches else 0,
    )


def minimum_measurements(partitions: Iterable[Partition]) -> int:
    """Return the least number of measurements a study of these partitions needs.

    The corners of each searched partition: {lowest, highest clock} x {fewest, most SMs} per launch
    point.
    """
    return sum(len(corners(one)) for one in partitions if one.searched)
