import math

import numpy as np
import pytest

from kareus.compose.constraints import compose_by_clock, solve_constrained
from kareus.compose.limits import Constraints, Straggler
from kareus.core.pipeline import one_f_one_b
from kareus.core.plan import Plan
from kareus.errors import ConfigError, InfeasibleError
from tests.compose.linear_oracle import least_effective_energy_j
from tests.compose.test_baselines import CLOCKS, PARTITIONS, RECIPES, STATIC_W, measured

PIPELINE = one_f_one_b(2, 4)
OPTIONS = compose_by_clock(RECIPES, PARTITIONS, measured(0), static_power_w=STATIC_W)
GPUS = 8


def solve(**limits):
    return solve_constrained(
        PIPELINE,
        OPTIONS,
        Constraints(**limits),
        static_power_w=STATIC_W,
        gpus_per_stage=GPUS,
        num_plans=12,
    )


FREE = solve()
FASTEST, FRUGAL = FREE.plans[0], FREE.plans[-1]


def _clocks(plan: Plan) -> list[set[int]]:
    return [{option.clock_mhz for option in stage} for stage in plan.choices]


def test_options_come_clock_by_clock() -> None:
    for kind, by_clock in OPTIONS.items():
        assert kind in RECIPES
        assert tuple(by_clock) == CLOCKS
        assert all(o.clock_mhz == clock for clock, own in by_clock.items() for o in own)


def test_deadline_takes_the_most_frugal_plan_within() -> None:
    deadline = 0.7 * FASTEST.iteration_time_s + 0.3 * FRUGAL.iteration_time_s
    found = solve(deadline_s=deadline)
    assert found.recommended.iteration_time_s <= deadline
    assert found.recommended.pipeline_energy_j == min(p.pipeline_energy_j for p in found.plans)
    assert found.recommended.gap < 0.02


def test_energy_budget_takes_nearly_the_fastest_possible() -> None:
    budget = 0.5 * (FASTEST.pipeline_energy_j + FRUGAL.pipeline_energy_j)
    plan = solve(energy_budget_j=budget * GPUS).recommended
    assert plan.pipeline_energy_j <= budget
    # No plan within the budget can be faster than where the relaxation needs all of it.
    merged = {k: tuple(o for own in by.values() for o in own) for k, by in OPTIONS.items()}
    low, high = FASTEST.iteration_time_s, FRUGAL.iteration_time_s
    for _ in range(40):
        middle = 0.5 * (low + high)
        energy = least_effective_energy_j(PIPELINE, merged, middle) + 2 * STATIC_W * middle
        low, high = (middle, high) if energy > budget else (low, middle)
    assert high * (1 - 1e-9) <= plan.iteration_time_s <= high * 1.02


def test_power_cap_of_the_job() -> None:
    cap = 0.5 * (FASTEST.average_power_w + FRUGAL.average_power_w) * GPUS
    plan = solve(power_cap_w=cap).recommended
    assert plan.average_power_w * GPUS <= cap
    faster = [p for p in FREE.plans if p.average_power_w * GPUS <= cap]
    assert plan.iteration_time_s <= faster[0].iteration_time_s


def test_power_cap_below_the_most_frugal_plan_is_met_by_going_slower() -> None:
    cap = 0.97 * FRUGAL.average_power_w * GPUS
    plan = solve(power_cap_w=cap).recommended
    assert plan.average_power_w * GPUS <= cap
    assert plan.iteration_time_s > FRUGAL.iteration_time_s


def test_clock_limits_hold_per_stage() -> None:
    found = solve(
        stage_clocks_mhz={0: (900, 1104)}, clock_floor_mhz={1: 1002}, clock_ceiling_mhz={1: 1206}
    )
    for plan in found.plans:
        first, second = _clocks(plan)
        assert first <= {900, 1104}
        assert second <= {1002, 1104, 1206}
        assert plan.gap >= -1e-9


