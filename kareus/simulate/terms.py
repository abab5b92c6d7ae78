"""The physics, one function per term: GEMM, attention, memory, collective, overlap, power.

All functions are vectorised over configurations (arrays of shape (n,)) and pure.

Legend: X = SM clock / top clock; s = SMs given to the collective, N = SMs of the GPU; times in
seconds, energies in joules, rates per second. Structure and exponents follow the published sweep
and frontiers (see `parameters` for each value's origin).
"""

import numpy as np
from numpy.typing import NDArray

from kareus.core.partition import (
    Collective,
    CollectiveGroup,
    Direction,
    Operator,
    OperatorKind,
)
from kareus.core.workload import Gpu
from kareus.simulate.parameters import Parameters

FloatArray = NDArray[np.float64]

_NORM_ORDER = 2.5  # how sharply SM-limited turns into link-limited; the sweep's bend


def memory_time_s(num_bytes: float, x: FloatArray, gpu: Gpu, p: Parameters) -> FloatArray:
    """Return the time to move bytes through GPU memory.

    bytes / (efficiency x bandwidth) x X^-mu: the SM clock matters (mu about 0.4) since caches and
    the requests in flight belong to the SM clock domain.
    """
    return (
        num_bytes
        / (p.memory_efficiency * gpu.memory_bandwidth_bytes_s)
        * (x**-p.memory_clock_exponent)
    )


def gemm_time_s(
    operator: Operator, x: FloatArray, gpu: Gpu, p: Parameters, *, halved: bool
) -> FloatArray:
    """Return the time of a matrix product.

    FLOPs / (efficiency x peak x X) x (1 + loss of a halved batch) + exposed share x memory time.
    """
    rate = p.gemm_efficiency * gpu.peak_flops * x
    loss = p.nanobatch_gemm_loss if halved else 0.0
    return operator.flops / rate * (1.0 + loss) + p.gemm_exposed_traffic * memory_time_s(
        operator.memory_bytes, x, gpu, p
    )


def attention_time_s(
    operator: Operator, direction: Direction, x: FloatArray, gpu: Gpu, p: Parameters
) -> FloatArray:
    """Return the time of core attention.

    FLOPs / (efficiency x peak x X) + memory time of q, k, v and output; the second term makes
    short sequences less efficient, as flash attention is. Backward has its own efficiency.
    """
    efficiency = p.attention_efficiency
    if direction is Direction.BACKWARD:
        efficiency *= p.attention_backward_ratio
    return operator.flops / (efficiency * gpu.peak_flops * x) + memory_time_s(
        operator.memory_bytes, x, gpu, p
    )


def memory_bytes(operator: Operator, p: Parameters) -> float:
    """Return the bytes an operator really moves: counted bytes times its kind's traffic ratio."""
    match operator.kind:
        case OperatorKind.ROPE:
            return operator.memory_bytes * p.rope_traffic
        case OperatorKind.ACTIVATION:
            return operator.memory_bytes * p.activation_traffic
        case OperatorKind.LOSS:
            return operator.memory_bytes * p.loss_traffic
        case _:
            return operator.memory_bytes


def overhead_s(direction: Direction, x: FloatArray, p: Parameters) -> FloatArray:
    """Return the time per operator that no amount of work explains.

    overhead x X^-e, more in the backward (several kernels per operator). It does not scale with
    tokens, so halving the batch pays it twice.
    """
    ratio = p.backward_overhead_ratio if direction is Direction.BACKWARD else 1.0
    return p.kernel_overhead_s * ratio * x**-p.overhead_clock_exponent


def operator_time_s(
    operator: Operator,
    direction: Direction,
    x: FloatArray,
    gpu: Gpu,
    p: Parameters,
    *,
    halved: bool,
    linear_work: float = 1.0,
) -> FloatArray:
    """Return the time of an operator running alone, overhead included.

    `linear_work` is the share of a linear's counted work that is really done.
    """
    match operator.kind:
        case OperatorKind.LINEAR:
            work = linear_work * gemm_time_s(operator, x, gpu, p, halved=halved)
        case OperatorKind.ATTENTION:
            work = attention_time_s(operator, direction, x, gpu, p)
        case _:
            work = memory_time_s(memory_bytes(operator, p), x, gpu, p)
    return work + overhead_s(direction, x, p)


def collective_time_s(
    collective: Collective,
    x: FloatArray,
    num_sms: FloatArray,
    gpu: Gpu,
    p: Parameters,
    *,
    overlapped: bool,
    link_bytes_s: float | None = None,
    sm_rate_ratio: FloatArray | float = 1.0,
) -> FloatArray:
    """Return the time of a collective running alone with its SMs.

    latency + (a^m + b^m)^(1/m) x X^-kappa, a = bytes / (rate per SM x s) (limited by its SMs),
    b = bus bytes / (efficiency x link bandwidth). The SM clock matters since SMs drive the links.
    An all-reduce's SMs copy and add every byte of the message, so `a` counts message bytes (the
    rate per SM is then the same for two GPUs and eight); gathers and scatters only move their bus
    bytes. The rate per SM scales with the GPU's top clock from the A100's 1410 MHz.

    Args:
        collective: What is sent.
        x: Clock ratio, shape (n,).
        num_sms: SMs given to it, shape (n,), at least 1.
        gpu: The GPU.
        p: Parameters.
        overlapped: Whether it is launched beside computation (other latency).
        link_bytes_s: Link bandwidth reached, where it is not the GPU's.
        sm_rate_ratio: Rate per SM relative to 1024 threads per block.

    Returns:
        Seconds, shape (n,); 0 for a message of no bytes.
    """
    if collective.message_bytes == 0:
        return np.zeros_like(x)
    if collective.group is CollectiveGroup.TP:
        num_bytes, rate = collective.message_bytes, p.tp_sm_rate_bytes_s
        latency = p.tp_overlap_latency_s if overlapped else p.tp_latency_s
    else:
        num_bytes, rate = collective.bus_bytes, p.cp_sm_rate_bytes_s
        latency = p.cp_overlap_latency_s if overlapped else p.cp_latency_s
    rate = rate * gpu.clocks_mhz[-1] / REFERENCE_TOP_CLOCK_MHZ
    by_sms = num_bytes / (rate * sm_rate_ratio * num_sms)
    by_link = collective.bus_bytes / (
        link_bytes_s or p.link_efficiency * gpu.link_bandwidth_bytes_s
    )
    joined: FloatArray = (by_sms**_NORM_ORDER + by_link**_NORM_ORDER) ** (1 / _NORM_ORDER)
    return latency + joined * x**-p.collective_clock_exponent


