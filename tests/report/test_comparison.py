import dataclasses

import pytest

from kareus.core.plan import Method
from kareus.errors import ConfigError
from kareus.report.comparison import (
    compare_frontiers,
    difference,
    headline,
    hypervolumes,
    run_cost,
    savings,
)
from tests.schedule.sample import make_frontiers, make_workload


@dataclasses.dataclass(frozen=True)
class Point:
    """A plan's figures without its choices."""

    number: int
    method: Method
    iteration_time_s: float
    pipeline_energy_j: float
    effective_energy_j: float = 1.0
    bound_j: float | None = None


def points(method, *pairs):
    return [Point(n, method, time_s, energy_j) for n, (time_s, energy_j) in enumerate(pairs)]


FRONTIERS = {
    Method.KAREUS: points(Method.KAREUS, (4.0, 1100.0), (5.0, 900.0), (6.0, 800.0)),
    Method.PERSEUS: points(Method.PERSEUS, (5.0, 1200.0), (7.5, 1000.0)),
    Method.MEGATRON: points(Method.MEGATRON, (5.0, 1250.0)),
}


def test_figures_by_hand():
    figures = compare_frontiers(FRONTIERS)
    kareus = figures["max_throughput"]["kareus"]
    assert kareus["time_reduction_pct"] == pytest.approx(20.0)
    assert kareus["energy_reduction_pct"] == pytest.approx(12.0)
    # Least energy not slower than 5.0 s is 900 J, of 1200 J.
    assert figures["iso_time_energy_reduction_pct"]["kareus"] == pytest.approx(25.0)
    # Least time not above 1000 J is 5.0 s, of 7.5 s.
    assert figures["iso_energy_time_reduction_pct"]["kareus"] == pytest.approx(100 / 3)
    # Megatron-LM needs more than 1000 J: unknown, not zero.
    assert figures["iso_energy_time_reduction_pct"]["megatron"] is None
    assert "perseus" not in figures["iso_time_energy_reduction_pct"]
    assert "megatron" not in figures["max_throughput"]


def test_hypervolume_by_hand():
    # Reference (8.25, 1375), best (4, 800).
    box = 4.25 * 575
    area = 4.25 * 275 + 3.25 * 200 + 2.25 * 100
    assert hypervolumes(FRONTIERS)[Method.KAREUS] == pytest.approx(area / box)
    assert hypervolumes({}) == {}


def test_missing_baselines_are_unknown():
    figures = compare_frontiers({Method.KAREUS: FRONTIERS[Method.KAREUS], Method.PERSEUS: []})
    assert figures["max_throughput"]["kareus"]["time_reduction_pct"] is None
    assert figures["iso_time_energy_reduction_pct"]["kareus"] is None


def test_equal_up_to_rounding_is_equal():
    perseus = points(Method.PERSEUS, (5.0 * (1 - 1e-12), 1200.0))
    found = difference(Point(0, Method.KAREUS, 5.0, 900.0), perseus)
    assert found.iso_time_energy_pct == pytest.approx(25.0)


def test_full_plans_work_too():
    frontiers = make_frontiers(make_workload())
    figures = compare_frontiers(frontiers)
    volumes = figures["hypervolume"]
    assert volumes["kareus"] > volumes["nanobatching-perseus"] > volumes["perseus"]
    assert volumes["perseus"] > volumes["megatron"] > 0
    assert set(savings(frontiers[Method.KAREUS][0], frontiers)) == set(Method) - {Method.KAREUS}


def test_the_sentence():
    plan = FRONTIERS[Method.KAREUS][0]
    assert headline(plan, FRONTIERS).replace("\u2009", " ") == (
        "Plan 0 runs an iteration in 4.00 s, 20.0 % faster than Megatron-LM at 12.0 % less energy. "
        "Against Megatron-LM + Perseus: 20.0 % faster than its fastest plan, "
        "46.7 % less time at equal energy."
    )
    frugal = headline(FRONTIERS[Method.KAREUS][2], FRONTIERS).replace("\u2009", " ")
    assert "20.0 % slower than Megatron-LM at 36.0 % less energy" in frugal
    assert "33.3 % less energy at equal time" in frugal
    assert "20.0 % less energy than its most frugal plan" in frugal


def test_a_baseline_may_win_and_is_named():
    plan = Point(1, Method.KAREUS, 6.0, 1300.0)
    text = headline(plan, {**FRONTIERS, Method.KAREUS: [plan]}).replace("\u2009", " ")
    assert "20.0 % slower than Megatron-LM at 4.0 % more energy" in text
    assert text.endswith(
        "Keep the baseline: Megatron-LM + Perseus (its plan 0) is 16.7 % faster "
        "at 7.7 % less energy than this plan."
    )


def test_a_tie_does_not_win():
    plan = Point(0, Method.KAREUS, 5.0, 1200.0)
    assert "Keep" not in headline(plan, {**FRONTIERS, Method.KAREUS: [plan]})


def test_sentence_without_any_baseline():
    plan = FRONTIERS[Method.KAREUS][0]
    text = headline(plan, {Method.KAREUS: FRONTIERS[Method.KAREUS]}).replace("\u2009", " ")
    assert text == "Plan 0 runs an iteration in 4.00 s with 1.10 kJ."


def test_cost_of_a_run_counts_every_gpu():
    cost = run_cost(
        FRONTIERS[Method.KAREUS][1],
        num_tokens=1_000_001,
        tokens_per_iteration=1000,
        gpus_per_stage=8,
        price_per_kwh=0.2,
        carbon_kg_per_kwh=0.4,
    )
    assert cost.num_iterations == 1001
    assert cost.time_s == pytest.approx(5005.0)
    assert cost.energy_j == pytest.approx(1001 * 900 * 8)
    assert cost.energy_kwh == pytest.approx(cost.energy_j / 3.6e6)
    assert cost.cost == pytest.approx(0.2 * cost.energy_kwh)
    assert cost.co2_kg == pytest.approx(0.4 * cost.energy_kwh)


def test_unknown_price_is_unknown_cost():
    plan = FRONTIERS[Method.KAREUS][1]
    cost = run_cost(plan, num_tokens=1.0, tokens_per_iteration=1000, gpus_per_stage=8)
    assert (cost.num_iterations, cost.cost, cost.co2_kg) == (1, None, None)


@pytest.mark.parametrize("field", ["num_tokens", "price_per_kwh", "carbon_kg_per_kwh"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bad_cost_inputs(field, value):
    settings = {"num_tokens": 1e9, "tokens_per_iteration": 10, "gpus_per_stage": 1, field: value}
    with pytest.raises(ConfigError, match="at or above 0"):
        run_cost(FRONTIERS[Method.KAREUS][0], **settings)


def test_a_plan_made_for_a_baselines_time_is_at_equal_time():
    plan = Point(0, Method.KAREUS, 5.0 * (1 - 1e-4), 900.0)
    found = difference(plan, FRONTIERS[Method.PERSEUS])
    assert found.iso_time_energy_pct == pytest.approx(25.0)
    sentence = headline(plan, {**FRONTIERS, Method.KAREUS: [plan]})
    assert "25.0\u2009% less energy at equal time" in sentence
    visibly_faster = Point(0, Method.KAREUS, 5.0 * (1 - 1e-3), 900.0)
    assert difference(visibly_faster, FRONTIERS[Method.PERSEUS]).iso_time_energy_pct is None