def test_straggler_lets_the_others_slow_down_at_no_cost() -> None:
    slow = solve(straggler=Straggler(stage=1, slowdown_pct=30.0))
    fastest = slow.plans[0]
    assert fastest.iteration_time_s > FASTEST.iteration_time_s
    # At its fastest the other stage runs below the clocks it needs without a straggler.
    assert np.mean([o.clock_mhz for o in fastest.choices[0]]) < np.mean(
        [o.clock_mhz for o in FASTEST.choices[0]]
    )
    unslowed = {o.effective_energy_j for by in OPTIONS.values() for own in by.values() for o in own}
    assert {o.effective_energy_j for o in fastest.choices[1]} <= unslowed


@pytest.mark.parametrize("most", [1, 2])
def test_few_clocks_per_stage(most) -> None:
    found = solve(max_clocks_per_stage=most)
    for plan in found.plans:
        assert all(len(clocks) <= most for clocks in _clocks(plan))
        best = min(
            p.pipeline_energy_j
            for p in FREE.plans
            if p.iteration_time_s <= plan.iteration_time_s * (1 + 1e-9)
        )
        assert plan.pipeline_energy_j >= best * (1 - 0.02)
    assert found.plans[0].iteration_time_s <= FASTEST.iteration_time_s * 1.001


def test_one_clock_per_stage_agrees_with_enumeration() -> None:
    found = solve(max_clocks_per_stage=1)
    deadline = found.plans[len(found.plans) // 2].iteration_time_s
    ours = min(p.pipeline_energy_j for p in found.plans if p.iteration_time_s <= deadline)
    best = math.inf
    for first in CLOCKS:
        for second in CLOCKS:
            merged = {
                kind: by_clock[(first, second)[kind[0]]] for kind, by_clock in OPTIONS.items()
            }
            energy = least_effective_energy_j(PIPELINE, merged, deadline)
            if energy is not None:
                best = min(best, energy + 2 * STATIC_W * deadline)
    assert ours <= best * 1.02


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"deadline_s": 1e-4}, ["deadline", "out of reach", "fastest iteration takes"]),
        ({"energy_budget_j": 1.0}, ["energy budget 1.0 J", "least energy of the job"]),
        ({"power_cap_w": 1.0}, ["power cap 1.0 W", "least average power of the job"]),
        (
            {"clock_floor_mhz": {1: 1300}, "clock_ceiling_mhz": {1: 1000}},
            ["stage 1", "clock floor 1300", "clock ceiling 1000"],
        ),
        ({"stage_clocks_mhz": {0: (905,)}}, ["stage 0", "clock list [905]", "900 to 1410"]),
        (
            {
                "deadline_s": FASTEST.iteration_time_s * 1.01,
                "clock_ceiling_mhz": {0: 1000},
                "clock_floor_mhz": {1: 1002},
            },
            ["deadline", "ceiling of stage 0 (1000 MHz) clash"],
        ),
        (
            {
                "deadline_s": FASTEST.iteration_time_s * 1.05,
                "straggler": Straggler(stage=0, slowdown_pct=40.0),
            },
            ["deadline", "straggler (stage 0, 40 % slower)"],
        ),
        (
            {
                "deadline_s": FASTEST.iteration_time_s * 1.01,
                "energy_budget_j": FRUGAL.pipeline_energy_j * GPUS * 1.01,
            },
            ["deadline", "energy budget", "clash"],
        ),
        (
            {
                "deadline_s": FASTEST.iteration_time_s * 1.01,
                "power_cap_w": FRUGAL.average_power_w * GPUS,
            },
            ["deadline", "power cap", "clash"],
        ),
    ],
)
def test_clashes_are_named(limits, words) -> None:
    with pytest.raises(InfeasibleError) as caught:
        solve(**limits)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "limits",
    [
        {"deadline_s": -1.0},
        {"energy_budget_j": math.nan},
        {"clock_floor_mhz": {2: 900}},
        {"straggler": Straggler(stage=0, slowdown_pct=-5.0)},
        {"max_clocks_per_stage": 0},
    ],
)
def test_senseless_limits_are_refused(limits) -> None:
    with pytest.raises(ConfigError):
        solve(**limits)
