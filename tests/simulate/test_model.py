import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Partition
from kareus.errors import ConfigError
from kareus.simulate.calibration import calibration_for, reference_gpu
from kareus.simulate.model import default_sms, launch_position, predict
from kareus.workload.gpus import GPUS
from kareus.workload.partitions import build_partitions
from tests.simulate.workloads import partition, workload

GPU = reference_gpu()
P = calibration_for(GPU).parameters
CASES = {
    "tp8": workload(),
    "cp2": workload(cp=2, tp=4),
    "tp1": workload(tp=1),
    "long": workload(seq_len=8192),
}
PARTITIONS = [
    pytest.param(part, id=f"{case}-{part.name}")
    for case, load in CASES.items()
    for part in build_partitions(load).values()
]


def _times(part: Partition, configurations: list[Configuration]) -> np.ndarray:
    return predict(part, configurations, GPU, P).time_s


@pytest.mark.parametrize("part", PARTITIONS)
def test_predictions_are_positive_and_faster_at_higher_clocks(part: Partition) -> None:
    space = part.baseline_configurations()
    predicted = predict(part, space, GPU, P)
    assert np.all(predicted.time_s > 0)
    assert np.all(predicted.energy_j > 0)
    power = predicted.energy_j / predicted.time_s
    assert np.all((power > 0.6 * GPU.static_power_w) & (power < GPU.power_limit_w * (1 + 1e-6)))
    by_launch: dict[LaunchPoint | None, list[float]] = {}
    for configuration, time in zip(space, predicted.time_s, strict=True):
        by_launch.setdefault(configuration.launch_point, []).append(time)
    for times in by_launch.values():
        assert np.all(np.diff(times) < 1e-9)


@pytest.mark.parametrize("part", [p for p in PARTITIONS if p.values[0].searched])
def test_an_exposed_collective_gains_from_every_sm(part: Partition) -> None:
    configurations = [
        Configuration(clock_mhz=1410, sm_allocation=sms, launch_point=LaunchPoint.NONE)
        for sms in part.sm_allocations
    ]
    assert np.all(np.diff(_times(part, configurations)) < 0)


@pytest.mark.parametrize("part", [p for p in PARTITIONS if p.values[0].searched])
def test_too_few_sms_fall_off_a_cliff(part: Partition) -> None:
    for launch_point in part.launch_points:
        few, best = (
            _times(
                part,
                [
                    Configuration(clock_mhz=1410, sm_allocation=sms, launch_point=launch_point)
                    for sms in allocations
                ],
            ).min()
            for allocations in (part.sm_allocations[:1], part.sm_allocations)
        )
        assert few >= best
        if part.sm_allocations[0] > 1:
            assert few > 1.1 * best


def test_overlapping_gains_beyond_the_default() -> None:
    part = partition("fwd_mlp", model="llama3.2-3b")
    default, none = part.baseline_configurations()[-2:]
    times = _times(part, list(part.space()))
    at_top = [
        time
        for configuration, time in zip(part.space(), times, strict=True)
        if configuration.clock_mhz == 1410
    ]
    assert min(at_top) < 0.99 * _times(part, [default])[0]
    assert min(at_top) < 0.95 * _times(part, [none])[0]


def test_many_sms_slow_computation_down_once_the_collective_is_hidden() -> None:
    part = partition("fwd_mlp", model="llama3.2-3b", microbatch_size=16)
    small = dataclasses.replace(
        part, collective=dataclasses.replace(part.collective, message_bytes=1e7)
    )
    times = _times(
        small,
        [
            Configuration(clock_mhz=1410, sm_allocation=sms, launch_point=LaunchPoint.LINEAR_0)
            for sms in (12, 24, 48)
        ],
    )
    assert times[0] < times[1] < times[2]


def test_without_parallelism_nothing_is_exposed() -> None:
    part = partition("fwd_mlp", tp=1)
    assert part.collective is None
    sequential = partition("seq_fwd_mlp", tp=1)
    two_nanobatches = 2 * _times(part, [Configuration(clock_mhz=1410)])[0]
    whole = _times(sequential, [Configuration(clock_mhz=1410)])[0]
    assert whole < two_nanobatches < 1.15 * whole


@pytest.mark.parametrize("launch_point", [LaunchPoint.NORM_0, LaunchPoint.NONE])
def test_an_empty_collective_leaves_the_computation_alone(launch_point: LaunchPoint) -> None:
    part = partition("fwd_attn")
    empty = dataclasses.replace(
        part, collective=dataclasses.replace(part.collective, message_bytes=0.0)
    )
    lead = partition("fwd_lead")
    configuration = Configuration(clock_mhz=1200, sm_allocation=20, launch_point=launch_point)
    assert _times(empty, [configuration])[0] == pytest.approx(
        _times(lead, [Configuration(clock_mhz=1200)])[0]
    )


