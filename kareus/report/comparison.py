"""What a method, or one plan, gains against the baselines.

Energies are compared at pipeline scope (one GPU of each stage); job scope is the same times the
GPUs per stage, so reductions are equal. A reduction is in per cent of the baseline, positive where
less is needed. Unknown (no plan meets the bound) is None, never 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kareus.core.frontier import hypervolume, least_energy_within, least_time_within
from kareus.core.plan import Method, PlanPoint
from kareus.errors import ConfigError
from kareus.report import format as fmt

AnyPlan = TypeVar("AnyPlan", bound=PlanPoint)
Frontiers = Mapping[Method, Sequence[PlanPoint]]

METHOD_NAMES: Mapping[Method, str] = {
    Method.KAREUS: "Kareus",
    Method.NANOBATCHING_PERSEUS: "Nanobatching + Perseus",
    Method.PERSEUS: "Megatron-LM + Perseus",
    Method.MEGATRON: "Megatron-LM",
}

_SAME = 1e-9  # relative: times and energies closer than this are equal for a bound
_SHOWN = 5e-4  # relative: differences up to this show as 0.0 %, so a reader takes them for equal
_HYPERVOLUME_MARGIN = 1.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One plan against one baseline's frontier; reductions in per cent.

    Attributes:
        method: The baseline.
        fastest_time_pct: Time reduction against its fastest plan.
        fastest_energy_pct: Energy reduction against its fastest plan.
        frugal_energy_pct: Energy reduction against its most frugal plan.
        iso_time_energy_pct: Energy reduction against its least-energy plan not slower than this
            one; None if all are slower.
        iso_time_plan: That plan.
        iso_energy_time_pct: Time reduction against its fastest plan not above this one's energy;
            None if all need more.
        iso_energy_plan: That plan.
        dominated_by: A baseline plan that is neither slower nor needs more, and better in one; None
            if there is none.
    """

    method: Method
    fastest_time_pct: float
    fastest_energy_pct: float
    frugal_energy_pct: float
    iso_time_energy_pct: float | None
    iso_time_plan: PlanPoint | None
    iso_energy_time_pct: float | None
    iso_energy_plan: PlanPoint | None
    dominated_by: PlanPoint | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    """What a run of many tokens takes, all GPUs of the job.

    Attributes:
        num_iterations: Iterations, rounded up.
        time_s: Seconds.
        energy_j: Joules.
        energy_kwh: The same in kWh.
        cost: In the currency of the price; None without a price.
        co2_kg: Kilograms; None without a carbon intensity.
    """

    num_iterations: int
    time_s: float
    energy_j: float
    energy_kwh: float
    cost: float | None
    co2_kg: float | None


def compare_frontiers(frontiers: Frontiers) -> dict[str, dict[str, object]]:
    """Return the figures of `kareus compare --json`.

    `max_throughput`: each method's fastest plan against Megatron-LM's. Against Megatron-LM +
    Perseus: `iso_time_energy_reduction_pct`, least energy not slower than its fastest plan;
    `iso_energy_time_reduction_pct`, least time not above the energy of its most frugal plan.
    `hypervolume`: the area a frontier dominates up to 1.1 times the worst time and energy of all
    frontiers, as a share of the area up to the best ones; 1 is ideal.

    Args:
        frontiers: Plans by method. A method without plans is left out; without a baseline the
            figures against it are None.
    """
    frontiers = {method: plans for method, plans in frontiers.items() if plans}
    megatron = _fastest(frontiers.get(Method.MEGATRON, ()))
    perseus = frontiers.get(Method.PERSEUS, ())
    max_throughput: dict[str, object] = {}
    iso_time: dict[str, object] = {}
    iso_energy: dict[str, object] = {}
    for method, plans in frontiers.items():
        fastest = _fastest(plans)
        assert fastest is not None
        if method is not Method.MEGATRON:
            max_throughput[method.value] = {
                "time_reduction_pct": None
                if megatron is None
                else _reduction(fastest.iteration_time_s, megatron.iteration_time_s),
                "energy_reduction_pct": None
                if megatron is None
                else _reduction(fastest.pipeline_energy_j, megatron.pipeline_energy_j),
            }
        if method is not Method.PERSEUS:
            iso_time[method.value], iso_energy[method.value] = _iso_figures(plans, perseus)
    return {
        "max_throughput": max_throughput,
        "iso_time_energy_reduction_pct": iso_time,
        "iso_energy_time_reduction_pct": iso_energy,
        "hypervolume": {m.value: value for m, value in hypervolumes(frontiers).items()},
    }


def hypervolumes(frontiers: Frontiers) -> dict[Method, float]:
    """Return each frontier's share of the area; see `compare_frontiers`."""
    points = {m: _points(plans) for m, plans in frontiers.items() if plans}
    if not points:
        return {}
    every = np.vstack(list(points.values()))
    best, worst = every.min(axis=0), every.max(axis=0) * _HYPERVOLUME_MARGIN
    box = float(np.prod(worst - best))
    return {m: hypervolume(array, worst.tolist()) / box for m, array in points.items()}


