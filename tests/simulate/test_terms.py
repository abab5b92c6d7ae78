import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.partition import (
    Collective,
    CollectiveGroup,
    CollectiveKind,
    Direction,
    Operator,
    OperatorKind,
)
from kareus.simulate import terms
from kareus.simulate.calibration import reference_gpu
from kareus.simulate.parameters import prior_parameters

GPU = reference_gpu()
P = prior_parameters()
TOP = np.ones(1)


def _operator(kind: OperatorKind, flops: float = 1e11, num_bytes: float = 1e8) -> Operator:
    return Operator(slot="linear_0", kind=kind, flops=flops, memory_bytes=num_bytes)


def _collective(num_bytes: float, *, ranks: int = 8) -> Collective:
    return Collective(
        kind=CollectiveKind.ALL_REDUCE,
        group=CollectiveGroup.TP,
        group_size=ranks,
        message_bytes=num_bytes,
    )


@given(st.floats(1e9, 1e13), st.floats(1.1, 10.0))
def test_compute_bound_gemm_time_is_proportional_to_flops(flops: float, factor: float) -> None:
    small = _operator(OperatorKind.LINEAR, flops, 0.0)
    large = _operator(OperatorKind.LINEAR, flops * factor, 0.0)
    ratio = terms.gemm_time_s(large, TOP, GPU, P, halved=False) / terms.gemm_time_s(
        small, TOP, GPU, P, halved=False
    )
    assert ratio[0] == pytest.approx(factor)


def test_gemm_never_beats_the_vendors_peak() -> None:
    operator = _operator(OperatorKind.LINEAR)
    assert terms.gemm_time_s(operator, TOP, GPU, P, halved=False)[0] > operator.flops / (
        GPU.peak_flops
    )


def test_gemm_follows_the_clock_and_memory_follows_it_less() -> None:
    half = np.array([0.5])
    gemm = _operator(OperatorKind.LINEAR, 1e12, 0.0)
    slower = terms.gemm_time_s(gemm, half, GPU, P, halved=False) / terms.gemm_time_s(
        gemm, TOP, GPU, P, halved=False
    )
    memory = terms.memory_time_s(1e9, half, GPU, P) / terms.memory_time_s(1e9, TOP, GPU, P)
    assert slower[0] == pytest.approx(2.0)
    assert 1.0 < memory[0] < 1.6


def test_attention_is_more_efficient_on_longer_sequences() -> None:
    # Twice the sequence at the same tokens: twice the FLOPs, the same traffic.
    short = _operator(OperatorKind.ATTENTION, 1e11, 1e8)
    long = _operator(OperatorKind.ATTENTION, 2e11, 1e8)
    ratio = terms.attention_time_s(long, Direction.FORWARD, TOP, GPU, P) / terms.attention_time_s(
        short, Direction.FORWARD, TOP, GPU, P
    )
    assert 1.5 < ratio[0] < 2.0


def test_overhead_does_not_scale_with_work() -> None:
    nothing = _operator(OperatorKind.NORM, 0.0, 0.0)
    time = terms.operator_time_s(nothing, Direction.FORWARD, TOP, GPU, P, halved=False)
    assert time[0] == pytest.approx(P.kernel_overhead_s)


def test_collective_bandwidth_grows_linearly_then_bends() -> None:
    # Published sweep: 6.8 GB/s per SM, 50 GB/s at 8 SMs, 94 at 20 (33.5 MB, two GPUs, four links).
    sms = np.array([1.0, 2.0, 8.0, 20.0])
    message = 33.5e6
    quiet = dataclasses.replace(P, tp_latency_s=1e-9)
    time = terms.collective_time_s(
        _collective(message, ranks=2),
        np.ones(4),
        sms,
        GPU,
        quiet,
        overlapped=False,
        link_bytes_s=1e11,
    )
    bandwidth = message / time / 1e9
    assert bandwidth[0] == pytest.approx(6.8, rel=0.05)
    assert bandwidth[1] / bandwidth[0] == pytest.approx(2.0, rel=0.02)
    assert bandwidth[2] == pytest.approx(50, rel=0.1)
    assert bandwidth[3] == pytest.approx(90, rel=0.1)


def test_an_empty_collective_takes_no_time() -> None:
    time = terms.collective_time_s(
        _collective(0.0), TOP, np.full(1, 20.0), GPU, P, overlapped=False
    )
    assert time[0] == 0.0


@given(
    alone=st.floats(1e-5, 1e-2),
    remaining=st.floats(0.0, 1e-2),
    sigma=st.floats(0.0, 2.0),
    xi=st.floats(0.0, 4.0),
)
def test_overlap_conserves_work(alone: float, remaining: float, sigma: float, xi: float) -> None:
    elapsed, left = terms.overlap_s(np.array([alone]), np.array([remaining]), np.array([sigma]), xi)
    # Never faster than either alone would allow, never slower than one after the other at the
    # contended speeds, and something is left only if the operator ended first.
    assert elapsed[0] >= alone * (1 - 1e-12)
    assert -1e-15 <= left[0] <= remaining
    assert elapsed[0] <= alone * (1 + sigma) * (1 + 1e-12)
    done = remaining - left[0]
    assert elapsed[0] >= done * (1 - 1e-12)


def test_overlap_with_nothing_left_changes_nothing() -> None:
    elapsed, left = terms.overlap_s(np.full(1, 1e-3), np.zeros(1), np.full(1, 0.3), 1.0)
    assert elapsed[0] == pytest.approx(1e-3)
    assert left[0] == 0.0


@pytest.mark.parametrize(
    "energy",
    [
        lambda x: terms.flop_energy_j(x, P),
        lambda x: terms.byte_energy_j(x, P),
        lambda x: terms.idle_power_w(x, GPU, P),
        lambda x: terms.busy_power_w(x, P),
    ],
)
def test_energies_are_positive_and_fall_with_the_clock(energy) -> None:
    values = energy(np.linspace(0.3, 1.0, 20))
    assert np.all(values > 0)
    assert np.all(np.diff(values) >= 0)


def test_a_warm_gpu_leaks_more() -> None:
    cold = terms.idle_power_w(TOP, GPU, P)
    warm = terms.idle_power_w(TOP, GPU, P, temperature_excess_k=25.0)
    assert warm[0] == pytest.approx(cold[0] * (1 + 25 * P.leakage_per_k))
