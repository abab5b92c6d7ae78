"""Picking one plan of a frontier: by deadline, energy budget, or shape.

Energies here have the scope of `Plan.pipeline_energy_j`: one GPU of each stage, summed over stages.
Multiply by the GPUs per stage for the job.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

from kareus.core.frontier import least_energy_within, least_time_within
from kareus.core.plan import PlanPoint
from kareus.errors import ConfigError, InfeasibleError

_SAME = 1e-9  # relative: what is closer than this to a limit meets it; sums round differently

AnyPlan = TypeVar("AnyPlan", bound=PlanPoint)


class Preference(StrEnum):
    """Which plan to take of those the limits leave."""

    FASTEST = "fastest"
    MOST_FRUGAL = "most-frugal"
    KNEE = "knee"


def select_plan(
    plans: Sequence[AnyPlan],
    *,
    deadline_s: float | None = None,
    energy_budget_j: float | None = None,
    power_cap_w: float | None = None,
    preference: Preference | None = None,
) -> AnyPlan:
    """Return one plan of a frontier.

    Args:
        plans: A frontier, in any order, at least one plan.
        deadline_s: Iteration time not to exceed.
        energy_budget_j: Pipeline energy per iteration not to exceed.
        power_cap_w: Average power not to exceed, one GPU per stage, summed over stages.
        preference: Which of the plans within the limits; None takes the most frugal where only a
            deadline is given, the fastest where a budget or cap is, the knee where nothing is.

    Raises:
        ConfigError: There are no plans, or a limit is not a positive number.
        InfeasibleError: No plan is within the limits; the message names the best value available.
    """
    if not plans:
        raise ConfigError("there is no plan to choose from: the frontier is empty")
    for name, limit, unit in (
        ("deadline", deadline_s, "s"),
        ("energy budget", energy_budget_j, "J"),
        ("power cap", power_cap_w, "W"),
    ):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise ConfigError(f"{name} {limit} {unit}: must be a positive number")
    within = plans_within(
        plans, deadline_s=deadline_s, energy_budget_j=energy_budget_j, power_cap_w=power_cap_w
    )
    if not within:
        raise InfeasibleError(_why_none(plans, deadline_s, energy_budget_j, power_cap_w))
    if preference is None:
        if energy_budget_j is not None or power_cap_w is not None:
            preference = Preference.FASTEST
        elif deadline_s is not None:
            preference = Preference.MOST_FRUGAL
        else:
            preference = Preference.KNEE
    points = [(plan.iteration_time_s, plan.pipeline_energy_j) for plan in within]
    if preference is Preference.FASTEST:
        chosen = least_time_within(points, math.inf)
    elif preference is Preference.MOST_FRUGAL:
        chosen = least_energy_within(points, math.inf)
    else:
        chosen = _knee(points)
    assert chosen is not None
    return within[chosen]


def plans_within(
    plans: Sequence[AnyPlan],
    *,
    deadline_s: float | None,
    energy_budget_j: float | None,
    power_cap_w: float | None,
) -> tuple[AnyPlan, ...]:
    """Return the plans within all limits, in order; None is no limit (see `select_plan`)."""
    limits = [
        math.inf if limit is None else limit * (1 + _SAME)
        for limit in (deadline_s, energy_budget_j, power_cap_w)
    ]
    return tuple(
        plan
        for plan in plans
        if plan.iteration_time_s <= limits[0]
        and plan.pipeline_energy_j <= limits[1]
        and _power_w(plan) <= limits[2]
    )


def _knee(points: Sequence[tuple[float, float]]) -> int:
    """The point farthest below the line from the fastest to the most frugal one.

    Both objectives are scaled to their range first, so the choice does not depend on units.
    """
    fastest, slowest = min(time for time, _ in points), max(time for time, _ in points)
    least, most = min(energy for _, energy in points), max(energy for _, energy in points)
    if slowest == fastest or most == least:
        return min(range(len(points)), key=lambda k: points[k])
    return min(
        range(len(points)),
        key=lambda k: (
            (points[k][0] - fastest) / (slowest - fastest) + (points[k][1] - least) / (most - least)
        ),
    )


def _why_none(
    plans: Sequence[PlanPoint],
    deadline_s: float | None,
    energy_budget_j: float | None,
    power_cap_w: float | None,
) -> str:
    """Name the limit that is out of reach by itself, or the limits that clash."""
    fastest = min(plan.iteration_time_s for plan in plans)
    if deadline_s is not None and deadline_s < fastest:
        return (
            f"deadline {deadline_s:.6g} s is out of reach: the fastest plan takes "
            f"{_upper(fastest)} s; allow at least that"
        )
    least = min(plan.pipeline_energy_j for plan in plans)
    if energy_budget_j is not None and energy_budget_j < least:
        return (
            f"energy budget {energy_budget_j:.6g} J is out of reach: the most frugal plan needs "
            f"{_upper(least)} J of pipeline energy; allow at least that"
        )
    gentlest = min(_power_w(plan) for plan in plans)
    if power_cap_w is not None and power_cap_w < gentlest:
        return (
            f"power cap {power_cap_w:.6g} W is out of reach: the plan of least average power draws "
            f"{_upper(gentlest)} W over one GPU per stage; allow at least that"
        )
    given = [
        text
        for text, limit in (
            (f"deadline {deadline_s} s", deadline_s),
            (f"energy budget {energy_budget_j} J", energy_budget_j),
            (f"power cap {power_cap_w} W", power_cap_w),
        )
        if limit is not None
    ]
    in_time = [plan for plan in plans if deadline_s is None or plan.iteration_time_s <= deadline_s]
    return (
        f"{' and '.join(given)} clash: each can be met, but not together; within the deadline the "
        f"least energy is {min(plan.pipeline_energy_j for plan in in_time):.6g} J and the least "
        f"average power {min(_power_w(plan) for plan in in_time):.6g} W"
    )


def _power_w(plan: PlanPoint) -> float:
    """Average power, one GPU per stage, summed over stages."""
    return plan.pipeline_energy_j / plan.iteration_time_s


def _upper(value: float) -> str:
    """Five significant digits, rounded up: what a message offers must be accepted."""
    digits = 4 - math.floor(math.log10(value))
    return f"{math.ceil(value * 10.0**digits) / 10.0**digits:.10g}"
