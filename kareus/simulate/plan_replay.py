"""Replaying recorded plans: instructions composed at their recorded clocks, then an iteration.

A plan of `perseus` runs every instruction sequentially, one of `nanobatching-perseus` as
nanobatches at the default configuration (first launch point, default SMs). Iteration time is the
longest path through the pipeline, pipeline energy = sum of effective energies + stages x static
power x time.

What recorded plans are: their planner relaxes durations to a grid and then reports the slowest
clocks that still meet them, so a recorded plan lies up to a few percent above what its clocks
explain, most at slow plans. The replay predicts what the clocks give and leaves that difference in
the error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.core.partition import Direction, Partition
from kareus.core.pipeline import InstructionRecipe, Pipeline, one_f_one_b
from kareus.core.plan import Method
from kareus.core.workload import Gpu, Model, Workload
from kareus.errors import KareusError, MeasurementError
from kareus.simulate.model import NOT_LAUNCHED, Settings, default_sms, predict_settings
from kareus.simulate.parameters import Parameters, stack
from kareus.simulate.records import RecordedPlan, RecordKey
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.models import load_model
from kareus.workload.partitions import build_partitions, build_recipes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

REPLAYED_METHODS = (Method.PERSEUS, Method.NANOBATCHING_PERSEUS)
"""Methods whose plans follow from their clocks alone."""


@dataclass(frozen=True, kw_only=True)
class FrontierReplay:
    """The plans of one workload and method, prepared for evaluating many parameter sets.

    Attributes:
        key: The workload.
        method: The method.
        plans: The recorded plans, fastest first.
        gpu: The GPU.
        partitions: Everything an instruction consists of.
        recipes: What each kind of instruction consists of.
        pipeline: The precedence graph.
        clocks_mhz: The clocks that occur, ascending, shape (c,).
        clock_index: Per plan and instruction, the position of its clock, shape (plans, i).
        kind_index: Per instruction, the position of its (stage, direction) in `recipes`.
    """

    key: RecordKey
    method: Method
    plans: tuple[RecordedPlan, ...]
    gpu: Gpu
    partitions: Mapping[str, Partition]
    recipes: Mapping[tuple[int, Direction], InstructionRecipe]
    pipeline: Pipeline
    clocks_mhz: FloatArray
    clock_index: IntArray
    kind_index: IntArray

    @property
    def recorded_time_s(self) -> FloatArray:
        """Recorded iteration times, shape (plans,)."""
        return np.array([plan.iteration_time_s for plan in self.plans])

    @property
    def recorded_energy_j(self) -> FloatArray:
        """Recorded pipeline energies, shape (plans,)."""
        return np.array([plan.total_energy_j for plan in self.plans])

    def predict(self, p: Parameters) -> tuple[FloatArray, FloatArray]:
        """Return predicted iteration time (s) and pipeline energy (J) of each plan."""
        values = self.predict_sets([p])
        return values.time_s[0], values.energy_j[0]

    def predict_sets(self, sets: Sequence[Parameters]) -> "ReplayValues":
        """Return what `predict` does for several parameter sets, and the stages' imbalance."""
        times, effective = instruction_tables(self, sets)
        durations = times[:, self.kind_index, self.clock_index]
        num_sets, num_plans, num_instructions = durations.shape
        iteration_s = makespans_s(
            self.pipeline, durations.reshape(num_sets * num_plans, num_instructions)
        ).reshape(num_sets, num_plans)
        static_w = self.pipeline.num_stages * self.gpu.static_power_w
        energies = effective[:, self.kind_index, self.clock_index].sum(axis=2)
        return ReplayValues(
            time_s=iteration_s,
            energy_j=energies + static_w * iteration_s,
            imbalance=_imbalance(self.pipeline, durations),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayValues:
    """Predictions of a frontier's plans for several parameter sets.

    Attributes:
        time_s: Iteration times, shape (sets, plans).
        energy_j: Pipeline energies, shape (sets, plans).
        imbalance: Log of each stage's forward + backward time of the middle microbatch over the
            stages' geometric mean, shape (sets, plans, stages). A planner slows every stage down
            until it fills the cycle, so recorded clocks make it nearly 0.
    """

    time_s: FloatArray
    energy_j: FloatArray
    imbalance: FloatArray


_LEAST_STEADY_MICROBATCHES = 6


def _imbalance(pipeline: Pipeline, durations_s: FloatArray) -> FloatArray:
    """The imbalance of the stages in the steady state; 0 where a pipeline has none to speak of.

    Args:
        pipeline: The precedence graph.
        durations_s: Shape (sets, plans, instructions).
    """
    num_microbatches = 1 + max(i.microbatch for i in pipeline.instructions)
    shape = (*durations_s.shape[:2], pipeline.num_stages)
    if num_microbatches < max(_LEAST_STEADY_MICROBATCHES, 2 * pipeline.num_stages):
        return np.zeros(shape)
    middle = num_microbatches // 2
    cycle_s = np.stack(
        [
            durations_s[
                :,
                :,
                [
                    position
                    for position, i in enumerate(pipeline.instructions)
                    if i.stage == stage and i.microbatch == middle
                ],
            ].sum(axis=2)
            for stage in range(pipeline.num_stages)
        ],
        axis=2,
    )
    logs = np.log(cycle_s)
    deviation: FloatArray = logs - logs.mean(axis=2, keepdims=True)
    return deviation


def instruction_tables(
    replay: FrontierReplay, sets: Sequence[Parameters]
) -> tuple[FloatArray, FloatArray]:
    """Return time (s) and effective energy (J) per parameter set, kind of instruction and clock.

    Shapes (sets, kinds, clocks).
    """
    gpu = replay.gpu
    num_clocks = len(replay.clocks_mhz)
    x = np.tile(replay.clocks_mhz / gpu.clocks_mhz[-1], len(sets))
    p = stack(sets, num_clocks)
    first = 0 if replay.method is Method.NANOBATCHING_PERSEUS else NOT_LAUNCHED
    settings = Settings(
        x=x,
        num_sms=np.full_like(x, default_sms(gpu)),
        first=np.full(len(x), first, dtype=np.int64),
    )
    units: dict[str, tuple[FloatArray, FloatArray]] = {}
    times = np.zeros((len(sets), len(replay.recipes), num_clocks))
    effective = np.zeros_like(times)
    for kind, recipe in enumerate(replay.recipes.values()):
        for name, count in _units(recipe, replay.method):
            if name not in units:
                unit = predict_settings(replay.partitions[name], settings, gpu, p)
                dynamic = unit.energy_j - gpu.static_power_w * unit.time_s
                shape = (len(sets), num_clocks)
                units[name] = (unit.time_s.reshape(shape), dynamic.reshape(shape))
            times[:, kind] += count * units[name][0]
            effective[:, kind] += count * units[name][1]
    return times, effective


def _units(recipe: InstructionRecipe, method: Method) -> Sequence[tuple[str, int]]:
    """What an instruction executes under a method, with counts."""
    if method is Method.PERSEUS:
        return (*recipe.sequential, *recipe.outside)
    edges = []
    if recipe.lead is not None:
        edges.append((recipe.lead[0], 1))
    if recipe.trail is not None:
        edges.append((recipe.trail, 1))
    return (*recipe.nanobatch, *edges, *recipe.outside)


def makespans_s(pipeline: Pipeline, durations_s: FloatArray) -> FloatArray:
    """Return the longest path of many plans at once: `Pipeline.makespan_s` over arrays.

    Args:
        pipeline: The precedence graph.
        durations_s: Shape (plans, instructions).
    """
    ends: dict[int, FloatArray] = {}
    for position in pipeline.topological_order:
        start = np.zeros(len(durations_s))
        for before in pipeline.predecessors[position]:
            start = np.maximum(start, ends[before])
        ends[position] = start + durations_s[:, position]
    longest: FloatArray = np.max(np.stack(list(ends.values())), axis=0)
    return longest


def prepare_replays(
    plans: Sequence[RecordedPlan], gpu: Gpu, *, stage_layers: Sequence[int] | None = None
) -> tuple[FrontierReplay, ...]:
    """Group recorded plans by workload and method, and build what their replay needs.

    Args:
        plans: Plans with clocks, of the methods that can be replayed.
        gpu: The GPU they were recorded on.
        stage_layers: Layers per stage; None means that of the published experiments, one more than
            half on the first of two stages (the head weighs about two layers), else even.

    Returns:
        One entry per (workload, method, release), in that order.

    Raises:
        MeasurementError: If a model is unknown, a workload impossible, or a plan's instructions
            are not a 1F1B iteration.
    """
    groups: dict[tuple[RecordKey, str, str], list[RecordedPlan]] = {}
    for plan in plans:
        groups.setdefault((plan.key, plan.method.value, plan.release), []).append(plan)
    built: dict[
        tuple[RecordKey, int, int],
        tuple[Mapping[str, Partition], Mapping[tuple[int, Direction], InstructionRecipe]],
    ] = {}
    replays = []
    for (key, _, _), members in sorted(groups.items()):
        first = members[0]
        num_stages, num_microbatches = len(first.clocks_mhz), len(first.clocks_mhz[0]) // 2
        pipeline = one_f_one_b(num_stages, num_microbatches)
        for plan in members:
            _check_order(plan, pipeline)
        shape = (key, num_stages, num_microbatches)
        if shape not in built:
            workload = _workload(first, gpu, stage_layers)
            built[shape] = (build_partitions(workload), build_recipes(workload))
        partitions, recipes = built[shape]
        kinds = list(recipes)
        clocks = np.array(
            [[clock for stage in plan.clocks_mhz for _, clock in stage] for plan in members]
        )
        distinct, index = np.unique(clocks, return_inverse=True)
        replays.append(
            FrontierReplay(
                key=key,
                method=first.method,
                plans=tuple(members),
                gpu=gpu,
                partitions=partitions,
                recipes=recipes,
                pipeline=pipeline,
                clocks_mhz=distinct.astype(np.float64),
                clock_index=index.reshape(clocks.shape),
                kind_index=np.array(
                    [kinds.index((i.stage, i.direction)) for i in pipeline.instructions]
                ),
            )
        )
    return tuple(replays)


def _check_order(plan: RecordedPlan, pipeline: Pipeline) -> None:
    """Refuse a plan whose instructions are not those of the pipeline."""
    recorded = [[direction for direction, _ in stage] for stage in plan.clocks_mhz]
    expected = [[i.direction for i in stage] for stage in pipeline.stages]
    if recorded != expected:
        raise MeasurementError(
            f"row {plan.row}: plan {plan.plan} of {plan.key} is not a 1F1B iteration: its "
            f"{len(recorded)} stages have {[len(stage) for stage in recorded]} instructions in "
            "another order; only 1F1B plans can be replayed"
        )


def default_stage_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the layers per stage of the published experiments, generalised.

    28 layers on two stages are 15 and 13: the head on the last stage weighs about two layers.
    """
    if num_stages == 2 and num_layers >= 4:
        first = num_layers // 2 + 1
        return (first, num_layers - first)
    each, rest = divmod(num_layers, num_stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(num_stages))


def _workload(plan: RecordedPlan, gpu: Gpu, stage_layers: Sequence[int] | None) -> Workload:
    """The workload of a recorded plan; embeddings untied, full recompute."""
    key = plan.key
    try:
        model: Model = load_model(key.model)
        layers = (
            tuple(stage_layers)
            if stage_layers is not None
            else default_stage_layers(model.num_layers, len(plan.clocks_mhz))
        )
        return build_workload(
            WorkloadSettings(
                model=key.model,
                gpu=gpu.name,
                tp=key.tp,
                cp=key.cp,
                pp=len(plan.clocks_mhz),
                dp=1,
                microbatch_size=key.microbatch_size,
                seq_len=key.seq_len,
                num_microbatches=len(plan.clocks_mhz[0]) // 2,
                stage_layers=layers,
            ),
            model=model,
        )
    except KareusError as error:
        raise MeasurementError(f"row {plan.row}: {key}: {error}") from error
