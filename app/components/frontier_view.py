"""What the Frontier page shows: the plans of a study, and the one that is chosen among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app import url
from app.backend import plan_summaries, study_detail
from kareus.core.plan import Method
from kareus.errors import InfeasibleError, NotFoundError
from kareus.report.comparison import METHOD_NAMES
from kareus.report.data import FrontierSetting, Scope
from kareus.service import PlanSummary, Preference, StudyDetail, StudySummary, select_plan


class Objective(StrEnum):
    """The ways to choose a plan without pointing at it."""

    FASTEST = "Fastest"
    EQUAL_TIME = "Equal time"
    KNEE = "Knee"
    FRUGAL = "Most frugal"
    DEADLINE = "Deadline"
    BUDGET = "Energy budget"


@dataclass(frozen=True, kw_only=True)
class View:
    """A study's frontiers with the plan the URL names.

    Attributes:
        detail: The study.
        frontiers: Every method's plans, fastest first.
        setting: What the plans share, with the scope the URL names.
        selected: The plan chosen.
        pinned: Plans to compare it with.
        shown: The methods drawn.
    """

    detail: StudyDetail
    frontiers: Mapping[Method, Sequence[PlanSummary]]
    setting: FrontierSetting
    selected: PlanSummary
    pinned: tuple[PlanSummary, ...]
    shown: tuple[Method, ...]


def build_view(study: StudySummary) -> View:
    """Return the view that the URL describes; a plan that does not exist gives the default one.

    Raises:
        NotFoundError: If the study has no plans.
    """
    detail = study_detail(study.id, study.state)
    frontiers = plan_summaries(study.id, study.state)
    if not frontiers:
        raise NotFoundError(f"study {study.name} has no plans: start it again, or look at its job")
    workload = detail.workload
    setting = FrontierSetting(
        num_stages=workload.parallelism.pp,
        static_power_w=workload.gpu.static_power_w,
        gpus_per_stage=workload.parallelism.gpus_per_stage,
        source=study.source,
        extrapolated=study.extrapolated,
        uncertainty=detail.uncertainty.energy if detail.uncertainty else None,
        scope=scope(),
    )
    method = url.get_method(url.METHOD, next(iter(frontiers)))
    selected = _plan(frontiers, method, url.get_number(url.PLAN))
    if selected is None:
        selected = default_plan(frontiers)
    select(selected.method, selected.plan)
    pinned = tuple(
        plan
        for pin in url.get_pins()
        if (plan := _plan(frontiers, *pin)) is not None and plan != selected
    )
    shown = [method for method in url.get_methods(frontiers) if method in frontiers]
    if selected.method not in shown:
        shown.append(selected.method)
    return View(
        detail=detail,
        frontiers=frontiers,
        setting=setting,
        selected=selected,
        pinned=pinned,
        shown=tuple(method for method in frontiers if method in shown),
    )


def scope() -> Scope:
    """Return the energy scope the URL names; one GPU of each stage by default."""
    return Scope.JOB if url.get(url.SCOPE) == Scope.JOB else Scope.PIPELINE


def select(method: Method, number: int) -> None:
    """Make a plan the chosen one."""
    url.put(url.METHOD, method.value)
    url.put(url.PLAN, str(number))


def default_plan(frontiers: Mapping[Method, Sequence[PlanSummary]]) -> PlanSummary:
    """Return the plan a reader meets first: no slower than Perseus at the least energy."""
    try:
        return by_objective(frontiers, Objective.EQUAL_TIME)
    except InfeasibleError:
        return by_objective(frontiers, Objective.FASTEST)


def by_objective(
    frontiers: Mapping[Method, Sequence[PlanSummary]],
    objective: Objective,
    bound: float | None = None,
) -> PlanSummary:
    """Return Kareus' plan of an objective (the first method's, where Kareus has none).

    Args:
        frontiers: Every method's plans, fastest first.
        objective: How to choose.
        bound: Deadline in seconds, or pipeline energy in joules.

    Raises:
        InfeasibleError: No plan meets the bound; the message names the nearest that can be had.
        ConfigError: The bound is not a number above 0.
    """
    plans = frontiers[next(iter(frontiers))]
    match objective:
        case Objective.FASTEST:
            return plans[0]
        case Objective.FRUGAL:
            return min(plans, key=lambda plan: plan.pipeline_energy_j)
        case Objective.KNEE:
            return select_plan(plans, preference=Preference.KNEE)
        case Objective.EQUAL_TIME:
            baseline = frontiers.get(Method.PERSEUS) or frontiers.get(Method.MEGATRON)
            if not baseline:
                raise InfeasibleError("there is no baseline to be as fast as: choose another way")
            return select_plan(plans, deadline_s=baseline[0].iteration_time_s)
        case Objective.DEADLINE:
            return select_plan(plans, deadline_s=bound)
        case Objective.BUDGET:
            return select_plan(plans, energy_budget_j=bound)


def plan_words(plan: PlanSummary) -> str:
    """Return a plan's name in words."""
    return f"{METHOD_NAMES[plan.method]} plan {plan.plan}"


def _plan(
    frontiers: Mapping[Method, Sequence[PlanSummary]], method: Method, number: int | None
) -> PlanSummary | None:
    """The plan of that number, if there is one."""
    return next((plan for plan in frontiers.get(method, ()) if plan.plan == number), None)
