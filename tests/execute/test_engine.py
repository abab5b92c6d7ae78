"""What the engine promises beside exactness: state per call, autocast, freed memory, refusals."""

import logging
import os
import signal
import time

import pytest
import torch

from kareus.core.partition import CollectiveGroup, Direction
from kareus.core.workload import Parallelism, Recompute
from kareus.errors import ConfigError, JobError
from kareus.execute import parallel
from kareus.execute.call import StackCall
from kareus.execute.parallel import Communicator, ParallelGroups, build_mesh
from kareus.execute.settings import InstructionSettings
from tests.execute.cases import (
    CPU,
    launch_settings,
    local,
    make_stack,
    make_tensors,
    plain_passes,
    tiny_workload,
)
from tests.execute.world import run_world


def single_stack(*, recompute=Recompute.FULL, dtype=torch.float64, dropout_rate=0.0):
    workload = tiny_workload(recompute=recompute)
    stack = make_stack(workload, ParallelGroups.single(CPU), dtype=dtype, dropout_rate=dropout_rate)
    stack.configure(
        forward=InstructionSettings.default(workload, Direction.FORWARD),
        backward=InstructionSettings.default(workload, Direction.BACKWARD),
    )
    return workload, stack


@pytest.mark.parametrize("recompute", list(Recompute))
def test_several_microbatches_in_flight_keep_apart(recompute):
    workload, stack = single_stack(recompute=recompute)
    batches = [make_tensors(workload, seed=seed) for seed in range(3)]
    leaves = [hidden.clone().requires_grad_() for hidden, _ in batches]
    outputs = [stack(leaf) for leaf in leaves]
    for number in (1, 0, 2):
        outputs[number].backward(batches[number][1])
    references = [plain_passes(workload, hidden, cotangent) for hidden, cotangent in batches]
    for leaf, output, reference in zip(leaves, outputs, references, strict=True):
        torch.testing.assert_close(output.detach(), reference.output)
        torch.testing.assert_close(leaf.grad, reference.input_gradient)
    for (layer, name), _ in references[0].gradients.items():
        torch.testing.assert_close(
            stack.blocks[layer].get_parameter(name).grad,
            sum(reference.gradients[layer, name] for reference in references),
        )


@pytest.mark.parametrize("recompute", list(Recompute))
def test_second_backward_is_refused(recompute):
    workload, stack = single_stack(recompute=recompute)
    hidden, cotangent = make_tensors(workload)
    output = stack(hidden.requires_grad_())
    output.backward(cotangent, retain_graph=True)
    with pytest.raises(ConfigError, match="backward of this forward has already run"):
        output.backward(cotangent)


def test_without_recompute_both_passes_must_be_split_alike():
    workload, stack = single_stack(recompute=Recompute.NONE)
    hidden, cotangent = make_tensors(workload)
    output = stack(hidden.requires_grad_())
    stack.configure(backward=InstructionSettings.sequential())
    with pytest.raises(ConfigError, match="forward was executed in nanobatches and its backward"):
        output.backward(cotangent)


def test_recompute_restores_autocast():
    gradients = {}
    for recompute in Recompute:
        workload, stack = single_stack(recompute=recompute, dtype=torch.float32, dropout_rate=0.25)
        hidden, cotangent = (tensor.float() for tensor in make_tensors(workload))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = stack(hidden.requires_grad_(), dropout_seed=3)
        output.backward(cotangent.to(output.dtype))
        gradients[recompute] = [hidden.grad, *(p.grad for p in stack.parameters())]
    for full, kept in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(full, kept, rtol=0, atol=0)
    _, plain = single_stack(dtype=torch.float32, dropout_rate=0.25)
    plain(hidden.detach(), dropout_seed=3).backward(cotangent)
    # Autocast was on: bf16 products differ from fp32 ones.
    assert not torch.equal(gradients[Recompute.FULL][1], next(iter(plain.parameters())).grad)


def test_frozen_parameters_get_no_gradient():
    workload, stack = single_stack()
    stack.blocks[0].qkv.requires_grad_(False)
    hidden, cotangent = make_tensors(workload)
    stack(hidden.requires_grad_()).backward(cotangent)
    assert stack.blocks[0].qkv.grad is None
    reference = plain_passes(workload, hidden, cotangent)
    torch.testing.assert_close(stack.blocks[0].proj.grad, reference.gradients[0, "proj"])


