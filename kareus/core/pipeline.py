"""Stages, instructions, pipeline orders, and the longest path through an iteration.

Legend: S stages, M microbatches, V model chunks per stage (1 unless interleaved). Chunk c of stage
s is virtual stage v = c S + s: the depth in the model, 0 .. S V - 1. F(v, m) and B(v, m) are the
forward and backward instruction of microbatch m on virtual stage v. Precedence: the order on each
stage, F(v, m) -> F(v+1, m), B(v, m) -> B(v-1, m), F(S V - 1, m) -> B(S V - 1, m).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from kareus.core.partition import Direction
from kareus.errors import ConfigError


class PipelineOrder(StrEnum):
    """In which order a stage executes its instructions."""

    ONE_F_ONE_B = "1f1b"
    GPIPE = "gpipe"
    INTERLEAVED = "interleaved-1f1b"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Instruction:
    """The forward or the backward of one microbatch on one stage.

    With interleaved orders a device holds several model chunks; `chunk` says which (0 otherwise).
    """

    stage: int
    direction: Direction
    microbatch: int
    chunk: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class InstructionRecipe:
    """What one kind of instruction of one stage consists of.

    Attributes:
        nanobatch: Partition names with how often each runs, in the order of the `scheds_` files;
            under recompute a backward recipe names forward partitions first. Counts are those
            with a collective beside them; the one computation without (`lead`) is not among them.
        sequential: The same microbatch unsplit: sequential parts with their counts.
        lead: Name of the unit for the first computation, and the name of the nanobatch partition
            whose count it stands in for; None where partitions have no collective.
        trail: Name of the unit for the last exposed collective; None likewise.
        outside: Work outside partitions with counts.
    """

    nanobatch: tuple[tuple[str, int], ...]
    sequential: tuple[tuple[str, int], ...]
    lead: tuple[str, str] | None = None
    trail: str | None = None
    outside: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """An iteration's precedence graph.

    Attributes:
        stages: Per stage, its instructions in execution order.
        order: The order they follow.
    """

    stages: tuple[tuple[Instruction, ...], ...]
    order: PipelineOrder

    @property
    def num_stages(self) -> int:
        """Number of stages (devices along the pipeline)."""
        return len(self.stages)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """All instructions, stage by stage, in execution order."""
        return tuple(instruction for stage in self.stages for instruction in stage)

    @property
    def num_chunks(self) -> int:
        """Model chunks per stage: 1 unless the order interleaves them."""
        return 1 + max(instruction.chunk for instruction in self.instructions)

    @cached_property
    def kinds(self) -> tuple[tuple[int, Direction], ...]:
        """For each position in `instructions`, its virtual stage and direction.

        Instructions of one kind do the same work, so they have the same options. Without
        interleaving the virtual stage is the stage.
        """
        return tuple(
            (instruction.chunk * self.num_stages + instruction.stage, instruction.direction)
            for instruction in self.instructions
        )

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Precedence as pairs of positions in `instructions` (before, after)."""
        position = {instruction: i for i, instruction in enumerate(self.instructions)}
        edges: list[tuple[int, int]] = []
        for stage in self.stages:
            edges.extend((position[a], position[b]) for a, b in itertools.pairwise(stage))
        last_depth = self.num_stages * self.num_chunks - 1
        for after, (depth, direction) in zip(self.instructions, self.kinds, strict=True):
            if direction is Direction.FORWARD:
                if depth == 0:
                    continue
                depth -= 1
            elif depth == last_depth:
                direction = Direction.FORWARD
            else:
                depth += 1
            before = Instruction(
                stage=depth % self.num_stages,
                direction=direction,
                microbatch=after.microbatch,
                chunk=depth // self.num_stages,
            )
            edges.append((position[before], position[after]))
        return tuple(edges)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each position in `instructions`, the positions that must end before it starts."""
        before: list[list[int]] = [[] for _ in self.instructions]
        for a, b in self.edges:
            before[b].append(a)
        return tuple(tuple(sorted(set(positions))) for positions in before)

    @cached_property
    def topological_order(self) -> tuple[int, ...]:
        """Positions in an order in which every predecessor comes first."""
        waiting = [len(before) for before in self.predecessors]
        after: list[list[int]] = [[] for _ in self.instructions]
        for position, before in enumerate(self.predecessors):
            for b in before:
                after[b].append(position)
        ready = [position for position, count in enumerate(waiting) if count == 0]
        order: list[int] = []
        while ready:
            position = ready.pop()
            order.append(position)
            for successor in after[position]:
                waiting[successor] -= 1
                if waiting[successor] == 0:
                    ready.append(successor)
        assert len(order) == len(self.instructions), "a pipeline order must not deadlock"
        return tuple(order)

    def start_times_s(self, durations_s: Sequence[float]) -> list[float]:
        """Return the earliest start of every instruction.

        Args:
            durations_s: Seconds per instruction, in the order of `instructions`.

        Returns:
            Start times in seconds, in the same order.
        """
        starts = [0.0] * len(durations_s)
        for position in self.topological_order:
            starts[position] = max(
                (starts[b] + durations_s[b] for b in self.predecessors[position]), default=0.0
            )
        return starts

    def makespan_s(self, durations_s: Sequence[float]) -> float:
        """Return the iteration time: the longest path through the given durations, in seconds."""
        starts = self.start_times_s(durations_s)
        return max(start + duration for start, duration in zip(starts, durations_s, strict=True))


def build_pipeline(
    order: PipelineOrder, num_stages: int, num_microbatches: int, *, num_chunks: int = 1
) -> Pipeline:
    """Return the pipeline of an iteration in the given order.

    Args:
        order: 1F1B, GPipe or interleaved 1F1B.
        num_stages: Stages, at least 1.
        num_microbatches: Microbatches, at least 1; fewer than stages is allowed.
        num_chunks: Model chunks per stage; above 1 for interleaved 1F1B only.

    Raises:
        ConfigError: A number is below 1, or chunks are given to an order that has none.
    """
    if order is PipelineOrder.INTERLEAVED:
        return interleaved_one_f_one_b(num_stages, num_microbatches, num_chunks=num_chunks)
    if num_chunks != 1:
        raise ConfigError(
            f"num_chunks = {num_chunks}: order {order.value} has one model chunk per stage; "
            f"use {PipelineOrder.INTERLEAVED.value}, or num_chunks = 1"
        )
    if order is PipelineOrder.GPIPE:
        return gpipe(num_stages, num_microbatches)
    return one_f_one_b(num_stages, num_microbatches)


def one_f_one_b(num_stages: int, num_microbatches: int) -> Pipeline:
    """Return the synchronous 1F1B pipeline.

    Stage s runs min(S - s - 1, M) warm-up forwards, then one forward and one backward in turn,
    then the remaining backwards. Any M >= 1 works, also below the number of stages.

    Args:
        num_stages: Stages, at least 1.
        num_microbatches: Microbatches, at least 1.

    Raises:
        ConfigError: A number is below 1.
    """
    _check_counts(num_stages, num_microbatches, 1)
    return Pipeline(
        stages=tuple(
            _warm_up_then_alternate(
                _microbatches(stage, Direction.FORWARD, num_microbatches),
                _microbatches(stage, Direction.BACKWARD, num_microbatches),
                num_warmup=num_stages - stage - 1,
            )
            for stage in range(num_stages)
        ),
        order=PipelineOrder.ONE_F_ONE_B,
    )


def gpipe(num_stages: int, num_microbatches: int) -> Pipeline:
    """Return the GPipe pipeline: every stage runs all its forwards, then all its backwards.

    Microbatches keep their order in both passes.

    Args:
        num_stages: Stages, at least 1.
        num_microbatches: Microbatches, at least 1.

    Raises:
        ConfigError: A number is below 1.
    """
    _check_counts(num_stages, num_microbatches, 1)
    return Pipeline(
        stages=tuple(
            _microbatches(stage, Direction.FORWARD, num_microbatches)
            + _microbatches(stage, Direction.BACKWARD, num_microbatches)
            for stage in range(num_stages)
        ),
        order=PipelineOrder.GPIPE,
    )


def interleaved_one_f_one_b(num_stages: int, num_microbatches: int, *, num_chunks: int) -> Pipeline:
    """Return the interleaved 1F1B pipeline (Narayanan et al. 2021, section 2.2).

    Each stage holds V chunks of the model. Microbatches go in groups of S: a group passes the
    first chunk, then the second, and so on (backwards: the last chunk first). Stage s runs
    2 (S - s - 1) + (V - 1) S warm-up forwards, then one forward and one backward in turn, then the
    remaining backwards. Where S does not divide M, floor(M / S) groups (at least one) share the
    microbatches as evenly as they can, and the warm-up counts with the largest: a last group below
    S would deadlock. One chunk is plain 1F1B.

    Args:
        num_stages: Stages, at least 1.
        num_microbatches: Microbatches, at least 1.
        num_chunks: Model chunks per stage, at least 1.

    Raises:
        ConfigError: A number is below 1.
    """
    _check_counts(num_stages, num_microbatches, num_chunks)
    if num_chunks == 1:
        return one_f_one_b(num_stages, num_microbatches)
    num_groups = max(1, num_microbatches // num_stages)
    size, remainder = divmod(num_microbatches, num_groups)
    ends = [size * g + min(g, remainder) for g in range(num_groups + 1)]
    groups = [range(first, end) for first, end in itertools.pairwise(ends)]
    group_size = len(groups[0])

    def in_groups(stage: int, direction: Direction, chunks: range) -> tuple[Instruction, ...]:
        return tuple(
            Instruction(stage=stage, direction=direction, microbatch=m, chunk=chunk)
            for group in groups
            for chunk in chunks
            for m in group
        )

    return Pipeline(
        stages=tuple(
            _warm_up_then_alternate(
                in_groups(stage, Direction.FORWARD, range(num_chunks)),
                in_groups(stage, Direction.BACKWARD, range(num_chunks - 1, -1, -1)),
                num_warmup=2 * (num_stages - stage - 1) + (num_chunks - 1) * group_size,
            )
            for stage in range(num_stages)
        ),
        order=PipelineOrder.INTERLEAVED,
    )


def _check_counts(num_stages: int, num_microbatches: int, num_chunks: int) -> None:
    """Refuse numbers below 1."""
    for name, value in (
        ("num_stages", num_stages),
        ("num_microbatches", num_microbatches),
        ("num_chunks", num_chunks),
    ):
        if value < 1:
            raise ConfigError(f"{name} = {value}: a pipeline needs at least 1")


def _microbatches(
    stage: int, direction: Direction, num_microbatches: int
) -> tuple[Instruction, ...]:
    """One pass of a stage over all microbatches, in order."""
    return tuple(
        Instruction(stage=stage, direction=direction, microbatch=m) for m in range(num_microbatches)
    )


def _warm_up_then_alternate(
    forwards: tuple[Instruction, ...], backwards: tuple[Instruction, ...], *, num_warmup: int
) -> tuple[Instruction, ...]:
    """Warm-up forwards, then forward and backward in turn, then the remaining backwards."""
    num_warmup = min(num_warmup, len(forwards))
    instructions = list(forwards[:num_warmup])
    for forward, backward in zip(forwards[num_warmup:], backwards, strict=False):
        instructions += [forward, backward]
    return (*instructions, *backwards[len(forwards) - num_warmup :])


def recipes_by_kind(
    recipes: Mapping[tuple[int, Direction], InstructionRecipe],
) -> dict[InstructionRecipe, list[tuple[int, Direction]]]:
    """Group the (stage, direction) kinds that share one recipe, so each is composed once."""
    groups: dict[InstructionRecipe, list[tuple[int, Direction]]] = {}
    for kind, recipe in recipes.items():
        groups.setdefault(recipe, []).append(kind)
    return groups
