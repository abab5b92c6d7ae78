"""A partition: one nanobatch's computation between two collectives, and the collective beside it.

The same type describes everything that is measured as a unit (`Execution`): nanobatched partitions,
the sequential parts of the baselines, the first computation and last collective of an instruction,
and the work outside partitions. Sizes are those of one execution on one GPU.
"""

from dataclasses import dataclass
from enum import StrEnum

from kareus.core.configuration import Configuration, LaunchPoint


class Direction(StrEnum):
    """Which pass of the network a computation belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


class OperatorKind(StrEnum):
    """What limits an operator: tensor cores (linear, attention) or memory (the others)."""

    NORM = "norm"
    LINEAR = "linear"
    ROPE = "rope"
    ATTENTION = "attention"
    ACTIVATION = "activation"
    EMBEDDING = "embedding"
    LOSS = "loss"


class CollectiveKind(StrEnum):
    """The collective operations of tensor and context parallelism."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"


class CollectiveGroup(StrEnum):
    """The process group over which a collective runs."""

    TP = "tp"
    CP = "cp"


class Execution(StrEnum):
    """How a measured unit is executed.

    `NANOBATCH`: half a microbatch beside the other half's collective (the space is searched).
    `SEQUENTIAL`: a whole microbatch's part, its collective exposed after it (the clock varies).
    `LEAD`: the first nanobatch computation of an instruction, with no collective beside it.
    `TRAIL`: the last nanobatch collective of an instruction, with no computation beside it.
    `OUTSIDE`: work outside partitions (embedding, head, loss), for a whole microbatch.
    """

    NANOBATCH = "nanobatch"
    SEQUENTIAL = "sequential"
    LEAD = "lead"
    TRAIL = "trail"
    OUTSIDE = "outside"


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator:
    """One kernel-sized piece of computation on one GPU.

    Attributes:
        slot: Name within the partition, such as `linear_0`; a launch point where one is offered.
        kind: What it does.
        flops: Floating-point operations.
        memory_bytes: Bytes read and written in GPU memory, once each.
    """

    slot: str
    kind: OperatorKind
    flops: float
    memory_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective call.

    Attributes:
        kind: The operation.
        group: The group it runs over.
        group_size: Number of ranks of that group, at least 2.
        message_bytes: Size of the full tensor: what an all-reduce reduces, what an all-gather
            yields on every rank, what a reduce-scatter takes on every rank.
    """

    kind: CollectiveKind
    group: CollectiveGroup
    group_size: int
    message_bytes: float

    @property
    def bus_bytes(self) -> float:
        """Bytes each rank sends over its links with a ring algorithm."""
        share = (self.group_size - 1) / self.group_size
        return self.message_bytes * share * (2 if self.kind is CollectiveKind.ALL_REDUCE else 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuringBudget:
    """A number of measurements: an initial design and batches chosen by the search.

    Attributes:
        initial: Measurements before the first fit.
        num_batches: Batches after it.
        batch_size: Measurements of each batch.
    """

    initial: int
    num_batches: int
    batch_size: int

    @property
    def total(self) -> int:
        """Number of measurements in all."""
        return self.initial + self.num_batches * self.batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """A unit of measurement with its search space.

    Attributes:
        name: Unique within a workload, such as `fwd_attn`, `seq_bwd_mlp` or `preprocess`.
        direction: Forward or backward.
        execution: How it is executed.
        operators: The computation, in order; empty for a trail.
        collective: The collective beside it (nanobatch) or exposed after it; None if none.
        clocks_mhz: Clocks offered, ascending.
        launch_points: Launch points searched, without `none`; empty if nothing is launched.
        sm_allocations: SM allocations searched, ascending; empty likewise.
        default_sm_allocation: What the baselines use; None likewise.
        published_budget: The measuring budget the paper's artifact uses; None where not searched.
    """

    name: str
    direction: Direction
    execution: Execution
    operators: tuple[Operator, ...]
    collective: Collective | None
    clocks_mhz: tuple[int, ...]
    launch_points: tuple[LaunchPoint, ...] = ()
    sm_allocations: tuple[int, ...] = ()
    default_sm_allocation: int | None = None
    published_budget: MeasuringBudget | None = None

    @property
    def searched(self) -> bool:
        """Whether launch point and SM allocation are chosen, not just the clock."""
        return bool(self.launch_points)

    def space(self) -> tuple[Configuration, ...]:
        """Return the search space in the order of `Configuration.sort_key` within each clock.

        Clocks x launch points x SM allocations; only the clocks where nothing is launched.
        """
        if not self.searched:
            return tuple(Configuration(clock_mhz=clock) for clock in self.clocks_mhz)
        return tuple(
            Configuration(clock_mhz=clock, sm_allocation=sms, launch_point=point)
            for clock in self.clocks_mhz
            for point in self.launch_points
            for sms in self.sm_allocations
        )

    def baseline_configurations(self) -> tuple[Configuration, ...]:
        """Return what the baselines need, measured beside the budget.

        At every clock: the default (first launch point, default allocation) and `none` with the
        default allocation; just the clock where nothing is launched.
        """
        if not self.searched:
            return self.space()
        return tuple(
            Configuration(
                clock_mhz=clock, sm_allocation=self.default_sm_allocation, launch_point=point
            )
            for clock in self.clocks_mhz
            for point in (self.launch_points[0], LaunchPoint.NONE)
        )
