"""Partitions and instruction recipes of a workload (`engine.md` section 3 as a table).

A nanobatch partition is a part of the block (`blocks.Part`) of one half of the microbatch, beside
the collective of the other half. Which of them exist depends on tp and cp: without context
parallelism the attention is one part; with it, it is cut around the gather of keys and values.
Where tp = 1 the all-reduces vanish: a partition named after one (`..._ar`, `fwd_mlp`, ...) keeps
its computation but has no collective, and only its clock is searched. With tp = 1 there is then
neither a first computation without a collective (`lead`: every such partition has none) nor an
exposed last all-reduce (`trail`); with tp = 1 and cp > 1 the gathers and scatters remain.

SM allocations and the default of 20 SMs are the A100's, scaled to the same share of other GPUs'
SMs and rounded; allocations that coincide after rounding are searched once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import (
    Collective,
    CollectiveGroup,
    CollectiveKind,
    Direction,
    Execution,
    MeasuringBudget,
    Operator,
    Partition,
)
from kareus.core.pipeline import InstructionRecipe
from kareus.core.workload import Recompute, Workload
from kareus.workload.blocks import (
    FP32_BYTES,
    BlockShape,
    Part,
    embedding_operators,
    head_operators,
    loss_operators,
    part_operators,
)
from kareus.workload.gpus import scale_sms

NUM_NANOBATCHES = 2

DEFAULT_SMS_ON_A100 = 20
_AR_SMS_ON_A100 = tuple(range(3, 31, 3))
_CP_SMS_ON_A100 = tuple(range(1, 21))

_AR = CollectiveKind.ALL_REDUCE
_AG = CollectiveKind.ALL_GATHER
_RS = CollectiveKind.REDUCE_SCATTER

_NORM, _LINEAR, _ROPE, _ATTN, _ACTIVATION = (
    LaunchPoint.NORM_0,
    LaunchPoint.LINEAR_0,
    LaunchPoint.ROPE_0,
    LaunchPoint.ATTN_0,
    LaunchPoint.ACTIVATION_0,
)


@dataclass(frozen=True, kw_only=True)
class PartitionDesign:
    """A row of the published table of nanobatch partitions.

    Attributes:
        name: The partition's name.
        part: Its computation.
        collective: The collective beside it: an all-reduce runs over TP, the others over CP.
        launch_points: Launch points searched, in order of execution; the first is the default.
        budget: Published measuring budget.
        per_layer: Executions per layer and microbatch.
    """

    name: str
    part: Part
    collective: CollectiveKind
    launch_points: tuple[LaunchPoint, ...]
    budget: MeasuringBudget
    per_layer: int

    @property
    def direction(self) -> Direction:
        """The pass it belongs to."""
        return _direction(self.part)


def _design(
    part: Part,
    collective: CollectiveKind,
    launch_points: tuple[LaunchPoint, ...],
    budget: tuple[int, int, int],
    *,
    suffix: str = "",
) -> PartitionDesign:
    """A row; parts cut around a CP collective occur once per collective, whole parts twice."""
    return PartitionDesign(
        name=f"{part}{suffix}",
        part=part,
        collective=collective,
        launch_points=launch_points,
        budget=MeasuringBudget(initial=budget[0], num_batches=budget[1], batch_size=budget[2]),
        per_layer=1 if suffix else NUM_NANOBATCHES,
    )


def _direction(part: Part) -> Direction:
    """The pass a part belongs to."""
    return Direction.FORWARD if part.startswith("fwd_") else Direction.BACKWARD


_WHOLE, _LARGE, _SMALL = (96, 4, 32), (48, 4, 16), (36, 3, 16)

_FWD_MLP = _design(Part.FWD_MLP, _AR, (_NORM, _LINEAR, _ACTIVATION), _WHOLE)
_BWD_MLP = _design(Part.BWD_MLP, _AR, (_NORM, _LINEAR, _ACTIVATION), _WHOLE)

# In the order of the `scheds_` files (engine.md section 10).
WITHOUT_CP: dict[Direction, tuple[PartitionDesign, ...]] = {
    Direction.FORWARD: (
        _design(Part.FWD_ATTN, _AR, (_NORM, _LINEAR, _ROPE, _ATTN), _WHOLE),
        _FWD_MLP,
    ),
    Direction.BACKWARD: (
        _design(Part.BWD_ATTN, _AR, (_NORM, _LINEAR, _ATTN, _ROPE), _WHOLE),
        _BWD_MLP,
    ),
}
WITH_CP: dict[Direction, tuple[PartitionDesign, ...]] = {
    Direction.FORWARD: (
        _design(Part.FWD_QKV, _AR, (_NORM, _LINEAR), _LARGE, suffix="_ar"),
        _design(Part.FWD_QKV, _AG, (_NORM, _LINEAR, _ROPE), _LARGE, suffix="_ag"),
        _design(Part.FWD_AO, _AG, (_ATTN, _LINEAR), _SMALL, suffix="_ag"),
        _design(Part.FWD_AO, _AR, (_ATTN,), _SMALL, suffix="_ar"),
        _FWD_MLP,
    ),
    Direction.BACKWARD: (
        _design(Part.BWD_QKV, _AR, (_ROPE, _LINEAR), _LARGE, suffix="_ar"),
        _design(Part.BWD_QKV, _RS, (_ROPE, _LINEAR), _LARGE, suffix="_rs"),
        _design(Part.BWD_A, _RS, (_ATTN,), _SMALL, suffix="_rs"),
        _design(Part.BWD_A, _AG, (_ATTN,), _SMALL, suffix="_ag"),
        _design(Part.BWD_O, _AG, (_NORM, _LINEAR), _SMALL, suffix="_ag"),
        _design(Part.BWD_O, _AR, (_NORM,), _SMALL, suffix="_ar"),
        _BWD_MLP,
    ),
}

# Sequential parts and the collective exposed after each, in the order of the nanobatch recipes.
_SEQUENTIAL_WITHOUT_CP: dict[Direction, tuple[tuple[Part, CollectiveKind], ...]] = {
    Direction.FORWARD: ((Part.FWD_ATTN, _AR), (Part.FWD_MLP, _AR)),
    Direction.BACKWARD: ((Part.BWD_ATTN, _AR), (Part.BWD_MLP, _AR)),
}
_SEQUENTIAL_WITH_CP: dict[Direction, tuple[tuple[Part, CollectiveKind], ...]] = {
    Direction.FORWARD: ((Part.FWD_QKV, _AG), (Part.FWD_AO, _AR), (Part.FWD_MLP, _AR)),
    Direction.BACKWARD: (
        (Part.BWD_QKV, _AR),
        (Part.BWD_A, _RS),
        (Part.BWD_O, _AG),
        (Part.BWD_MLP, _AR),
    ),
}

# Per direction: the nanobatch partition that runs first, before any collective is in flight.
_FIRST_WITHOUT_CP = {Direction.FORWARD: "fwd_attn", Direction.BACKWARD: "bwd_mlp"}
_FIRST_WITH_CP = {Direction.FORWARD: "fwd_qkv_ar", Direction.BACKWARD: "bwd_mlp"}


def partition_designs(workload: Workload, direction: Direction) -> tuple[PartitionDesign, ...]:
    """Return the nanobatch partitions of a pass, in the order of the `scheds_` files."""
    return (WITH_CP if workload.parallelism.cp > 1 else WITHOUT_CP)[direction]


def build_partitions(workload: Workload) -> dict[str, Partition]:
    """Return everything that has to be measured for a workload, by name.

    Nanobatch partitions, sequential parts, the leads and trails that the recipes name, and the
    work outside partitions. Layers are equal, so one unit of a name serves every stage.
    """
    half = _shape(workload, workload.microbatch_size / NUM_NANOBATCHES)
    whole = _shape(workload, workload.microbatch_size)
    units: list[Partition] = []
    for direction in Direction:
        units.extend(
            _nanobatch_partition(design, workload, half)
            for design in partition_designs(workload, direction)
        )
    for direction in Direction:
        units.extend(
            _clock_only(
                f"seq_{part}",
                direction,
                Execution.SEQUENTIAL,
                part_operators(part, whole),
                _collective(kind, workload, whole),
                workload,
            )
            for part, kind in _sequential_parts(workload, direction)
        )
    units.extend(_edges(workload, half))
    units.extend(_outside(workload, whole))
    return {unit.name: unit for unit in units}


def build_recipes(workload: Workload) -> dict[tuple[int, Direction], InstructionRecipe]:
    """Return what each kind of instruction consists of, by (stage, direction).

    Counts: layers of the stage x executions per layer; the partition the lead stands in for counts
    one less (so it may be 0: the columns of the `scheds_` files stay complete). Under full
    recompute a backward instruction runs the forward partitions again first: its lead is then the
    forward's, and its trail the backward's.
    """
    return {
        (stage, direction): _recipe(workload, stage, direction)
        for stage in range(workload.parallelism.pp)
        for direction in Direction
    }


def _recipe(workload: Workload, stage: int, direction: Direction) -> InstructionRecipe:
    """The recipe of one kind of instruction."""
    num_layers = workload.stage_layers[stage]
    passes = [direction]
    if direction is Direction.BACKWARD and workload.recompute is Recompute.FULL:
        passes = [Direction.FORWARD, Direction.BACKWARD]
    lead = _lead(workload, passes[0])
    nanobatch: list[tuple[str, int]] = []
    sequential: list[tuple[str, int]] = []
    for each in passes:
        for design in partition_designs(workload, each):
            count = num_layers * design.per_layer
            if lead is not None and design.name == lead[1]:
                count -= 1
            nanobatch.append((design.name, count))
        sequential.extend(
            (f"seq_{part}", num_layers) for part, _ in _sequential_parts(workload, each)
        )
    return InstructionRecipe(
        nanobatch=tuple(nanobatch),
        sequential=tuple(sequential),
        lead=lead,
        trail=_edge_name(direction, "trail") if workload.parallelism.tp > 1 else None,
        outside=tuple((name, 1) for name in _outside_names(workload, stage, direction)),
    )


def _shape(workload: Workload, num_sequences: float) -> BlockShape:
    """One rank's share of a block for some sequences of the workload."""
    return BlockShape(
        model=workload.model,
        num_sequences=num_sequences,
        seq_len=workload.seq_len,
        tp=workload.parallelism.tp,
        cp=workload.parallelism.cp,
    )


