import math

import pytest

from kareus.compose.selection import Preference, select_plan
from kareus.core.plan import Method, Plan
from kareus.errors import ConfigError, InfeasibleError


def _plan(number: int, time_s: float, energy_j: float) -> Plan:
    return Plan(
        number=number,
        method=Method.KAREUS,
        iteration_time_s=time_s,
        effective_energy_j=energy_j,
        pipeline_energy_j=energy_j,
        bound_j=None,
        choices=(),
    )


PLANS = [
    _plan(0, 1.0, 100.0),
    _plan(1, 1.1, 70.0),
    _plan(2, 1.5, 60.0),
    _plan(3, 2.0, 55.0),
]


@pytest.mark.parametrize(
    ("limits", "number"),
    [
        ({"preference": Preference.FASTEST}, 0),
        ({"preference": Preference.MOST_FRUGAL}, 3),
        ({"preference": Preference.KNEE}, 1),
        ({}, 1),
        ({"deadline_s": 1.6}, 2),
        ({"deadline_s": 1.0}, 0),
        ({"energy_budget_j": 70.0}, 1),
        ({"power_cap_w": 41.0}, 2),
        ({"deadline_s": 1.6, "preference": Preference.FASTEST}, 0),
        ({"deadline_s": 1.6, "energy_budget_j": 65.0}, 2),
    ],
)
def test_the_right_plan_is_taken(limits, number) -> None:
    assert select_plan(PLANS, **limits).number == number


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"deadline_s": 0.9}, ["deadline 0.9 s", "fastest plan takes 1 s"]),
        ({"energy_budget_j": 50.0}, ["energy budget 50 J", "most frugal plan needs 55 J"]),
        ({"power_cap_w": 10.0}, ["power cap 10 W", "27.5 W"]),
        ({"deadline_s": 1.2, "energy_budget_j": 60.0}, ["clash", "least energy is 70 J"]),
    ],
)
def test_out_of_reach_names_the_best_available(limits, words) -> None:
    with pytest.raises(InfeasibleError) as caught:
        select_plan(PLANS, **limits)
    assert all(word in str(caught.value) for word in words)


def test_senseless_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        select_plan([])
    with pytest.raises(ConfigError, match="deadline nan"):
        select_plan(PLANS, deadline_s=math.nan)


def test_a_single_plan_is_its_own_knee() -> None:
    assert select_plan(PLANS[:1]).number == 0
