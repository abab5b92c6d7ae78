import pytest
import torch

from kareus.errors import ConfigError, NotFoundError
from kareus.execute.parallel import ParallelGroups
from kareus.execute.stage import Stage
from kareus.train.checkpoint import (
    Checkpoint,
    check_checkpoint,
    describe_run,
    find_checkpoints,
    newest_checkpoint,
)
from kareus.train.optimizer import StageOptimizer
from tests.train.sample import make_workload, tiny_model

CPU = torch.device("cpu")


def make_stage(dtype, **model):
    workload = make_workload(model=tiny_model(**model))
    return Stage(workload, 0, groups=ParallelGroups.single(CPU), device=CPU, dtype=dtype)


def make_optimizer(stage, **counts):
    counts = {"counts_split": True, "counts_replicated": True, **counts}
    return StageOptimizer(stage, weight_decay=0.0, **counts)


def test_bf16_weights_follow_updates_smaller_than_their_spacing():
    """A weight of 1 has neighbours 2^-8 and 2^-7 away; an update of 2^-11 must not be lost."""
    stage = make_stage(torch.bfloat16)
    optimizer = make_optimizer(stage)
    for _ in range(32):
        for parameter in stage.parameters():
            parameter.grad = torch.ones_like(parameter, dtype=torch.float32)
        optimizer.step(learning_rate=2**-11, scale=1.0)
    norm = stage.get_parameter("head.norm")
    torch.testing.assert_close(norm.float(), torch.full_like(norm.float(), 1 - 32 * 2**-11))
    assert all(parameter.grad is None for parameter in stage.parameters())


def test_gradients_of_bf16_weights_are_summed_in_fp32():
    """A sum of ones in bf16 stays at 256."""
    stage = make_stage(torch.bfloat16)
    make_optimizer(stage)
    parameter = stage.get_parameter("head.norm")
    for _ in range(600):
        parameter.sum().backward()
    assert parameter.grad.dtype is torch.float32
    assert parameter.grad.tolist() == [600.0] * len(parameter)
    # The engine's gradients arrive likewise.
    tokens = torch.zeros((2, 16), dtype=torch.int64)
    stage.loss(stage(tokens), tokens).backward()
    assert {p.grad.dtype for p in stage.parameters()} == {torch.float32}


def test_the_norm_counts_what_this_rank_is_to_count():
    stage = make_stage(torch.float32)
    for parameter in stage.parameters():
        parameter.grad = torch.ones_like(parameter)
    sizes = {name: parameter.numel() for name, parameter in stage.named_parameters()}
    replicated = sum(n for name, n in sizes.items() if "norm" in name)
    norm = lambda **counts: float(make_optimizer(stage, **counts).squared_norm())  # noqa: E731
    assert norm() == pytest.approx(sum(sizes.values()))
    assert norm(counts_split=False) == pytest.approx(replicated)
    assert norm(counts_replicated=False) == pytest.approx(sum(sizes.values()) - replicated)
    assert norm(counts_split=False, counts_replicated=False) == 0.0


def test_clipping_scales_what_adam_sees():
    stage = make_stage(torch.float32)
    optimizer = make_optimizer(stage)
    parameter = stage.get_parameter("head.norm")
    parameter.grad = torch.full_like(parameter, 8.0)
    optimizer.step(learning_rate=0.0, scale=0.25)
    moments = optimizer.state()["head.norm.exp_avg"]
    torch.testing.assert_close(moments, torch.full_like(moments, 0.1 * 2.0))


def make_description(**changes):
    workload = make_workload()
    return {
        **describe_run(workload, seed=0, dtype="torch.float32", data=None, decay_steps=10),
        **changes,
    }


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    checkpoint = Checkpoint(path=tmp_path, step=3, description=make_description())
    check_checkpoint(checkpoint, make_description(decay_steps=99))
    for name, value in (("tp", 2), ("pp", 4), ("seed", 7), ("global_batch", 1), ("model", "x")):
        with pytest.raises(ConfigError, match=f"was made with {name} .*resume with {name}"):
            check_checkpoint(checkpoint, make_description(**{name: value}))


def test_a_checkpoint_that_was_cut_off_is_passed_over(tmp_path):
    with pytest.raises(NotFoundError, match="no complete checkpoint"):
        newest_checkpoint(tmp_path)
    for step, complete in ((4, True), (8, True), (12, False)):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        (folder / "kareus.json").write_text("{}")
        if complete:
            (folder / ".metadata").touch()
    assert [found.step for found in find_checkpoints(tmp_path)] == [4, 8]
    assert newest_checkpoint(tmp_path).step == 8