def test_a_sequential_part_is_its_computation_and_its_collective() -> None:
    part = partition("seq_fwd_mlp")
    slow = [Configuration(clock_mhz=1200)]
    computation = _times(dataclasses.replace(part, collective=None), slow)[0]
    collective = _times(dataclasses.replace(part, operators=()), slow)[0]
    assert _times(part, slow)[0] == pytest.approx(computation + collective)


@given(st.sampled_from([2, 4, 8]))
def test_work_scales_and_overhead_does_not(factor: int) -> None:
    top = [Configuration(clock_mhz=1410)]
    small = predict(partition("seq_fwd_mlp", microbatch_size=8), top, GPU, P)
    large = predict(partition("seq_fwd_mlp", microbatch_size=8 * factor), top, GPU, P)
    ratio = large.time_s[0] / small.time_s[0]
    assert 0.8 * factor < ratio < factor
    assert large.energy_j[0] / small.energy_j[0] < factor


def test_attention_grows_with_the_square_of_the_sequence() -> None:
    top = [Configuration(clock_mhz=1410)]
    part = partition("bwd_a_rs", cp=2, tp=4)
    long = partition("bwd_a_rs", cp=2, tp=4, seq_len=16384)
    alone = [
        _times(dataclasses.replace(p, collective=None, launch_points=()), top)[0]
        for p in (part, long)
    ]
    assert 10 < alone[1] / alone[0] < 16


def test_a_slot_behind_a_tensor_core_kernel_counts_as_that_kernel() -> None:
    part = partition("fwd_attn")
    slots = [operator.slot for operator in part.operators]
    assert launch_position(part, LaunchPoint.NORM_0) == slots.index("norm_0")
    assert launch_position(part, LaunchPoint.LINEAR_0) == slots.index("linear_0")
    assert launch_position(part, LaunchPoint.ROPE_0) == slots.index("linear_0")
    assert launch_position(part, LaunchPoint.ATTN_0) == slots.index("attn_0")


def test_impossible_configurations_are_refused_by_value() -> None:
    part = partition("fwd_mlp")
    for configuration, words in (
        (Configuration(clock_mhz=1500, sm_allocation=3, launch_point=LaunchPoint.NORM_0), "1500"),
        (Configuration(clock_mhz=0, sm_allocation=3, launch_point=LaunchPoint.NORM_0), "0 MHz"),
        (Configuration(clock_mhz=900, sm_allocation=108, launch_point=LaunchPoint.NORM_0), "108"),
        (Configuration(clock_mhz=900, sm_allocation=0, launch_point=LaunchPoint.NORM_0), "0"),
        (Configuration(clock_mhz=900, sm_allocation=3, launch_point=LaunchPoint.ATTN_0), "attn_0"),
    ):
        with pytest.raises(ConfigError, match=words):
            predict(part, [configuration], GPU, P)


def test_power_is_capped_by_stretching_time() -> None:
    part = partition("seq_fwd_mlp", model="llama3.1-8b")
    limited = dataclasses.replace(GPU, power_limit_w=200.0)
    clocks = [Configuration(clock_mhz=clock) for clock in GPU.clocks_mhz]
    free, capped = (predict(part, clocks, gpu, P) for gpu in (GPU, limited))
    assert not free.capped.any()
    assert capped.capped[-1]
    assert not capped.capped[0]
    power = capped.energy_j / capped.time_s
    assert np.all(power <= 200.0 * (1 + 1e-6))
    assert np.all(power[capped.capped] > 199.0)
    assert np.all(capped.time_s[capped.capped] > free.time_s[capped.capped])
    assert capped.achieved_clock_mhz[-1] < 1410
    assert np.all(np.diff(capped.time_s) <= 1e-9)


@pytest.mark.parametrize("name", sorted(GPUS))
def test_every_gpu_stays_within_its_power_limit(name: str) -> None:
    gpu = GPUS[name]
    load = workload(gpu=name, model="llama3.1-8b", tp=2, microbatch_size=4)
    p = calibration_for(gpu).parameters
    for part in build_partitions(load).values():
        predicted = predict(part, part.baseline_configurations(), gpu, p)
        assert np.all(predicted.energy_j <= gpu.power_limit_w * predicted.time_s * (1 + 1e-6))
        assert np.all(np.isfinite(predicted.time_s))


def test_default_sms_are_the_same_share_everywhere() -> None:
    assert default_sms(GPU) == 20
    assert default_sms(GPUS["H100-SXM5-80GB"]) == 24
