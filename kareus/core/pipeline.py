"""Stages, instructions, pipeline orders, and the longest path through an iteration.

Legend: S stages, M microbatches, F(s, m) and B(s, m) the forward and backward instruction of
microbatch m on stage s. Precedence: the order on each stage, F(s, m) -> F(s+1, m),
B(s, m) -> B(s-1, m), F(S-1, m) -> B(S-1, m).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from kareus.core.partition import Direction


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

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Precedence as pairs of positions in `instructions` (before, after)."""
        position = {instruction: i for i, instruction in enumerate(self.instructions)}
        edges: list[tuple[int, int]] = []
        for stage in self.stages:
            edges.extend((position[a], position[b]) for a, b in itertools.pairwise(stage))
        num_chunks = 1 + max(instruction.chunk for instruction in self.instructions)
        last_depth = self.num_stages * num_chunks - 1
        for after in self.instructions:
            depth = after.chunk * self.num_stages + after.stage
            if after.direction is Direction.FORWARD:
                if depth == 0:
                    continue
                before_depth, direction = depth - 1, Direction.FORWARD
            elif depth == last_depth:
                before_depth, direction = depth, Direction.FORWARD
            else:
                before_depth, direction = depth + 1, Direction.BACKWARD
            before = Instruction(
                stage=before_depth % self.num_stages,
                direction=direction,
                microbatch=after.microbatch,
                chunk=before_depth // self.num_stages,
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


def one_f_one_b(num_stages: int, num_microbatches: int) -> Pipeline:
    """Return the synchronous 1F1B pipeline.

    Stage s runs min(S - s - 1, M) warm-up forwards, then one forward and one backward in turn,
    then the remaining backwards. Any M >= 1 works, also below the number of stages.

    Args:
        num_stages: Stages, at least 1.
        num_microbatches: Microbatches, at least 1.
    """
    stages = []
    for stage in range(num_stages):
        num_warmup = min(num_stages - stage - 1, num_microbatches)
        forwards = [
            Instruction(stage=stage, direction=Direction.FORWARD, microbatch=m)
            for m in range(num_microbatches)
        ]
        backwards = [
            Instruction(stage=stage, direction=Direction.BACKWARD, microbatch=m)
            for m in range(num_microbatches)
        ]
        instructions = forwards[:num_warmup]
        for forward, backward in zip(forwards[num_warmup:], backwards, strict=False):
            instructions += [forward, backward]
        instructions += backwards[num_microbatches - num_warmup :]
        stages.append(tuple(instructions))
    return Pipeline(stages=tuple(stages), order=PipelineOrder.ONE_F_ONE_B)


def recipes_by_kind(
    recipes: Mapping[tuple[int, Direction], InstructionRecipe],
) -> dict[InstructionRecipe, list[tuple[int, Direction]]]:
    """Group the (stage, direction) kinds that share one recipe, so each is composed once."""
    groups: dict[InstructionRecipe, list[tuple[int, Direction]]] = {}
    for kind, recipe in recipes.items():
        groups.setdefault(recipe, []).append(kind)
    return groups
