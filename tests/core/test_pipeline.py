import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.partition import Direction
from kareus.core.pipeline import (
    Instruction,
    InstructionRecipe,
    Pipeline,
    PipelineOrder,
    build_pipeline,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    recipes_by_kind,
)
from kareus.errors import ConfigError

F, B = Direction.FORWARD, Direction.BACKWARD


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    order = draw(st.sampled_from(PipelineOrder))
    chunks = draw(st.integers(2, 4)) if order is PipelineOrder.INTERLEAVED else 1
    return build_pipeline(
        order, draw(st.integers(1, 7)), draw(st.integers(1, 18)), num_chunks=chunks
    )


def _ends_by_recursion(pipeline: Pipeline, durations: dict[Instruction, float]) -> float:
    """The iteration time from the definition, instruction by instruction, with no graph."""
    last = pipeline.num_stages * pipeline.num_chunks - 1
    place = {
        (i.chunk * pipeline.num_stages + i.stage, i.direction, i.microbatch): i
        for i in pipeline.instructions
    }
    before = {b: a for stage in pipeline.stages for a, b in itertools.pairwise(stage)}
    ends: dict[Instruction, float] = {}
    # Each pass finishes whatever can start; no pass without progress unless there is a deadlock.
    while len(ends) < len(durations):
        progress = False
        for instruction, duration in durations.items():
            if instruction in ends:
                continue
            depth = instruction.chunk * pipeline.num_stages + instruction.stage
            needed = [before[instruction]] if instruction in before else []
            if instruction.direction is F and depth > 0:
                needed.append(place[depth - 1, F, instruction.microbatch])
            if instruction.direction is B:
                needed.append(
                    place[last, F, instruction.microbatch]
                    if depth == last
                    else place[depth + 1, B, instruction.microbatch]
                )
            if all(other in ends for other in needed):
                ends[instruction] = max((ends[o] for o in needed), default=0.0) + duration
                progress = True
        assert progress, "deadlock"
    return max(ends.values())


@given(pipelines())
def test_each_instruction_runs_once(pipeline: Pipeline) -> None:
    microbatches = {i.microbatch for i in pipeline.instructions}
    expected = {
        Instruction(stage=s, direction=d, microbatch=m, chunk=c)
        for s in range(pipeline.num_stages)
        for d in Direction
        for m in microbatches
        for c in range(pipeline.num_chunks)
    }
    assert len(pipeline.instructions) == len(expected)
    assert set(pipeline.instructions) == expected
    assert all(i.stage == s for s, stage in enumerate(pipeline.stages) for i in stage)


@given(pipelines(), st.randoms(use_true_random=False))
def test_makespan_equals_an_independent_recursion(pipeline: Pipeline, random) -> None:
    durations = [random.randint(1, 9) / 8 for _ in pipeline.instructions]
    expected = _ends_by_recursion(
        pipeline, dict(zip(pipeline.instructions, durations, strict=True))
    )
    assert pipeline.makespan_s(durations) == expected


@given(pipelines())
def test_edges_respect_order_and_data(pipeline: Pipeline) -> None:
    starts = pipeline.start_times_s([1.0] * len(pipeline.instructions))
    for before, after in pipeline.edges:
        assert starts[after] >= starts[before] + 1.0
    rank = {position: k for k, position in enumerate(pipeline.topological_order)}
    assert all(rank[a] < rank[b] for a, b in pipeline.edges)


@given(st.integers(1, 8), st.integers(1, 20))
def test_one_f_one_b_holds_few_activations(num_stages: int, num_microbatches: int) -> None:
    pipeline = one_f_one_b(num_stages, num_microbatches)
    for stage, instructions in enumerate(pipeline.stages):
        held = list(itertools.accumulate(1 if i.direction is F else -1 for i in instructions))
        assert max(held) == min(num_stages - stage, num_microbatches)
        assert held[-1] == 0


def test_one_f_one_b_uniform_makespan() -> None:
    # (M + S - 1) rounds of a forward and a backward: the textbook bubble.
    pipeline = one_f_one_b(4, 8)
    durations = [1.0 if i.direction is F else 2.0 for i in pipeline.instructions]
    assert pipeline.makespan_s(durations) == (8 + 4 - 1) * 3.0


def test_gpipe_runs_all_forwards_first() -> None:
    for stage in gpipe(3, 4).stages:
        assert [i.direction for i in stage] == [F] * 4 + [B] * 4


def test_interleaving_shrinks_the_bubble() -> None:
    # Two chunks of half the work each: the bubble of (S - 1) rounds halves.
    pipeline = interleaved_one_f_one_b(4, 8, num_chunks=2)
    durations = [0.5 if i.direction is F else 1.0 for i in pipeline.instructions]
    assert pipeline.makespan_s(durations) == 8 * 3.0 + (4 - 1) * 3.0 / 2


def test_interleaved_first_stage_order_as_published() -> None:
    # Megatron-LM's table for 2 stages, 4 microbatches, 2 chunks, stage 0.
    stage = interleaved_one_f_one_b(2, 4, num_chunks=2).stages[0]
    words = [f"{i.direction.value[0]}{i.microbatch}{'ab'[i.chunk]}" for i in stage]
    assert " ".join(words) == "f0a f1a f0b f1b f2a b0b f3a b1b f2b b0a f3b b1a b2b b3b b2a b3a"


def test_kinds_name_virtual_stages() -> None:
    pipeline = interleaved_one_f_one_b(2, 2, num_chunks=3)
    assert set(pipeline.kinds) == {(v, d) for v in range(6) for d in Direction}
    assert set(one_f_one_b(3, 2).kinds) == {(s, d) for s in range(3) for d in Direction}


@pytest.mark.parametrize(
    ("order", "stages", "microbatches", "chunks", "word"),
    [
        (PipelineOrder.ONE_F_ONE_B, 0, 4, 1, "num_stages = 0"),
        (PipelineOrder.GPIPE, 2, 0, 1, "num_microbatches = 0"),
        (PipelineOrder.INTERLEAVED, 2, 4, 0, "num_chunks = 0"),
        (PipelineOrder.ONE_F_ONE_B, 2, 4, 2, "one model chunk per stage"),
    ],
)
def test_impossible_numbers_are_refused(order, stages, microbatches, chunks, word) -> None:
    with pytest.raises(ConfigError, match=word):
        build_pipeline(order, stages, microbatches, num_chunks=chunks)


def test_recipes_are_grouped() -> None:
    one = InstructionRecipe(nanobatch=(("a", 1),), sequential=())
    other = InstructionRecipe(nanobatch=(("b", 1),), sequential=())
    groups = recipes_by_kind({(0, F): one, (1, F): one, (0, B): other})
    assert groups == {one: [(0, F), (1, F)], other: [(0, B)]}
