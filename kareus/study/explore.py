"""Explore the layouts of a training step: which parallelism, at which clocks, for which trade-off.

For a fixed number of GPUs, global batch and sequence length every layout trains on the same tokens
per iteration, so iteration time and the energy of the whole job compare. Layouts are left out

1. that cannot be built, or whose memory estimate exceeds the GPU's (`workload.layouts`);
2. that are beaten beyond hope: the baselines' configurations of every layout are measured, and a
   layout is searched only if its baseline frontier, made `margin` faster and more frugal at once,
   would still reach beyond the joint frontier of what is known. The search's published gains over
   its baselines stay below the default margin of 25 % (engine: comparison figures).

The others are searched like any study. The joint frontier is over all plans found; each point keeps
its layout and plan. Gradient reduction over data-parallel replicas is not counted.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kareus.compose.baselines import compose_methods
from kareus.compose.iteration import solve_iteration
from kareus.core.frontier import non_dominated
from kareus.core.pipeline import build_pipeline
from kareus.core.plan import Method
from kareus.core.workload import Workload
from kareus.errors import CancelledError, KareusError
from kareus.search.budget import parse_budget
from kareus.search.kind import SearchKind
from kareus.store import PartitionProgress, Phase, Progress, StudyState
from kareus.study.documents import study_document
from kareus.study.exploration import (
    EXPLORATION,
    Exploration,
    ExplorationRequest,
    Layout,
    LayoutPoint,
    LayoutState,
    layout_words,
    list_layouts,
)
from kareus.study.measuring import Measuring, Recorder
from kareus.study.request import StudyRequest
from kareus.study.runner import StudyContext, run_study
from kareus.study.sources import open_source, simulator_extrapolates
from kareus.workload.layouts import Candidate
from kareus.workload.partitions import build_partitions, build_recipes

_LOGGER = logging.getLogger(__name__)
_BASELINE_PLANS = 12
_BASELINES = (Method.PERSEUS, Method.NANOBATCHING_PERSEUS)


class Explorer:
    """Runs one exploration from where it stands; what was measured is never measured again.

    Args:
        context: Store, progress and the question whether to stop.
        exploration: The exploration's id.
        request: What was asked for.
    """

    def __init__(
        self, context: StudyContext, exploration: str, request: ExplorationRequest
    ) -> None:
        self._context = context
        self._exploration = exploration
        self._request = request
        self._candidates = list_layouts(request)
        stored = context.store.exploration(exploration).result
        if stored is not None:
            found = EXPLORATION.validate_python(stored)
            self._layouts, self._points = list(found.layouts), list(found.frontier)
        else:
            self._layouts = [_layout(n, one) for n, one in enumerate(self._candidates)]
            self._points = []
        self._message = ""

    def run(self) -> Exploration:
        """Measure every layout's baselines, search those with a chance, join the frontiers."""
        waiting = [one.number for one in self._layouts if one.state is LayoutState.WAITING]
        for number in waiting:
            if not self._layouts[number].baseline:
                self._report(number, "baselines")
                self._guarded(number, self._measure_baselines)
        order = sorted(waiting, key=lambda number: min(self._layouts[number].baseline or [(1e9,)]))
        for number in order:
            if self._layouts[number].state is not LayoutState.WAITING:
                continue
            if self._beaten(number):
                self._change(
                    number,
                    state=LayoutState.BEATEN,
                    reason=f"even {self._request.margin:.0%} faster and more frugal than its "
                    "baselines it would be beaten",
                )
                continue
            self._report(number, "searching")
            self._guarded(number, self._search)
        self._report(None, "")
        return self._result()

    def _guarded(self, number: int, step: Callable[[int], None]) -> None:
        """Run a step; a layout that fails is marked, the others go on."""
        try:
            step(number)
        except CancelledError:
            raise
        except KareusError as error:
            _LOGGER.warning("layout %d failed: %s", number, error)
            self._change(number, state=LayoutState.FAILED, reason=str(error))

    def _measure_baselines(self, number: int) -> None:
        """Measure what a layout's baselines need, and solve their frontiers."""
        request, workload = self._request_of(number), self._workload(number)
        study = self._layouts[number].study or self._create_study(request, workload)
        self._change(number, study=study)
        store = self._context.store
        partitions, recipes = build_partitions(workload), build_recipes(workload)
        static_power_w = workload.gpu.static_power_w
        with open_source(request, workload, partitions, store) as source:
            options = Measuring(
                Recorder(store, study, source, seed=request.seed, check=self._context.check),
                partitions,
                recipes,
                num_microbatches=workload.num_microbatches,
                budget=parse_budget(request.budget),
                search=SearchKind(request.search),
                seed=request.seed,
                static_power_w=static_power_w,
                priors={},
                store=store,
                study=study,
                progress=lambda _: None,
            ).run_baselines()
        composed = compose_methods(recipes, partitions, options, static_power_w=static_power_w)
        pipeline = build_pipeline(request.order, workload.parallelism.pp, workload.num_microbatches)
        gpus = workload.parallelism.gpus_per_stage
        points = [
            (plan.iteration_time_s, plan.pipeline_energy_j * gpus)
            for method in _BASELINES
            if method in composed.options
            for plan in solve_iteration(
                pipeline,
                composed.options[method],
                static_power_w=static_power_w,
                method=method,
                num_plans=_BASELINE_PLANS,
            )
        ]
        self._change(number, baseline=tuple(points[k] for k in non_dominated(points)))

    def _search(self, number: int) -> None:
        """Run a layout's whole study and add its plans to the joint frontier."""
        request, workload = self._request_of(number), self._workload(number)
        study = self._layouts[number].study
        assert study is not None, "baselines are measured before the search"
        store = self._context.store
        store.set_study_state(study, StudyState.RUNNING)
        run_study(_Quiet(self._context), study, request, workload)
        store.set_study_state(study, StudyState.DONE)
        gpus = workload.parallelism.gpus_per_stage
        points = self._points + [
            LayoutPoint(
                layout=number,
                method=plan.method,
                plan=plan.number,
                iteration_time_s=plan.iteration_time_s,
                job_energy_j=plan.pipeline_energy_j * gpus,
            )
            for plan in store.plan_summaries(study, Method.KAREUS)
        ]
        kept = non_dominated([(one.iteration_time_s, one.job_energy_j) for one in points])
        self._points = [points[k] for k in kept]
        self._change(number, state=LayoutState.SEARCHED)

    def _beaten(self, number: int) -> bool:
        """Whether the layout's baselines, made better by the margin, add nothing."""
        factor = 1 - self._request.margin
        known = [(one.iteration_time_s, one.job_energy_j) for one in self._points]
        known += [
            point
            for other in self._layouts
            if other.number != number and other.state is not LayoutState.FAILED
            for point in other.baseline
        ]
        hoped = [
            (time * factor, energy * factor) for time, energy in self._layouts[number].baseline
        ]
        return all(any(time <= t and energy <= e for time, energy in known) for t, e in hoped)

    def _create_study(self, request: StudyRequest, workload: Workload) -> str:
        """A study of its own for a layout, kept out of the usual list."""
        store = self._context.store
        parallelism = workload.parallelism
        words = (
            f"{workload.model.name}-tp{parallelism.tp}-cp{parallelism.cp}-pp{parallelism.pp}"
            f"-mb{workload.microbatch_size}"
        )
        record = store.create_study(
            words,
            request=study_document(request, workload),
            source=request.source,
            extrapolated=simulator_extrapolates(request, workload),
            notes=[f"A layout of exploration {self._exploration}."],
        )
        store.describe_study(record.id, archived=True)
        return record.id

    def _request_of(self, number: int) -> StudyRequest:
        return replace(self._request.base, settings=self._candidates[number].settings)

    def _workload(self, number: int) -> Workload:
        workload = self._candidates[number].workload
        assert workload is not None, "layouts that cannot be built are not measured"
        return workload

    def _change(self, number: int, **changes: Any) -> None:
        """Change a layout and store the exploration as it stands."""
        self._layouts[number] = replace(self._layouts[number], **changes)
        self._context.store.save_exploration(
            self._exploration, EXPLORATION.dump_python(self._result(), mode="json")
        )

    def _result(self) -> Exploration:
        return Exploration(layouts=tuple(self._layouts), frontier=tuple(self._points))

    def _report(self, number: int | None, doing: str) -> None:
        """Tell how far the exploration is: one entry per layout that can be built."""
        usable = [one for one in self._layouts if one.state is not LayoutState.IMPOSSIBLE]
        done = sum(
            2 if one.state is not LayoutState.WAITING else 1 if one.baseline else 0
            for one in usable
        )
        words = "" if number is None else f"{doing}: {layout_words(self._layouts[number])}"
        self._context.progress(
            Progress(
                phase=Phase.FINISHED if number is None else Phase.MEASURING,
                done=done,
                planned=2 * len(usable),
                partitions=tuple(
                    PartitionProgress(
                        name=layout_words(one),
                        done=2 if one.state is not LayoutState.WAITING else int(bool(one.baseline)),
                        planned=2,
                    )
                    for one in usable
                ),
                message=words,
            )
        )


class _Quiet:
    """A study's context inside an exploration: the same store and stop, progress kept apart."""

    def __init__(self, context: StudyContext) -> None:
        self.store = context.store
        self.check = context.check

    def progress(self, progress: Progress) -> None:
        """Drop it: the exploration reports by layout."""


def _layout(number: int, candidate: Candidate) -> Layout:
    settings = candidate.settings
    return Layout(
        number=number,
        tp=settings.tp,
        cp=settings.cp,
        pp=settings.pp,
        dp=settings.dp,
        microbatch_size=settings.microbatch_size,
        num_microbatches=settings.num_microbatches,
        state=LayoutState.WAITING if candidate.workload is not None else LayoutState.IMPOSSIBLE,
        reason=candidate.pruned,
        peak_memory_bytes=candidate.peak_memory_bytes,
    )
