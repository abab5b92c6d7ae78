import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import MeasuringBudget
from kareus.errors import ConfigError
from kareus.search.budget import (
    Budget,
    BudgetKind,
    minimum_measurements,
    parse_budget,
    partition_budget,
)
from kareus.search.design import corners
from tests.benchmarks.search_spaces import LAUNCH_POINTS, make_partition

FAST = Budget(kind=BudgetKind.FAST)


def test_words_and_numbers_are_read():
    assert parse_budget("Published ") == Budget(kind=BudgetKind.PUBLISHED)
    assert parse_budget("exhaustive").kind is BudgetKind.EXHAUSTIVE
    assert parse_budget("400") == Budget(kind=BudgetKind.NUMBER, num_measurements=400)
    assert str(parse_budget("400")) == "400"


@pytest.mark.parametrize("text", ["", "quick", "-5", "0", "1.5", "number", "12x", "²"])
def test_anything_else_is_refused_with_what_is_allowed(text: str):
    with pytest.raises(ConfigError, match="published, fast, exhaustive nor a positive number"):
        parse_budget(text)


def test_published_budget_is_the_table_and_scaled_to_a_smaller_space():
    partition = make_partition()
    published = Budget(kind=BudgetKind.PUBLISHED)
    assert partition_budget(partition, published) == MeasuringBudget(
        initial=96, num_batches=4, batch_size=32
    )
    small = make_partition(clocks_mhz=(900, 1410))
    scaled = partition_budget(small, published)
    assert scaled.total == 80
    assert scaled.num_batches == 4


@pytest.mark.parametrize(
    ("clocks", "sms", "launches", "total"),
    [(18, 10, 4, 72), (18, 20, 3, 72), (18, 10, 3, 54), (18, 10, 1, 24), (2, 5, 2, 20)],
)
def test_fast_budget_is_a_tenth_between_24_and_72(clocks, sms, launches, total):
    partition = make_partition(
        clocks_mhz=tuple(range(900, 900 + 30 * clocks, 30)),
        sm_allocations=tuple(range(1, sms + 1)),
        launch_points=LAUNCH_POINTS[:launches],
    )
    budget = partition_budget(partition, FAST)
    assert budget.total == total
    assert budget.initial >= min(len(corners(partition)), total)


@given(clocks=st.integers(1, 30), sms=st.integers(1, 20), launches=st.integers(1, 4))
def test_no_budget_exceeds_the_space(clocks: int, sms: int, launches: int):
    partition = make_partition(
        clocks_mhz=tuple(range(900, 900 + 30 * clocks, 30)),
        sm_allocations=tuple(range(1, sms + 1)),
        launch_points=LAUNCH_POINTS[:launches],
    )
    size = len(partition.space())
    for kind in BudgetKind:
        number = 50 if kind is BudgetKind.NUMBER else None
        budget = partition_budget(partition, Budget(kind=kind, num_measurements=number))
        assert 1 <= budget.total <= size
        assert budget.initial >= 1
    assert partition_budget(partition, Budget(kind=BudgetKind.EXHAUSTIVE)).total == size


def test_clock_only_units_take_all_their_clocks_and_need_no_minimum():
    partition = make_partition(sm_allocations=(), launch_points=())
    assert partition_budget(partition, FAST).total == 18
    one_launch = make_partition(launch_points=(LaunchPoint.NORM_0,))
    assert minimum_measurements([partition, one_launch, make_partition()]) == 4 + 16
