"""Constraints as typed: read into a value, and held against what is known of the study's plans."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kareus.report import format as fmt
from kareus.service import Constraints, PlanSummary, Straggler


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """The form's fields as typed; empty means free.

    Attributes:
        deadline: Seconds per iteration.
        budget: Joules of the whole job per iteration.
        cap: Watts of the whole job.
        stages: Stages that floor, ceiling and clock list are for.
        floor: Lowest clock in MHz; None for free.
        ceiling: Highest clock in MHz; None for free.
        clocks: Clocks and ranges of clocks in MHz, such as `900-1110, 1410`.
        straggler: The stage that is slow; None for none.
        slowdown: How much longer it takes, in per cent.
        max_clocks: Distinct clocks a stage may use; None for any.
    """

    deadline: str = ""
    budget: str = ""
    cap: str = ""
    stages: tuple[int, ...] = ()
    floor: int | None = None
    ceiling: int | None = None
    clocks: str = ""
    straggler: int | None = None
    slowdown: str = ""
    max_clocks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What the fields mean.

    Attributes:
        constraints: The value; None where a field cannot be read, or nothing is constrained.
        empty: Whether nothing is constrained.
        errors: What cannot be, each in a line.
        clashes: What the study's own plans say against it: the solver has the last word.
    """

    constraints: Constraints | None
    empty: bool
    errors: tuple[str, ...]
    clashes: tuple[str, ...]


def read(typed: Typed, *, clocks_mhz: Sequence[int], plans: Sequence[PlanSummary] = ()) -> Reading:
    """Return what the fields mean, with everything that stands against it.

    Args:
        typed: The fields.
        clocks_mhz: Clocks the study measured, ascending.
        plans: The study's Kareus plans, fastest first.
    """
    errors: list[str] = []
    deadline_s = _positive(typed.deadline, "deadline", "s", errors)
    budget_j = _positive(typed.budget, "energy budget", "J", errors)
    cap_w = _positive(typed.cap, "power cap", "W", errors)
    slowdown_pct = _positive(typed.slowdown, "slowdown", "%", errors)
    if typed.straggler is not None and slowdown_pct is None and not typed.slowdown.strip():
        errors.append(f"stage {typed.straggler} is slow by how much? Give per cent")
    listed = _clock_list(typed.clocks, clocks_mhz, errors)
    errors += _empty_range(typed.floor, typed.ceiling, listed)
    if (typed.floor or typed.ceiling or listed) and not typed.stages:
        errors.append("the clock limits are for no stage: choose one at least")
    constraints = Constraints(
        deadline_s=deadline_s,
        energy_budget_j=budget_j,
        power_cap_w=cap_w,
        stage_clocks_mhz=dict.fromkeys(typed.stages, listed) if listed else {},
        clock_floor_mhz=dict.fromkeys(typed.stages, typed.floor) if typed.floor else {},
        clock_ceiling_mhz=dict.fromkeys(typed.stages, typed.ceiling) if typed.ceiling else {},
        straggler=None
        if typed.straggler is None or slowdown_pct is None
        else Straggler(stage=typed.straggler, slowdown_pct=slowdown_pct),
        max_clocks_per_stage=typed.max_clocks,
    )
    empty = not errors and constraints == Constraints()
    return Reading(
        constraints=None if errors or empty else constraints,
        empty=empty,
        errors=tuple(errors),
        clashes=tuple(_clashes(constraints, plans)) if plans else (),
    )


def _positive(text: str, name: str, unit: str, errors: list[str]) -> float | None:
    """A field's number; None where it is empty or no positive number."""
    text = text.strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        errors.append(f"{name} {text!r} is no positive number: give {unit}")
        return None
    return value


def _clock_list(text: str, clocks_mhz: Sequence[int], errors: list[str]) -> tuple[int, ...]:
    """The measured clocks that a list of clocks and ranges names."""
    chosen: set[int] = set()
    for part in filter(None, (one.strip() for one in text.split(","))):
        ends = [one.strip() for one in part.replace("\u2013", "-").split("-")]
        if len(ends) > 2 or not all(one.isascii() and one.isdigit() for one in ends):
            errors.append(f"clocks {part!r} cannot be read: give MHz such as 900-1110, 1410")
            continue
        low, high = int(ends[0]), int(ends[-1])
        found = [clock for clock in clocks_mhz if low <= clock <= high]
        if not found:
            errors.append(
                f"no clock of {part} was measured: there are {clocks_mhz[0]} to "
                f"{fmt.clock(clocks_mhz[-1])} in steps of "
                f"{clocks_mhz[1] - clocks_mhz[0] if len(clocks_mhz) > 1 else 0}"
            )
        chosen.update(found)
    return tuple(sorted(chosen))


def _empty_range(floor: int | None, ceiling: int | None, listed: Sequence[int]) -> list[str]:
    """What leaves a stage without any clock."""
    low, high = floor or 0, ceiling or math.inf
    if low > high:
        return [f"the floor {fmt.clock(floor)} is above the ceiling {fmt.clock(ceiling)}"]
    if listed and not any(low <= clock <= high for clock in listed):
        return ["floor, ceiling and clock list leave no clock: widen one of them"]
    return []


def _clashes(constraints: Constraints, plans: Sequence[PlanSummary]) -> list[str]:
    """What the unconstrained plans say against the limits, alone and together."""
    deadline_s = constraints.deadline_s
    limits: list[tuple[str, str, float, Callable[[PlanSummary], float], Callable[..., str]]] = []
    if constraints.energy_budget_j is not None:
        limits.append(
            ("energy budget", "needs", constraints.energy_budget_j, _job_energy, fmt.energy)
        )
    if constraints.power_cap_w is not None:
        limits.append(("power cap", "draws", constraints.power_cap_w, _power, fmt.power))
    found: list[str] = []
    in_time = list(plans)
    if deadline_s is not None:
        in_time = [plan for plan in plans if plan.iteration_time_s <= deadline_s]
        if not in_time:
            found.append(
                f"deadline {fmt.time(deadline_s)}: the fastest plan takes "
                f"{fmt.time(plans[0].iteration_time_s)}"
            )
    for name, verb, limit, figure, words in limits:
        least = min(map(figure, plans))
        if least > limit:
            found.append(f"{name} {words(limit)}: the least any plan {verb} is {words(least)}")
        elif in_time and (least_in_time := min(map(figure, in_time))) > limit:
            found.append(
                f"deadline {fmt.time(deadline_s)} and {name} {words(limit)}: in that time a plan "
                f"{verb} {words(least_in_time)} at least"
            )
    return found


def _job_energy(plan: PlanSummary) -> float:
    return plan.job_energy_j


def _power(plan: PlanSummary) -> float:
    return plan.average_power_w
