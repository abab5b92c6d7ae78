"""Stages with a split vocabulary against the single process, and under torch's pipelining."""

import itertools

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from kareus.core.partition import Direction
from kareus.core.workload import Parallelism, Recompute
from kareus.errors import ConfigError
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.settings import InstructionSettings
from kareus.execute.stage import Stage
from kareus.execute.trace import Trace
from kareus.execute.vocabulary import IGNORED_TARGET, vocabulary_range
from tests.execute.cases import CPU, SEQ_LEN, launch_settings, tiny_model, tiny_workload
from tests.execute.world import run_world

VOCAB = 30  # tp 4 does not divide it
NUM_STEPS = 3


def make_stage(workload, groups, *, stage_index=0, dropout_rate=0.0):
    return Stage(
        workload,
        stage_index,
        groups=groups,
        device=CPU,
        dtype=torch.float64,
        dropout_rate=dropout_rate,
        seed=4,
    )


def make_batch(num_sequences):
    generator = torch.Generator().manual_seed(100)
    tokens = torch.randint(VOCAB, (num_sequences, SEQ_LEN + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def reference_losses(model, num_microbatches, *, num_replicas=1, recompute=Recompute.NONE):
    """Losses of plain sequential training in one process, and the stage after it."""
    workload = tiny_workload(model=model, recompute=recompute)
    stage = make_stage(workload, ParallelGroups.single(CPU))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    losses = []
    for _ in range(NUM_STEPS):
        tokens, targets = make_batch(workload.microbatch_size * num_microbatches * num_replicas)
        loss = stage.loss(stage(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, stage


# -- one stage, tp and cp


def train_split(tp, cp, tied, family):
    """Losses of this rank over a few steps, nanobatched."""
    model = tiny_model(tied=tied, family=family, qk_norm=family == "qwen3", vocab_size=VOCAB)
    mesh = build_mesh(Parallelism(tp=tp, cp=cp, dp=4 // (tp * cp)), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(tp=tp, cp=cp, model=model)
    stage = make_stage(workload, groups)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    losses = []
    for step in range(NUM_STEPS):
        stage.configure(
            forward=launch_settings(workload, Direction.FORWARD, step),
            backward=launch_settings(workload, Direction.BACKWARD, step + 1),
        )
        tokens, targets = make_batch(workload.microbatch_size)
        loss = stage.loss(stage(stage.shard_tokens(tokens)), stage.shard_tokens(targets))
        optimizer.zero_grad()
        loss.backward()
        stage.reduce_gradients()
        optimizer.step()
        losses.append(float(groups.cp.reduce_now(loss.detach())))
    return losses


SPLITS = [
    (4, 1, False, "qwen3"),
    (2, 2, False, "qwen3"),
    (2, 2, True, "llama"),
    (1, 2, True, "qwen3"),
    (2, 2, False, "gpt"),
]


def train_all_splits():
    return [train_split(*split) for split in SPLITS]


@pytest.fixture(scope="module")
def split_losses():
    return run_world(4, train_all_splits)


@pytest.mark.parametrize("number", range(len(SPLITS)), ids=lambda n: "-".join(map(str, SPLITS[n])))
def test_losses_equal_the_single_process(split_losses, number):
    _, _, tied, family = SPLITS[number]
    model = tiny_model(tied=tied, family=family, qk_norm=family == "qwen3", vocab_size=VOCAB)
    expected, _ = reference_losses(model, 1)
    assert expected[-1] < expected[0]
    for of_rank in split_losses:
        assert of_rank[number] == pytest.approx(expected, rel=1e-10)


def test_loss_is_the_cross_entropy_and_ignores_targets():
    stage = make_stage(tiny_workload(), ParallelGroups.single(CPU))
    tokens, targets = make_batch(4)
    logits = stage(tokens).detach().requires_grad_()
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    loss = stage.loss(logits, targets)
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)

    targets[0] = IGNORED_TARGET
    summed = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
    )
    torch.testing.assert_close(stage.loss(logits, targets), summed / targets.numel())


@pytest.mark.parametrize(("size", "tp"), [(30, 1), (30, 4), (7, 4), (4, 4)])
def test_vocabulary_ranges_cover_every_row_once(size, tp):
    ranges = [vocabulary_range(size, tp=tp, rank=rank) for rank in range(tp)]
    assert list(itertools.chain(*ranges)) == list(range(size))


def test_vocabulary_below_tp_is_refused():
    with pytest.raises(ConfigError, match="vocabulary of 3 cannot be split over tp 4"):
        vocabulary_range(3, tp=4, rank=0)


def test_dropout_of_a_step_depends_on_its_number_alone():
    stage = make_stage(tiny_workload(), ParallelGroups.single(CPU), dropout_rate=0.3)
    tokens, _ = make_batch(4)
    stage.begin_step(7)
    first, second = stage(tokens), stage(tokens)
    assert not torch.equal(first, second)
    stage.begin_step(8)
    assert not torch.equal(stage(tokens), first)
    stage.begin_step(7)
    torch.testing.assert_close(stage(tokens), first, rtol=0, atol=0)
    stage.eval()
    torch.testing.assert_close(stage(tokens), stage(tokens), rtol=0, atol=0)


def test_stage_out_of_range_is_refused():
    with pytest.raises(ConfigError, match="stage 1 of 1 stages"):
        make_stage(tiny_workload(), ParallelGroups.single(CPU), stage_index=1)


# -- pipelining

NUM_MICROBATCHES = 4


class ConfiguredStage(PipelineStage):
    """Gives every instruction settings of its own, as a trainer does."""

    def __init__(self, stage, settings, **kwargs):
        super().__init__(stage, stage.stage_index, stage.workload.parallelism.pp, CPU, **kwargs)
        self.settings = settings

    def forward_one_chunk(self, fwd_chunk_id, *args, **kwargs):
        self.submod.configure(forward=self.settings[Direction.FORWARD][fwd_chunk_id])
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id, *args, **kwargs):
        self.submod.configure(backward=self.settings[Direction.BACKWARD][bwd_chunk_id])
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)


def train_pipeline(recompute, static, tied):
    """Losses of the last stage (None on the others) and the launches of a step."""
    model = tiny_model(tied=tied, vocab_size=VOCAB)
    parallelism = Parallelism(tp=2, pp=2)
    mesh = build_mesh(parallelism, "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(
        tp=2, pp=2, model=model, recompute=recompute, num_microbatches=NUM_MICROBATCHES
    )
    stage = make_stage(workload, groups, stage_index=mesh.get_local_rank("pp"))
    settings = {
        direction: [launch_settings(workload, direction, m) for m in range(NUM_MICROBATCHES)]
        for direction in Direction
    }
    if recompute is Recompute.FULL:  # either pass of a microbatch may be sequential
        settings[Direction.FORWARD][1] = InstructionSettings.sequential()
        settings[Direction.BACKWARD][2] = InstructionSettings.sequential()
    metadata = {}
    if static:
        input_args, output_args = stage.pipeline_metadata()
        metadata = {"input_args": input_args, "output_args": output_args}
    pipeline_stage = ConfiguredStage(stage, settings, group=mesh.get_group("pp"), **metadata)
    loss_fn = stage.loss if stage.last else (lambda output, target: output.sum())
    schedule = Schedule1F1B(pipeline_stage, NUM_MICROBATCHES, loss_fn=loss_fn)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    losses = []
    for _ in range(NUM_STEPS):
        stage.trace = Trace()
        tokens, targets = make_batch(workload.microbatch_size * NUM_MICROBATCHES)
        optimizer.zero_grad()
        of_microbatches = []
        schedule.step(
            *([tokens] if stage.first else []),
            target=targets if stage.last else None,
            losses=of_microbatches,
        )
        stage.reduce_gradients(tied=mesh.get_group("pp") if tied else None)
        optimizer.step()
        losses.append(sum(loss.item() for loss in of_microbatches) / NUM_MICROBATCHES)
    launches = [
        (launch.direction, launch.unit, launch.launch_point) for launch in stage.trace.launches()
    ]
    return (losses if stage.last else None), launches


PIPELINES = [
    (Recompute.FULL, True, False),
    (Recompute.NONE, True, True),
    (Recompute.FULL, False, False),
]


def train_all_pipelines():
    return [train_pipeline(*pipeline) for pipeline in PIPELINES]


@pytest.fixture(scope="module")
def pipelines():
    return run_world(4, train_all_pipelines)


@pytest.mark.parametrize("number", range(len(PIPELINES)))
def test_pipelined_losses_equal_the_single_process(pipelines, number):
    model = tiny_model(tied=PIPELINES[number][2], vocab_size=VOCAB)
    expected, _ = reference_losses(model, NUM_MICROBATCHES)
    losses = [of_rank[number][0] for of_rank in pipelines]
    assert losses[:2] == [None, None]
    for of_rank in losses[2:]:
        assert of_rank == pytest.approx(expected, rel=1e-10)


def test_every_instruction_of_a_pipeline_follows_its_own_settings(pipelines):
    recompute = PIPELINES[0][0]
    workload = tiny_workload(tp=2, pp=2, recompute=recompute, num_microbatches=NUM_MICROBATCHES)
    for of_rank in pipelines:
        launches = of_rank[0][1]
        # In either pass a sequential instruction shows its units, the others their launch points.
        for direction, sequential in ((Direction.FORWARD, 1), (Direction.BACKWARD, 2)):
            seen = {point for d, unit, point in launches if d is direction and unit == "fwd_mlp"}
            wanted = {
                launch_settings(workload, direction, m).configurations["fwd_mlp"].launch_point.value
                for m in range(NUM_MICROBATCHES)
                if m != sequential
            }
            assert seen == wanted
            assert any(unit.startswith("seq_") for d, unit, _ in launches if d is direction)


def train_replicas(wrapping, recompute):
    """Losses of a replica, its gradients averaged by DDP, by FSDP2, or by the stage itself."""
    mesh = build_mesh(Parallelism(dp=2), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(dp=2, model=tiny_model(vocab_size=VOCAB), recompute=recompute)
    stage = make_stage(workload, groups)
    stage.configure(
        forward=InstructionSettings.default(workload, Direction.FORWARD),
        backward=InstructionSettings.default(workload, Direction.BACKWARD),
    )
    replica = stage
    if wrapping == "ddp":
        replica = DistributedDataParallel(stage, process_group=mesh.get_group("dp"))
    elif wrapping == "fsdp":
        fully_shard(stage.blocks, mesh=mesh["dp"])
        fully_shard(stage, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.5)
    tokens, targets = (
        batch.chunk(2)[mesh.get_local_rank("dp")]
        for batch in make_batch(workload.microbatch_size * 2)
    )
    losses = []
    for _ in range(NUM_STEPS):
        loss = stage.loss(replica(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        if wrapping == "reduced":
            stage.reduce_gradients(dp=mesh.get_group("dp"))
        optimizer.step()
        losses.append(loss.item())
    return losses


REPLICAS = list(itertools.product(("ddp", "fsdp", "reduced"), Recompute))


def train_all_replicas():
    return [train_replicas(*replicas) for replicas in REPLICAS]


@pytest.fixture(scope="module")
def replica_losses():
    return run_world(2, train_all_replicas)


@pytest.mark.parametrize("number", range(len(REPLICAS)), ids=lambda n: "-".join(REPLICAS[n]))
def test_data_parallel_replicas_train_as_one(replica_losses, number):
    expected, _ = reference_losses(tiny_model(vocab_size=VOCAB), 1, num_replicas=2)
    first, second = (of_rank[number] for of_rank in replica_losses)
    mean = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    assert mean == pytest.approx(expected, rel=1e-10)