def difference(plan: PlanPoint, baseline: Sequence[PlanPoint]) -> Difference:
    """Return what a plan gains against one baseline's frontier.

    Equal time and equal energy are as shown: to 0.05 %, as a plan made for a baseline's time is
    rarely at it to the last digit.

    Args:
        plan: The plan.
        baseline: The baseline's plans, at least one.
    """
    fastest = _fastest(baseline)
    if fastest is None:
        raise ConfigError("a comparison needs at least one plan of the baseline")
    iso_time = _least_energy(baseline, plan.iteration_time_s * (1 + _SHOWN))
    iso_energy = _least_time(baseline, plan.pipeline_energy_j * (1 + _SHOWN))
    return Difference(
        method=fastest.method,
        fastest_time_pct=_reduction(plan.iteration_time_s, fastest.iteration_time_s),
        fastest_energy_pct=_reduction(plan.pipeline_energy_j, fastest.pipeline_energy_j),
        frugal_energy_pct=_reduction(
            plan.pipeline_energy_j, min(other.pipeline_energy_j for other in baseline)
        ),
        iso_time_energy_pct=None
        if iso_time is None
        else _reduction(plan.pipeline_energy_j, iso_time.pipeline_energy_j),
        iso_time_plan=iso_time,
        iso_energy_time_pct=None
        if iso_energy is None
        else _reduction(plan.iteration_time_s, iso_energy.iteration_time_s),
        iso_energy_plan=iso_energy,
        dominated_by=next((other for other in baseline if _dominates(other, plan)), None),
    )


def savings(plan: PlanPoint, frontiers: Frontiers) -> dict[Method, Difference]:
    """Return the differences of a plan against every method that has plans, its own left out."""
    return {
        method: difference(plan, plans)
        for method, plans in frontiers.items()
        if plans and method is not plan.method
    }


def run_cost(
    plan: PlanPoint,
    *,
    num_tokens: float,
    tokens_per_iteration: int,
    gpus_per_stage: int,
    price_per_kwh: float | None = None,
    carbon_kg_per_kwh: float | None = None,
) -> RunCost:
    """Return what training on that many tokens takes, all GPUs of the job.

    Args:
        plan: The plan.
        num_tokens: Tokens of the run, above 0.
        tokens_per_iteration: Tokens one iteration trains on, all replicas.
        gpus_per_stage: GPUs that execute one stage (tp x cp x dp).
        price_per_kwh: Price of electricity; None if unknown.
        carbon_kg_per_kwh: Carbon intensity of electricity; None if unknown.

    Raises:
        ConfigError: A value is not a number at or above 0, or there are no tokens.
    """
    for name, value in (
        ("tokens", num_tokens),
        ("price per kWh", price_per_kwh),
        ("carbon intensity per kWh", carbon_kg_per_kwh),
    ):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name}: {value} must be a number at or above 0")
    if num_tokens == 0:
        raise ConfigError("tokens: 0 must be above 0")
    num_iterations = math.ceil(num_tokens / tokens_per_iteration)
    energy_j = num_iterations * plan.pipeline_energy_j * gpus_per_stage
    energy_kwh = energy_j / 3.6e6
    return RunCost(
        num_iterations=num_iterations,
        time_s=num_iterations * plan.iteration_time_s,
        energy_j=energy_j,
        energy_kwh=energy_kwh,
        cost=None if price_per_kwh is None else energy_kwh * price_per_kwh,
        co2_kg=None if carbon_kg_per_kwh is None else energy_kwh * carbon_kg_per_kwh,
    )


def headline(plan: PlanPoint, frontiers: Frontiers) -> str:
    """Return the sentence above the chart: what the plan buys, or that a baseline wins.

    Against Megatron-LM's plan first, then against Megatron-LM + Perseus at equal time and at equal
    energy. Where a baseline is at least as good in both, the sentence says to keep it.
    """
    differences = savings(plan, frontiers)
    name = (
        f"Plan {plan.number}"
        if plan.method is Method.KAREUS
        else f"{METHOD_NAMES[plan.method]} plan {plan.number}"
    )
    sentence = f"{name} runs an iteration in {fmt.time(plan.iteration_time_s)}"
    megatron = differences.get(Method.MEGATRON)
    if megatron is None:
        sentence += f" with {fmt.energy(plan.pipeline_energy_j)}"
    else:
        sentence += f", {_against(megatron)}"
    sentences = [sentence + "."]
    for method in (Method.NANOBATCHING_PERSEUS, Method.PERSEUS, Method.MEGATRON):
        found = differences.get(method)
        if found is not None and found.dominated_by is not None:
            sentences.append(_baseline_wins(plan, found.dominated_by))
            return " ".join(sentences)
    perseus = differences.get(Method.PERSEUS)
    if perseus is not None:
        sentences.append(_against_perseus(perseus))
    return " ".join(sentences)