def test_inference_keeps_nothing():
    workload, stack = single_stack(recompute=Recompute.NONE)
    hidden, cotangent = make_tensors(workload)
    with torch.no_grad():
        output = stack(hidden)
    assert not output.requires_grad
    torch.testing.assert_close(output, plain_passes(workload, hidden, cotangent).output)


def gathered_bytes():
    """Bytes of the gathered keys and values a call holds between forward and backward."""
    mesh = build_mesh(Parallelism(cp=2), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(cp=2, recompute=Recompute.NONE)
    stack = make_stack(workload, groups)
    settings = {d: launch_settings(workload, d, 0) for d in Direction}
    stack.configure(forward=settings[Direction.FORWARD], backward=settings[Direction.BACKWARD])
    hidden, _ = make_tensors(workload)
    call = StackCall(stack, dropout_seed=0, record=True)
    with torch.no_grad():
        call.forward(local(hidden, groups), tuple(stack.parameters()))
    return [
        record.full_kv.untyped_storage().nbytes()
        for state in call._states
        for record in state.records.values()
    ]


def test_gathered_keys_and_values_are_freed_until_the_backward():
    assert run_world(2, gathered_bytes) == [[0] * 4, [0] * 4]


class FakeNccl:
    """Stands in for the parts of torch.distributed that only a CUDA build has."""

    class Options:
        def __init__(self, is_high_priority_stream=False):
            self.is_high_priority_stream = is_high_priority_stream
            self.config = type("Config", (), {"min_ctas": None, "max_ctas": None})()


def test_nccl_has_one_process_group_per_allocation_made_lazily(monkeypatch):
    made = []

    def new_group(ranks, **options):
        made.append((ranks, options))
        return object()

    monkeypatch.setattr(parallel.dist, "ProcessGroupNCCL", FakeNccl, raising=False)
    monkeypatch.setattr(parallel.dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(parallel.dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(parallel.dist, "get_backend", lambda group: "nccl")
    monkeypatch.setattr(parallel.dist, "get_process_group_ranks", lambda group: [4, 5])
    monkeypatch.setattr(parallel.dist, "new_group", new_group)
    base = object()
    communicator = Communicator(CollectiveGroup.TP, base, device=CPU)
    assert communicator.applies_allocation
    assert communicator.process_group(None) is base
    assert made == []
    six, nine = communicator.process_group(6), communicator.process_group(9)
    assert six is not nine
    assert communicator.process_group(6) is six
    assert [ranks for ranks, _ in made] == [[4, 5], [4, 5]]
    for (_, options), sms in zip(made, (6, 9), strict=True):
        assert options["backend"] == "nccl"
        assert options["use_local_synchronization"]
        config = options["pg_options"].config
        assert (config.min_ctas, config.max_ctas) == (sms, sms)
        assert options["pg_options"].is_high_priority_stream


def gloo_groups():
    mesh = build_mesh(Parallelism(tp=2), "cpu")
    tp = ParallelGroups.from_mesh(mesh, CPU).tp
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    parallel.logger.addHandler(handler)
    same = [tp.process_group(sms) is tp.process_group(None) for sms in (3, 6)]
    return tp.applies_allocation, same, records


def test_gloo_ignores_allocations_and_says_so_once():
    first, second = run_world(2, gloo_groups)
    assert first[:2] == second[:2] == (False, [True, True])
    assert [message[:52] for message in first[2]] == [
        "SM allocations of the tp group are recorded, not app"
    ]
    assert second[2] == []


def die_alone():
    """Rank 1 ends in the middle of a forward; what rank 0 is told."""
    mesh = build_mesh(Parallelism(tp=2), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(tp=2)
    stack = make_stack(workload, groups)
    if groups.tp.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        stack(make_tensors(workload)[0])
    except JobError as error:
        return str(error)
    return None


def test_death_of_a_rank_ends_the_others_with_a_clear_error():
    start = time.monotonic()
    message, _ = run_world(2, die_alone, may_die=True)
    assert message.startswith("the all-reduce of rank 0 of 2 in the tp group failed (")
    assert message.endswith("if another rank ended before, see its log for the cause")
    assert "\n" not in message
    assert time.monotonic() - start < 30