REFERENCE_TOP_CLOCK_MHZ = 1410
"""Top clock of the GPU on which rates per SM were calibrated (A100)."""


def computation_slowdown(
    collective: Collective,
    alone_s: FloatArray,
    num_sms: FloatArray,
    gpu: Gpu,
    p: Parameters,
) -> FloatArray:
    """Return by how much computation slows down beside a collective (0 = not at all).

    c1 x s / (N - s) + c2 x (bus bytes / time) / memory bandwidth: SMs are gone, and the
    collective's own traffic takes memory bandwidth.

    Args:
        collective: What runs beside it.
        alone_s: Its time alone, shape (n,), positive.
        num_sms: Its SMs, shape (n,), fewer than the GPU has.
        gpu: The GPU.
        p: Parameters.
    """
    bandwidth = p.memory_efficiency * gpu.memory_bandwidth_bytes_s
    return p.sm_contention * num_sms / (gpu.num_sms - num_sms) + (
        p.memory_contention * collective.bus_bytes / alone_s / bandwidth
    )


def collective_slowdown(kind: OperatorKind, p: Parameters) -> float:
    """Return by how much a collective slows down beside an operator of a kind (0 = not at all).

    Next to nothing beside a GEMM, much beside memory-bound kernels, with which it competes for
    memory bandwidth and issue slots.
    """
    match kind:
        case OperatorKind.LINEAR:
            return p.linear_interference
        case OperatorKind.ATTENTION:
            return p.attention_interference
        case _:
            return p.memory_interference


def overlap_s(
    alone_s: FloatArray,
    remaining_s: FloatArray,
    computation_slowdown: FloatArray,
    collective_slowdown: float,
) -> tuple[FloatArray, FloatArray]:
    """Return the time of an operator beside a collective, and what is left of the collective.

    Both run until one ends: o = min(alone x (1 + sigma), remaining x (1 + xi)). In that time the
    operator does o / (1 + sigma) of its work and the collective o / (1 + xi) of its own; the rest
    of the operator then runs alone.

    Args:
        alone_s: The operator's time alone, shape (n,).
        remaining_s: The collective's remaining time alone, shape (n,).
        computation_slowdown: sigma, shape (n,).
        collective_slowdown: xi.

    Returns:
        (seconds until the operator ends, remaining seconds of the collective alone).
    """
    both = np.minimum(
        alone_s * (1.0 + computation_slowdown), remaining_s * (1.0 + collective_slowdown)
    )
    elapsed = both + alone_s - both / (1.0 + computation_slowdown)
    return elapsed, remaining_s - both / (1.0 + collective_slowdown)


def idle_power_w(
    x: FloatArray, gpu: Gpu, p: Parameters, temperature_excess_k: float = 0.0
) -> FloatArray:
    """Return the power drawn for as long as the GPU is held.

    ratio x static power x X^e x (1 + leakage x kelvin above the reference temperature).
    """
    warm = 1.0 + p.leakage_per_k * temperature_excess_k
    return p.idle_power_ratio * gpu.static_power_w * warm * x**p.idle_clock_exponent


def busy_power_w(x: FloatArray, p: Parameters) -> FloatArray:
    """Return the power added while computing kernels run: power x X^e (clock tree, schedulers)."""
    return p.busy_power_w * x**p.busy_clock_exponent


def flop_energy_j(x: FloatArray, p: Parameters) -> FloatArray:
    """Return the energy of a tensor-core FLOP: e x (c0 + (1 - c0) X^alpha).

    The voltage stays at its floor over the lower clocks and then rises steeply, hence a floor and
    an exponent well above the square law's 2.
    """
    return p.flop_energy_j * (
        p.flop_energy_floor + (1.0 - p.flop_energy_floor) * x**p.flop_clock_exponent
    )


def byte_energy_j(x: FloatArray, p: Parameters) -> FloatArray:
    """Return the energy of a byte of memory traffic: e x (c0 + (1 - c0) X^2).

    Memory has its own clock and voltage (the floor); caches and data paths follow the SMs.
    """
    return p.byte_energy_j * (p.byte_energy_floor + (1.0 - p.byte_energy_floor) * x**2)


def link_energy_j(collective: Collective, p: Parameters) -> float:
    """Return the energy of sending a collective's bus bytes."""
    return p.link_energy_j * collective.bus_bytes