def _points(plans: Sequence[PlanPoint]) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return (time, pipeline energy) of the plans, shape (n, 2)."""
    return np.array(
        [(plan.iteration_time_s, plan.pipeline_energy_j) for plan in plans], dtype=np.float64
    ).reshape(-1, 2)


def _fastest(plans: Sequence[AnyPlan]) -> AnyPlan | None:
    """Return the fastest plan."""
    return min(
        plans, key=lambda plan: (plan.iteration_time_s, plan.pipeline_energy_j), default=None
    )


def _least_energy(plans: Sequence[AnyPlan], deadline_s: float) -> AnyPlan | None:
    """Return the least-energy plan not slower."""
    position = least_energy_within(_points(plans), deadline_s * (1 + _SAME))
    return None if position is None else plans[position]


def _least_time(plans: Sequence[AnyPlan], energy_j: float) -> AnyPlan | None:
    """Return the fastest plan not above the energy."""
    position = least_time_within(_points(plans), energy_j * (1 + _SAME))
    return None if position is None else plans[position]


def _reduction(value: float, baseline: float) -> float:
    """Return the reduction in per cent of the baseline."""
    return 100.0 * (1.0 - value / baseline)


def _iso_figures(
    plans: Sequence[PlanPoint], perseus: Sequence[PlanPoint]
) -> tuple[float | None, float | None]:
    """Return the iso-time energy and the iso-energy time reduction against a frontier's ends."""
    fastest = _fastest(perseus)
    if fastest is None:
        return None, None
    frugal = min(perseus, key=lambda plan: (plan.pipeline_energy_j, plan.iteration_time_s))
    at_time = _least_energy(plans, fastest.iteration_time_s)
    at_energy = _least_time(plans, frugal.pipeline_energy_j)
    return (
        None
        if at_time is None
        else _reduction(at_time.pipeline_energy_j, fastest.pipeline_energy_j),
        None
        if at_energy is None
        else _reduction(at_energy.iteration_time_s, frugal.iteration_time_s),
    )


def _dominates(other: PlanPoint, plan: PlanPoint) -> bool:
    """Return whether the other is nowhere worse and visibly better in one."""
    time_pct = _reduction(other.iteration_time_s, plan.iteration_time_s)
    energy_pct = _reduction(other.pipeline_energy_j, plan.pipeline_energy_j)
    nowhere_worse = time_pct >= -100 * _SAME and energy_pct >= -100 * _SAME
    return nowhere_worse and not (fmt.is_nothing(time_pct) and fmt.is_nothing(energy_pct))


def _against(found: Difference) -> str:
    """Return `9.2 % faster than Megatron-LM at 11.8 % less energy`."""
    name = METHOD_NAMES[found.method]
    time_pct, energy_pct = found.fastest_time_pct, found.fastest_energy_pct
    speed = (
        f"as fast as {name}" if fmt.is_nothing(time_pct) else f"{fmt.speed(time_pct)} than {name}"
    )
    return f"{speed} at {fmt.reduction(energy_pct, 'energy')}"


def _against_perseus(found: Difference) -> str:
    """Return the second sentence: equal time and equal energy."""
    name = METHOD_NAMES[found.method]
    parts = [
        f"{fmt.speed(found.fastest_time_pct)} than its fastest plan"
        if found.iso_time_energy_pct is None
        else f"{fmt.reduction(found.iso_time_energy_pct, 'energy')} at equal time",
        f"{fmt.reduction(found.frugal_energy_pct, 'energy')} than its most frugal plan"
        if found.iso_energy_time_pct is None
        else f"{fmt.reduction(found.iso_energy_time_pct, 'time')} at equal energy",
    ]
    return f"Against {name}: {', '.join(parts)}."


def _baseline_wins(plan: PlanPoint, winner: PlanPoint) -> str:
    """Return the sentence that tells the reader to keep a baseline."""
    time_pct = _reduction(winner.iteration_time_s, plan.iteration_time_s)
    energy_pct = _reduction(winner.pipeline_energy_j, plan.pipeline_energy_j)
    name = METHOD_NAMES[winner.method]
    which = name if winner.method is Method.MEGATRON else f"{name} (its plan {winner.number})"
    speed = "as fast" if fmt.is_nothing(time_pct) else fmt.speed(time_pct)
    return (
        f"Keep the baseline: {which} is {speed} "
        f"at {fmt.reduction(energy_pct, 'energy')} than this plan."
        if not fmt.is_nothing(energy_pct)
        else f"Keep the baseline: {which} is {speed} at the same energy."
    )