def _sequential_parts(
    workload: Workload, direction: Direction
) -> tuple[tuple[Part, CollectiveKind], ...]:
    """The parts of an unsplit microbatch, each with the collective after it."""
    table = _SEQUENTIAL_WITH_CP if workload.parallelism.cp > 1 else _SEQUENTIAL_WITHOUT_CP
    return table[direction]


def _collective(
    kind: CollectiveKind, workload: Workload, shape: BlockShape, *, num_bytes: float | None = None
) -> Collective | None:
    """The collective of a kind; None where its group is a single rank.

    All-reduces carry the residual stream (or its gradient), the others keys and values of the
    whole sequence (or their gradients).
    """
    if kind is CollectiveKind.ALL_REDUCE:
        group, size, default = CollectiveGroup.TP, workload.parallelism.tp, shape.residual_bytes
    else:
        group, size, default = CollectiveGroup.CP, workload.parallelism.cp, shape.gathered_kv_bytes
    if size == 1:
        return None
    return Collective(
        kind=kind,
        group=group,
        group_size=size,
        message_bytes=default if num_bytes is None else num_bytes,
    )


def _nanobatch_partition(
    design: PartitionDesign, workload: Workload, half: BlockShape
) -> Partition:
    """A row of the table with this workload's sizes and this GPU's search space."""
    gpu = workload.gpu
    collective = _collective(design.collective, workload, half)
    operators = part_operators(design.part, half)
    if collective is None:
        return _clock_only(
            design.name, design.direction, Execution.NANOBATCH, operators, None, workload
        )
    on_a100 = _AR_SMS_ON_A100 if design.collective is _AR else _CP_SMS_ON_A100
    return Partition(
        name=design.name,
        direction=design.direction,
        execution=Execution.NANOBATCH,
        operators=operators,
        collective=collective,
        clocks_mhz=gpu.clocks_mhz,
        launch_points=design.launch_points,
        sm_allocations=tuple(sorted({scale_sms(num_sms, gpu) for num_sms in on_a100})),
        default_sm_allocation=scale_sms(DEFAULT_SMS_ON_A100, gpu),
        published_budget=design.budget,
    )


