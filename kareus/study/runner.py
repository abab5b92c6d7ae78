"""Run a study: measure and search, compose, solve, compare; everything ends up in the store."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from kareus.compose.baselines import (
    compose_methods,
    join_frontiers,
    kareus_executions,
    solve_methods,
)
from kareus.compose.constraints import compose_by_clock, solve_constrained
from kareus.compose.limits import Constraints
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Direction, Partition
from kareus.core.pipeline import InstructionRecipe, Pipeline
from kareus.core.plan import Method, Plan
from kareus.core.workload import Workload
from kareus.errors import ConfigError, InfeasibleError, KareusError, MeasurementError
from kareus.report.comparison import compare_frontiers
from kareus.search.budget import parse_budget
from kareus.search.kind import SearchKind
from kareus.store import Phase, Progress, SearchRecord, Store
from kareus.study.documents import pipeline_of
from kareus.study.measuring import Measuring, Recorder
from kareus.study.request import StudyRequest
from kareus.study.result import StudyResult
from kareus.study.sources import open_source
from kareus.study.transfer import load_priors
from kareus.workload.build import split_layers
from kareus.workload.partitions import build_partitions, build_recipes

_LOGGER = logging.getLogger(__name__)


class StudyContext(Protocol):
    """What running a study needs from its surroundings; a job's context has it."""

    @property
    def store(self) -> Store:
        """Where results are kept."""

    @property
    def progress(self) -> Callable[[Progress], None]:
        """Takes how far the study is."""

    def check(self) -> None:
        """Raise where the study should stop."""


def run_study(
    context: StudyContext, study: str, request: StudyRequest, workload: Workload
) -> StudyResult:
    """Run a study from where it stands to its stored frontiers.

    Results that are stored already are not measured again, so that a study may be stopped anywhere
    and ends exactly as if it had not been.

    Args:
        context: Store, progress and the question whether to stop.
        study: The study's id.
        request: What was asked for.
        workload: The workload of its settings.

    Raises:
        KareusError: A part of it failed; what was measured is kept.
    """
    store = context.store
    partitions = build_partitions(workload)
    recipes = build_recipes(virtual_stages(workload, request.num_chunks))
    static_power_w = workload.gpu.static_power_w
    notes: list[str] = []
    # Options are stored once measuring is complete: a study that was stopped later, or that plans
    # again from another's measurements, goes on from them.
    options = store.load_options(study)
    measured = sum(store.count_measurements(study).values())
    last = Progress(phase=Phase.MEASURING, done=measured, planned=measured)
    if not options:
        with open_source(request, workload, partitions, store) as source:
            measuring = Measuring(
                Recorder(store, study, source, seed=request.seed, check=context.check),
                partitions,
                recipes,
                num_microbatches=workload.num_microbatches,
                budget=parse_budget(request.budget),
                search=SearchKind(request.search),
                seed=request.seed,
                static_power_w=static_power_w,
                priors=load_priors(store, request, partitions),
                store=store,
                study=study,
                progress=context.progress,
            )
            options = measuring.run()
        notes += measuring.notes
        store.save_options(study, options)
        last = measuring.last_progress
    _LOGGER.info("study %s: %d results, composing", study, last.done)
    context.check()
    context.progress(_in_phase(last, Phase.COMPOSING))
    composed = [
        compose_methods(
            recipes, partitions, options, static_power_w=static_power_w, executions=executions
        )
        for executions in kareus_executions(workload.recompute)
    ]
    notes += composed[0].notes.sentences()
    notes += (f"{method} is left out: {why}" for method, why in composed[0].unavailable.items())
    pipeline = pipeline_of(request, workload)
    context.progress(_in_phase(last, Phase.SOLVING))
    if request.constraints is None:
        frontiers = join_frontiers(
            [
                solve_methods(
                    pipeline, one, static_power_w=static_power_w, num_plans=request.num_plans
                )
                for one in composed
            ]
        )
    else:
        frontiers, refused = _solve_within(
            request.constraints, pipeline, recipes, partitions, options, request, workload
        )
        notes += refused
    compare = _save(store, study, frontiers, notes)
    for search in store.searches(study):
        store.save_search(
            study,
            SearchRecord(
                partition=search.partition,
                state="done",
                planned=search.done,
                done=search.done,
                hypervolume=search.hypervolume,
            ),
        )
    context.progress(_in_phase(last, Phase.FINISHED))
    _LOGGER.info("study %s: done", study)
    return StudyResult(study=study, measurements=last.done, compare=compare)


