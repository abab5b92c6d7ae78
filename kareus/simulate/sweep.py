"""The partition of the published sweep, and the model's prediction of a sweep of it.

The partition: nanobatch of two sequences of 4096 on two GPUs (tp = 2), hidden 2048, 32 heads of 64,
forward attention part. Its operators by index: 0 bias-dropout-add, 1 norm, 2 linear qkv, 3 qkv
split, 4 rotary, 5 attention, 6 linear proj. Its software is not that of the frontiers: unfused
kernels before the first linear, slower attention at heads of 64, and more time in the last slot
than its linear explains. These three times are calibrated on the sweep and on nothing else; the
first and last are taken as memory traffic, which is what their energy suggests.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.core.partition import (
    Collective,
    CollectiveGroup,
    CollectiveKind,
    Direction,
    OperatorKind,
)
from kareus.core.workload import Gpu, Model
from kareus.errors import ConfigError, MeasurementError
from kareus.simulate import terms
from kareus.simulate.parameters import Parameters
from kareus.simulate.records import SweepPoint
from kareus.workload.blocks import BlockShape, Part, part_operators

FloatArray = NDArray[np.float64]

_MODEL = Model(
    name="sweep",
    family="llama",
    num_layers=1,
    hidden_size=2048,
    ffn_hidden_size=8192,
    num_heads=32,
    num_kv_heads=32,
    head_dim=64,
    vocab_size=1,
)
SHAPE = BlockShape(model=_MODEL, num_sequences=2, seq_len=4096, tp=2)

_SLOT_OF_OPERATOR = (0, 0, 1, 2, 2, 3, 4)
_FULL_BLOCK = 1024
_TENSOR_KINDS = (OperatorKind.LINEAR, OperatorKind.ATTENTION)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPrediction:
    """Predicted time (s) and energy per GPU (J) of each point of a sweep, shapes (n,)."""

    time_s: FloatArray
    energy_j: FloatArray


def predict_sweep(
    points: Sequence[SweepPoint],
    gpu: Gpu,
    p: Parameters,
    *,
    clock_mhz: int | None = None,
    shape: BlockShape = SHAPE,
) -> SweepPrediction:
    """Return the model's prediction of a sweep of an attention part.

    Args:
        points: The configurations.
        gpu: The GPU.
        p: Calibrated parameters.
        clock_mhz: The clock it was recorded at; None means the top clock (unlocked).
        shape: The partition's shape; the published sweep's by default.

    Raises:
        ConfigError: If the clock is not one the GPU can run at.
        MeasurementError: If a point names an operator the partition does not have.
    """
    lowest, top = gpu.clocks_mhz[0], gpu.clocks_mhz[-1]
    clock = top if clock_mhz is None else clock_mhz
    if not lowest <= clock <= top:
        raise ConfigError(
            f"clock {clock} MHz is outside {lowest} to {top} MHz, the range of {gpu.name}: give "
            "the clock the sweep was recorded at"
        )
    if any(point.overlap_end >= len(_SLOT_OF_OPERATOR) for point in points):
        raise MeasurementError(
            f"overlap_end beyond {len(_SLOT_OF_OPERATOR) - 1}: the attention part has operators "
            f"0..{len(_SLOT_OF_OPERATOR) - 1}"
        )
    x = np.full(len(points), clock / top)
    num_sms = np.array([point.num_sms for point in points], dtype=np.float64)
    ratio = np.array(
        [1.0 if point.threads_per_block == _FULL_BLOCK else p.half_block_rate for point in points]
    )
    operators = part_operators(Part.FWD_ATTN, shape)
    collective = Collective(
        kind=CollectiveKind.ALL_REDUCE,
        group=CollectiveGroup.TP,
        group_size=shape.tp,
        message_bytes=shape.residual_bytes,
    )
    work = [
        terms.operator_time_s(operator, Direction.FORWARD, x, gpu, p, halved=True)
        for operator in operators
    ]
    tokens_ratio = shape.residual_bytes / SHAPE.residual_bytes
    work[0] = work[0] + tokens_ratio * p.sweep_norm_extra_s * x**-p.memory_clock_exponent
    work[3] = work[3] + tokens_ratio * p.sweep_attention_extra_s / x
    work[4] = work[4] + tokens_ratio * p.sweep_tail_s * x**-p.memory_clock_exponent
    computing = sum(work, np.zeros_like(x))
    first = np.array([_first_slot(point, operators) for point in points])
    last = np.array([_last_slot(point) for point in points])
    launched = first >= 0
    exposed, beside_computation = (
        terms.collective_time_s(
            collective,
            x,
            num_sms,
            gpu,
            p,
            overlapped=overlapped,
            link_bytes_s=p.sweep_link_bytes_s if shape.tp == SHAPE.tp else None,
            sm_rate_ratio=ratio,
        )
        for overlapped in (False, True)
    )
    alone = np.where(launched, beside_computation, exposed)
    sigma = terms.computation_slowdown(collective, alone, num_sms, gpu, p)
    elapsed = np.zeros_like(x)
    remaining = alone
    for slot, (operator, time) in enumerate(zip(operators, work, strict=True)):
        beside, left = terms.overlap_s(
            time, remaining, sigma, terms.collective_slowdown(operator.kind, p)
        )
        active = launched & (first <= slot) & (slot <= last)
        elapsed = elapsed + np.where(active, beside, time)
        remaining = np.where(active, left, remaining)
    time_s = elapsed + remaining + np.where(launched, p.overlap_sync_s, 0.0)
    flops = sum(
        operator.flops
        * (p.attention_energy_ratio if operator.kind is OperatorKind.ATTENTION else 1.0)
        for operator in operators
        if operator.kind in _TENSOR_KINDS
    )
    unfused_s = tokens_ratio * (p.sweep_norm_extra_s + p.sweep_tail_s)
    num_bytes = sum(terms.memory_bytes(operator, p) for operator in operators) + (
        unfused_s * p.memory_efficiency * gpu.memory_bandwidth_bytes_s
    )
    dynamic = (
        flops * terms.flop_energy_j(x, p)
        + num_bytes * terms.byte_energy_j(x, p)
        + terms.busy_power_w(x, p) * computing
        + terms.link_energy_j(collective, p)
    )
    waiting = p.exposed_sm_power_w * num_sms * remaining
    energy = waiting + p.sweep_dynamic_ratio * dynamic + terms.idle_power_w(x, gpu, p) * time_s
    return SweepPrediction(time_s=time_s, energy_j=energy)


def _first_slot(point: SweepPoint, operators: Sequence[object]) -> int:
    """The slot at which the collective starts: behind a tensor-core kernel, that kernel's."""
    if point.overlap_start < 0:
        return -1
    slot = _SLOT_OF_OPERATOR[point.overlap_start]
    kind = getattr(operators[slot - 1], "kind", None) if slot else None
    return slot - 1 if kind in _TENSOR_KINDS else slot


def _last_slot(point: SweepPoint) -> int:
    """The slot of the last operator it may run beside."""
    return _SLOT_OF_OPERATOR[point.overlap_end] if point.overlap_end >= 0 else -1