def _clock_only(
    name: str,
    direction: Direction,
    execution: Execution,
    operators: Sequence[Operator],
    collective: Collective | None,
    workload: Workload,
) -> Partition:
    """A unit of which only the clock varies."""
    return Partition(
        name=name,
        direction=direction,
        execution=execution,
        operators=tuple(operators),
        collective=collective,
        clocks_mhz=workload.gpu.clocks_mhz,
    )


def _edge_name(direction: Direction, edge: str) -> str:
    """`fwd_lead`, `bwd_trail`, ..."""
    return f"{'fwd' if direction is Direction.FORWARD else 'bwd'}_{edge}"


def _lead(workload: Workload, first_pass: Direction) -> tuple[str, str] | None:
    """The lead of an instruction that starts with a pass, and what it stands in for."""
    if workload.parallelism.tp == 1:
        return None
    first = _FIRST_WITH_CP if workload.parallelism.cp > 1 else _FIRST_WITHOUT_CP
    return _edge_name(first_pass, "lead"), first[first_pass]


def _edges(workload: Workload, half: BlockShape) -> Iterable[Partition]:
    """Leads and trails: one nanobatch's first computation, one nanobatch's last all-reduce."""
    if workload.parallelism.tp == 1:
        return
    directions = [Direction.FORWARD]
    if workload.recompute is Recompute.NONE:  # else a backward starts with the forward's lead
        directions.append(Direction.BACKWARD)
    for direction in directions:
        lead = _lead(workload, direction)
        assert lead is not None, "tp > 1 always has a lead"
        name, stands_for = lead
        part = next(
            design.part
            for design in partition_designs(workload, direction)
            if design.name == stands_for
        )
        yield _clock_only(
            name, direction, Execution.LEAD, part_operators(part, half), None, workload
        )
    for direction in Direction:
        yield _clock_only(
            _edge_name(direction, "trail"),
            direction,
            Execution.TRAIL,
            (),
            _collective(_AR, workload, half),
            workload,
        )