def _solve_within(
    constraints: Constraints,
    pipeline: Pipeline,
    recipes: Mapping[tuple[int, Direction], InstructionRecipe],
    partitions: Mapping[str, Partition],
    options: Mapping[str, Sequence[PartitionOption]],
    request: StudyRequest,
    workload: Workload,
) -> tuple[dict[Method, tuple[Plan, ...]], list[str]]:
    """Every method's frontier within constraints, and why those that have none have none.

    Megatron-LM has none: it runs everything at one clock as it is, whatever the constraints.

    Raises:
        InfeasibleError: Kareus cannot keep to them; the message names those that clash.
    """
    static_power_w = workload.gpu.static_power_w
    found: list[dict[Method, tuple[Plan, ...]]] = []
    refusals: dict[Method, KareusError] = {}
    for method in (Method.PERSEUS, Method.NANOBATCHING_PERSEUS, Method.KAREUS):
        for executions in kareus_executions(workload.recompute):
            try:
                plans = solve_constrained(
                    pipeline,
                    compose_by_clock(
                        recipes,
                        partitions,
                        options,
                        static_power_w=static_power_w,
                        method=method,
                        executions=executions,
                    ),
                    constraints,
                    static_power_w=static_power_w,
                    gpus_per_stage=workload.parallelism.gpus_per_stage,
                    method=method,
                    num_plans=request.num_plans,
                ).plans
            except (InfeasibleError, MeasurementError) as error:
                refusals[method] = error
            else:
                found.append({method: plans})
    frontiers = join_frontiers(found) if found else {}
    if Method.KAREUS not in frontiers:
        raise refusals[Method.KAREUS]
    notes = [f"{one} is left out: {why}" for one, why in refusals.items() if one not in frontiers]
    notes.append(f"{Method.MEGATRON} is left out: it does not choose clocks, so it has one plan")
    return frontiers, notes


def virtual_stages(workload: Workload, num_chunks: int) -> Workload:
    """Return the workload with its stages' layers split into model chunks.

    Interleaved orders give each device several chunks: virtual stage v is chunk v // stages of
    device v % stages, so layers are split evenly over the virtual stages in model order.

    Raises:
        ConfigError: There are fewer layers than virtual stages.
    """
    if num_chunks == 1:
        return workload
    num_stages = workload.parallelism.pp * num_chunks
    if workload.model.num_layers < num_stages:
        raise ConfigError(
            f"{workload.model.num_layers} layers cannot be split into {num_stages} chunks "
            f"({workload.parallelism.pp} stages x {num_chunks}): use fewer chunks"
        )
    return replace(
        workload,
        parallelism=replace(workload.parallelism, pp=num_stages),
        stage_layers=split_layers(workload.model.num_layers, num_stages),
    )


def _save(
    store: Store, study: str, frontiers: Mapping[Method, tuple[Plan, ...]], notes: list[str]
) -> dict[str, dict[str, object]]:
    """Store the frontiers, and the comparison as the study's summary."""
    for method, plans in frontiers.items():
        store.save_frontier(study, method, plans)
    compare = compare_frontiers(frontiers)
    stored = store.study(study).notes
    added = [note for note in dict.fromkeys(notes) if note not in stored]
    store.describe_study(study, summary=compare, notes=[*stored, *added])
    return compare


def _in_phase(progress: Progress, phase: Phase) -> Progress:
    """The same counts in another phase, with nothing left to measure."""
    return Progress(
        phase=phase,
        done=progress.done,
        planned=progress.done,
        partitions=progress.partitions,
        seconds_left=None,
    )
