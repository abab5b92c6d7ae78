from dataclasses import replace

import numpy as np
import pytest

from kareus.errors import ConfigError
from kareus.search.allocation import StudyAllocator
from kareus.search.budget import Budget, BudgetKind, partition_budget
from kareus.search.kind import SearchKind
from kareus.search.loop import PartitionSearch, make_search
from tests.benchmarks.search_spaces import BenchSpace, synthetic
from tests.search.spaces import SMALL, STATIC_POWER_W, measured

NUMBER = Budget(kind=BudgetKind.NUMBER, num_measurements=1)


def _study(kind: SearchKind = SearchKind.KAREUS) -> dict[str, tuple[BenchSpace, PartitionSearch]]:
    study = {}
    for place, name in enumerate(("fwd_attn", "fwd_mlp", "bwd_mlp")):
        space = synthetic(20 + place, partition=replace(SMALL, name=name))
        search = make_search(
            kind,
            space.partition,
            tuple(space.truth),
            static_power_w=STATIC_POWER_W,
            seed=0,
            budget=partition_budget(space.partition, NUMBER),
        )
        # The default configuration of every clock is measured beside.
        launch = space.partition.launch_points[0]
        search.tell(
            [
                space.measure(one, 0)
                for one in space.truth
                if one.sm_allocation == 21 and one.launch_point is launch
            ]
        )
        study[name] = (space, search)
    return study


def _spend(study, num_measurements: int, weights=None) -> list[tuple[str, int]]:
    allocator = StudyAllocator(
        {name: search for name, (_, search) in study.items()},
        weights=weights or dict.fromkeys(study, 1.0),
        num_measurements=num_measurements,
    )
    order = []
    while request := allocator.ask():
        name, batch = request
        space, search = study[name]
        allocator.tell(name, measured(search, space, batch))
        order.append((name, len(batch)))
    assert allocator.num_counted == sum(count for _, count in order)
    return order


def test_the_budget_is_spent_exactly_and_the_same_way_again():
    order = _spend(_study(), 75)
    assert sum(count for _, count in order) == 75
    assert _spend(_study(), 75) == order


def test_every_partition_gets_an_equal_share_or_24_first():
    assert _spend(_study(), 50)[:3] == [("bwd_mlp", 16), ("fwd_attn", 16), ("fwd_mlp", 16)]
    assert _spend(_study(), 75)[:3] == [("bwd_mlp", 24), ("fwd_attn", 24), ("fwd_mlp", 24)]


def test_the_least_budget_is_equal_shares():
    study = _study()
    _spend(study, 36, {"fwd_attn": 6.0, "fwd_mlp": 2.0, "bwd_mlp": 1.0})
    for name, (space, search) in _study().items():
        search.tell(measured(search, space, search.ask(limit=12)))
        assert search.options() == study[name][1].options()


def test_fewer_than_the_corners_are_refused_with_the_least_number():
    with pytest.raises(ConfigError, match="at least 36"):
        _spend(_study(), 35)
    assert sum(count for _, count in _spend(_study(), 36)) == 36


@pytest.mark.parametrize("weight", [float("nan"), -1.0])
def test_a_senseless_weight_is_refused(weight: float):
    with pytest.raises(ConfigError, match="partition fwd_mlp: weight"):
        _spend(_study(), 60, {"fwd_attn": 1.0, "fwd_mlp": weight, "bwd_mlp": 1.0})


@pytest.mark.parametrize("kind", list(SearchKind))
def test_weight_draws_measurements(kind: SearchKind):
    order = _spend(_study(kind), 84, {"fwd_attn": 1.0, "fwd_mlp": 20.0, "bwd_mlp": 1.0})
    counts = {name: sum(n for one, n in order if one == name) for name, _ in order}
    assert counts["fwd_mlp"] > counts["fwd_attn"]
    assert counts["fwd_mlp"] > counts["bwd_mlp"]


def test_more_than_all_spaces_ends_with_the_spaces():
    study = _study()
    order = _spend(study, 1000)
    assert sum(count for _, count in order) == sum(
        len(space.truth) - 7 for space, _ in study.values()
    )


def _regret(space: BenchSpace, search: PartitionSearch) -> float:
    """Mean relative excess of the best reported option over the true best, per clock and goal."""
    chosen = {one.configuration for one in search.options()}
    total = []
    for clock in SMALL.clocks_mhz:
        for share in (0.0, 0.5, 1.0):
            cost = {
                one: (1 - share) * np.log(t) + share * np.log(e - STATIC_POWER_W * t)
                for one, (t, e) in space.truth.items()
                if one.clock_mhz == clock
            }
            reached = [cost[one] for one in chosen if one in cost]
            total.append(min(reached, default=max(cost.values())) - min(cost.values()))
    return float(np.mean(total))


@pytest.mark.parametrize("num_measurements", [60, 96])
def test_not_worse_than_equal_shares(num_measurements: int):
    weights = {"fwd_attn": 6.0, "fwd_mlp": 2.0, "bwd_mlp": 1.0}
    study = _study()
    _spend(study, num_measurements, weights)
    ours = sum(weights[name] * _regret(*pair) for name, pair in study.items())
    equal = 0.0
    for name, (space, search) in _study().items():
        while search.num_counted < num_measurements // 3:
            batch = search.ask(limit=num_measurements // 3 - search.num_counted)
            search.tell(measured(search, space, batch))
        equal += weights[name] * _regret(space, search)
    assert ours <= equal + 0.01