def _outside_names(workload: Workload, stage: int, direction: Direction) -> tuple[str, ...]:
    """Work outside partitions of an instruction, in order of execution."""
    first, last = stage == 0, stage == workload.parallelism.pp - 1
    if direction is Direction.FORWARD:
        return (*(("preprocess",) if first else ()), *(("postprocess", "loss") if last else ()))
    return (
        *(("postprocess_backward",) if last else ()),
        *(("preprocess_backward",) if first else ()),
    )


def _outside(workload: Workload, whole: BlockShape) -> Iterable[Partition]:
    """Embedding, head and loss of a whole microbatch, with the vocabulary split over tp.

    All-reduces after them: the embedding's output; the loss's three fp32 numbers per token
    (maximum, sum, target logit), as one; the gradient of the head's input.
    """
    residual = _collective(_AR, workload, whole)
    per_token = _collective(_AR, workload, whole, num_bytes=3 * FP32_BYTES * whole.num_tokens)
    for name, direction, operators, collective in (
        ("preprocess", Direction.FORWARD, embedding_operators(whole), residual),
        ("postprocess", Direction.FORWARD, head_operators(whole), None),
        ("loss", Direction.FORWARD, loss_operators(whole), per_token),
        (
            "postprocess_backward",
            Direction.BACKWARD,
            head_operators(whole, backward=True),
            residual,
        ),
        (
            "preprocess_backward",
            Direction.BACKWARD,
            embedding_operators(whole, backward=True),
            None,
        ),
    ):
        yield _clock_only(name, direction, Execution.OUTSIDE, operators, collective, workload)
