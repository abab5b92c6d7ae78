"""Use cases about the plans of a study: list, compare, choose, timeline, export."""

from pathlib import Path
from typing import Any

from kareus.compose.selection import Preference, select_plan
from kareus.core.plan import Method, Plan
from kareus.core.timeline import TimelineRow, build_timeline
from kareus.core.workload import Workload
from kareus.errors import ConfigError, NotFoundError
from kareus.schedule.bundle import bundle_bytes, write_bundle
from kareus.schedule.document import Schedule, build_schedule
from kareus.service import choosing
from kareus.service.base import Base
from kareus.service.views import PlanSummary
from kareus.store import PlanSummary as StoredSummary
from kareus.store import StudyRecord
from kareus.study.documents import pipeline_of, request_of, workload_of


class PlanUseCases(Base):
    """Plans of finished studies."""

    def plan_summaries(self, ref: str, method: Method | None = None) -> list[PlanSummary]:
        """Return the figures of a method's plans, or of all methods', fastest first.

        Raises:
            NotFoundError: There is no such study, or it has no plans of the method (yet).
        """
        record = self.store.find_study(ref)
        workload = workload_of(record)
        found = [
            _plan_summary(plan, workload) for plan in self.store.plan_summaries(record.id, method)
        ]
        if not found and method is not None:
            raise NotFoundError(_no_plans(record, method))
        return found

    def plan(self, ref: str, method: Method, number: int) -> Plan:
        """Return a plan with its choices.

        Raises:
            NotFoundError: There is none.
        """
        return self.store.load_plan(self.store.find_study(ref).id, method, number)

    def compare(self, ref: str) -> dict[str, Any]:
        """Return the comparison figures (engine definitions), as `kareus compare --json`.

        Raises:
            NotFoundError: There is no such study, or it is not done.
        """
        record = self.store.find_study(ref)
        if record.summary is None:
            raise NotFoundError(
                f"study {record.id} is {record.state.value} and has no frontier yet: "
                "wait for it, or resume its job"
            )
        return dict(record.summary)

    def choose(
        self,
        ref: str,
        *,
        method: Method = Method.KAREUS,
        number: int | None = None,
        deadline_s: float | None = None,
        energy_budget_j: float | None = None,
        fastest: bool = False,
        most_frugal: bool = False,
        knee: bool = False,
    ) -> PlanSummary:
        """Return the one plan a choice means; exactly one way of choosing must be given.

        Raises:
            ConfigError: None or several ways were given.
            NotFoundError: There is no such study or plan.
            InfeasibleError: No plan meets the bound; the message names the nearest value.
        """
        ways = (number is not None, deadline_s is not None, energy_budget_j is not None)
        if sum((*ways, fastest, most_frugal, knee)) != 1:
            raise ConfigError(
                "choose one plan in exactly one way: --plan, --deadline, --energy-budget, "
                "--max-throughput, --min-energy or --knee"
            )
        plans = self.plan_summaries(ref, method)
        if number is not None:
            for plan in plans:
                if plan.plan == number:
                    return plan
            raise NotFoundError(
                f"there is no {method} plan {number}: choose {plans[0].plan} to {plans[-1].plan}"
            )
        preference = None
        for wanted, one in (
            (fastest, Preference.FASTEST),
            (most_frugal, Preference.MOST_FRUGAL),
            (knee, Preference.KNEE),
        ):
            if wanted:
                preference = one
        return select_plan(
            plans, deadline_s=deadline_s, energy_budget_j=energy_budget_j, preference=preference
        )

    def timeline(self, ref: str, method: Method, number: int) -> tuple[TimelineRow, ...]:
        """Return the planned timeline of a plan, instruction by instruction.

        Raises:
            NotFoundError: There is no such study or plan.
        """
        record = self.store.find_study(ref)
        workload = workload_of(record)
        plan = self.store.load_plan(record.id, method, number)
        pipeline = pipeline_of(request_of(record), workload)
        return build_timeline(plan, pipeline, static_power_w=workload.gpu.static_power_w)

    def export(self, ref: str, number: int, *, method: Method, out: Path) -> Path:
        """Write a plan's schedule bundle: a folder, or a .zip by its name.

        Raises:
            NotFoundError: There is no such study or plan.
            ScheduleError: Something is there already, or it cannot be written.
        """
        schedule, cost_change_j = self._schedule(ref, number, method)
        return write_bundle(out, schedule, cost_change_j=cost_change_j)

    def bundle(self, ref: str, number: int, *, method: Method) -> tuple[str, bytes]:
        """Return a plan's schedule bundle as a file name and the content of a .zip.

        Raises:
            NotFoundError: There is no such study or plan.
        """
        schedule, cost_change_j = self._schedule(ref, number, method)
        study = self.store.find_study(ref).id
        name = f"{study}-{method.value}-plan-{number}.zip"
        return name, bundle_bytes(schedule, cost_change_j=cost_change_j)

    def _schedule(self, ref: str, number: int, method: Method) -> tuple[Schedule, float]:
        """The schedule of a plan, and what it costs above the next slower plan."""
        record = self.store.find_study(ref)
        request, workload = request_of(record), workload_of(record)
        plan = self.store.load_plan(record.id, method, number)
        slower = [
            other
            for other in self.store.plan_summaries(record.id, method)
            if other.iteration_time_s > plan.iteration_time_s
        ]
        _, uncertainty = choosing.trust(request, workload) if record.extrapolated else (False, None)
        schedule = build_schedule(
            plan,
            pipeline_of(request, workload),
            workload,
            study=record.id,
            source=record.source,
            seed=request.seed,
            extrapolated=record.extrapolated,
            uncertainty=None if uncertainty is None else max(uncertainty.time, uncertainty.energy),
            versions={name: str(version) for name, version in record.versions.items()},
        )
        change_j = plan.effective_energy_j - slower[0].effective_energy_j if slower else 0.0
        return schedule, change_j


def _plan_summary(plan: StoredSummary, workload: Workload) -> PlanSummary:
    """The stored figures with those of the whole job."""
    gpus = workload.parallelism.gpus_per_stage
    return PlanSummary(
        method=plan.method,
        plan=plan.number,
        iteration_time_s=plan.iteration_time_s,
        effective_energy_j=plan.effective_energy_j,
        pipeline_energy_j=plan.pipeline_energy_j,
        job_energy_j=plan.pipeline_energy_j * gpus,
        average_power_w=plan.pipeline_energy_j * gpus / plan.iteration_time_s,
        static_energy_j=plan.pipeline_energy_j - plan.effective_energy_j,
        bound_j=plan.bound_j,
        gap=None if plan.bound_j is None else plan.pipeline_energy_j / plan.bound_j - 1.0,
    )


def _no_plans(record: StudyRecord, method: Method) -> str:
    if record.summary is None:
        return (
            f"study {record.id} is {record.state.value} and has no plans yet: wait for it, or "
            "resume its job"
        )
    return f"study {record.id} has no {method.value} plans: see its notes for the reason"
