"""Tiny workloads and the plain, unsplit reference they are compared with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Direction, Execution
from kareus.core.workload import Gpu, Model, Parallelism, Recompute, Workload
from kareus.execute.block import Block, BlockShape, rotary_table, weight_specs
from kareus.execute.dropout import Dropout
from kareus.execute.engine import BlockStack
from kareus.execute.layout import unit_names
from kareus.execute.parallel import ParallelGroups
from kareus.execute.sequence import num_chunks, shard_sequence
from kareus.execute.settings import InstructionSettings

CPU = torch.device("cpu")
NUM_LAYERS = 2
SEQ_LEN = 8
DROPOUT_SEED = 11

GPU = Gpu(
    name="A100-SXM4-40GB",
    num_sms=108,
    clocks_mhz=(900, 1410),
    static_power_w=85.0,
    static_power_measured=True,
    power_limit_w=400.0,
    memory_bytes=40 * 2**30,
    peak_flops=312e12,
    memory_bandwidth_bytes_s=1555e9,
    link_bandwidth_bytes_s=300e9,
)


def tiny_model(
    *, qk_norm: bool = True, family: str = "qwen3", tied: bool = False, vocab_size: int = 30
) -> Model:
    return Model(
        name=f"test-{family}",
        family=family,
        num_layers=NUM_LAYERS,
        hidden_size=12,
        ffn_hidden_size=16,
        num_heads=8,
        num_kv_heads=4,
        head_dim=4,
        vocab_size=vocab_size,
        qk_norm=qk_norm,
        gated_mlp=family != "gpt",
        tied_embeddings=tied,
    )


def tiny_workload(
    *,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    dp: int = 1,
    recompute: Recompute = Recompute.FULL,
    microbatch_size: int = 4,
    num_microbatches: int = 1,
    model: Model | None = None,
) -> Workload:
    return Workload(
        model=model or tiny_model(),
        gpu=GPU,
        parallelism=Parallelism(tp=tp, cp=cp, pp=pp, dp=dp),
        microbatch_size=microbatch_size,
        seq_len=SEQ_LEN,
        num_microbatches=num_microbatches,
        stage_layers=tuple(NUM_LAYERS // pp for _ in range(pp)),
        recompute=recompute,
    )


def launch_settings(workload: Workload, direction: Direction, choice: int | None):
    """Nanobatches; every partition launches at its launch point number `choice` (in a circle).

    None launches nothing inside (`none`). SM allocations differ from partition to partition.
    """
    configurations = {}
    units = unit_names(
        cp=workload.parallelism.cp,
        direction=direction,
        recompute=workload.recompute is Recompute.FULL,
    )
    for number, unit in enumerate(units):
        points = [LaunchPoint(slot) for slot in unit.slots if slot in set(LaunchPoint)]
        point = LaunchPoint.NONE if choice is None else points[choice % len(points)]
        configuration = Configuration(clock_mhz=1410, sm_allocation=3 + number, launch_point=point)
        if unit.group_size(workload.parallelism) == 1:
            configuration = Configuration(clock_mhz=1410)
        configurations[unit.name] = configuration
    return InstructionSettings(execution=Execution.NANOBATCH, configurations=configurations)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """Output, input gradient and parameter gradients by (layer, name), whole tensors."""

    output: Tensor
    input_gradient: Tensor
    gradients: dict[tuple[int, str], Tensor]


def plain_passes(
    workload: Workload,
    hidden: Tensor,
    cotangent: Tensor,
    *,
    dropout_rate: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Passes:
    """The plain blocks with autograd: no nanobatches, no parallelism."""
    dtype = dtype or hidden.dtype
    shape = BlockShape(model=workload.model, seq_len=workload.seq_len)
    blocks = [
        Block(shape, layer=layer, seed=0, dtype=dtype, device=CPU) for layer in range(NUM_LAYERS)
    ]
    dropout = Dropout(
        rate=dropout_rate,
        seed=DROPOUT_SEED,
        chunks=tuple(range(num_chunks(workload.parallelism.cp))),
    )
    rotary = rotary_table(shape, dtype=torch.float64, device=CPU)
    leaf = hidden.detach().clone().to(dtype).requires_grad_()
    output = leaf
    for block in blocks:
        output = block(output, rotary, dropout)
    output.backward(cotangent.to(dtype))
    assert leaf.grad is not None
    return Passes(
        output=output.detach(),
        input_gradient=leaf.grad,
        gradients={
            (layer, name): parameter.grad
            for layer, block in enumerate(blocks)
            for name, parameter in block.named_parameters()
            if parameter.grad is not None
        },
    )


def make_stack(
    workload: Workload,
    groups: ParallelGroups,
    *,
    dropout_rate: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> BlockStack:
    return BlockStack(
        workload,
        num_layers=NUM_LAYERS,
        first_layer=0,
        groups=groups,
        device=CPU,
        dtype=dtype,
        dropout_rate=dropout_rate,
        seed=0,
    )


def make_tensors(workload: Workload, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden states of whole sequences and a cotangent of the output, fp64."""
    generator = torch.Generator().manual_seed(seed)
    size = (workload.microbatch_size, workload.seq_len, workload.model.hidden_size)
    return (
        torch.randn(size, generator=generator, dtype=torch.float64),
        torch.randn(size, generator=generator, dtype=torch.float64),
    )


def local(tensor: Tensor, groups: ParallelGroups) -> Tensor:
    """This rank's tokens."""
    return shard_sequence(tensor, dim=1, cp=groups.cp.size, rank=groups.cp.rank)


def errors_of(stack: BlockStack, output: Tensor, input_gradient: Tensor, reference: Passes):
    """Largest differences from the reference, relative to its largest value, by tensor.

    Gradients are first summed as a trainer does: over context-parallel ranks, and those of q/k
    norms over tensor-parallel ranks.
    """
    groups = stack.groups
    errors = {
        "output": _error(output, local(reference.output, groups)),
        "input": _error(input_gradient, local(reference.input_gradient, groups)),
    }
    for layer, block in enumerate(stack.blocks):
        for spec in weight_specs(stack.shape.model):
            gradient = block.get_parameter(spec.name).grad.clone()
            groups.cp.reduce_now(gradient)
            if spec.partial_gradient:
                groups.tp.reduce_now(gradient)
            expected = spec.shard(
                reference.gradients[layer, spec.name], tp=groups.tp.size, rank=groups.tp.rank
            )
            errors[f"{layer}.{spec.name}"] = _error(gradient, expected)
    return errors


def _error(value: Tensor, expected: Tensor) -> float:
    assert value.shape == expected.shape
    difference = (value.double() - expected.double()).abs().max()
    return float(difference / expected.double().abs().max())
