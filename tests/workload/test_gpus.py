import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.errors import ConfigError, NotFoundError
from kareus.workload.gpus import (
    GPUS,
    adapt_to_device,
    derive_clocks_mhz,
    load_gpu,
    nvlink_group_size,
    scale_sms,
    select_clocks_mhz,
)

A100 = GPUS["A100-SXM4-40GB"]


def test_published_grids_and_static_powers():
    assert A100.clocks_mhz == tuple(range(900, 1411, 30))
    assert len(A100.clocks_mhz) == 18
    assert GPUS["A40"].clocks_mhz == tuple(range(900, 1741, 30))
    assert A100.static_power_w == 85
    assert GPUS["A40"].static_power_w == 70
    measured = {gpu.name for gpu in GPUS.values() if gpu.static_power_measured}
    assert measured == {"A100-SXM4-40GB", "A40"}
    assert {gpu.name for gpu in GPUS.values() if gpu.calibrated} == {"A100-SXM4-40GB"}


# TFLOP/s of the data sheets, at the clock they state them for (MHz).
@pytest.mark.parametrize(
    ("name", "tflops", "clock_mhz"),
    [
        ("A100-SXM4-40GB", 312, 1410),
        ("A100-SXM4-80GB", 312, 1410),
        ("A40", 149.7, 1740),
        ("H100-SXM5-80GB", 989.4, 1830),
        ("H200-SXM5-141GB", 989.4, 1830),
        ("B200-SXM-180GB", 2250, 1856),
    ],
)
def test_peak_throughput_agrees_with_the_data_sheet(name, tflops, clock_mhz):
    gpu = GPUS[name]
    at_sheet_clock = gpu.peak_flops * clock_mhz / gpu.clocks_mhz[-1]
    assert at_sheet_clock / 1e12 == pytest.approx(tflops, rel=0.002)


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_entry_is_plausible(gpu):
    assert list(gpu.clocks_mhz) == sorted(set(gpu.clocks_mhz))
    assert all(clock % 15 == 0 for clock in gpu.clocks_mhz)
    assert 0.1 * gpu.power_limit_w < gpu.static_power_w < 0.3 * gpu.power_limit_w
    assert nvlink_group_size(gpu) in (2, 8)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100_sxm4_40gb", "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("nvidia h200", "H200-SXM5-141GB"),
        ("a40", "A40"),
    ],
)
def test_names_are_compared_loosely_and_device_names_are_known(name, expected):
    assert load_gpu(name).name == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("A100", "A100-SXM4"), ("h100", "H100-SXM5-80GB"), ("MI300X", "A40")]
)
def test_an_unknown_gpu_is_answered_with_suggestions(name, expected):
    with pytest.raises(NotFoundError, match="unknown GPU") as caught:
        load_gpu(name)
    assert expected in str(caught.value)


@given(st.integers(min_value=40, max_value=400).map(lambda n: n * 15))
def test_derived_grids_have_eighteen_clocks_on_the_device_grid(top_mhz):
    clocks = derive_clocks_mhz(top_mhz)
    assert len(clocks) == 18
    assert clocks[-1] == top_mhz
    assert all(clock % 15 == 0 for clock in clocks)
    # A step is whole device steps, so the share covered can miss the A100's by half of 17 steps.
    assert abs(clocks[0] - top_mhz * 900 / 1410) <= 17 * 7.5 + 1e-6


@given(st.lists(st.integers(min_value=200, max_value=2500), min_size=1, max_size=150))
def test_selected_clocks_are_supported_and_keep_the_top(supported):
    clocks = select_clocks_mhz(supported)
    assert set(clocks) <= set(supported)
    assert clocks[-1] == max(supported)
    assert 1 <= len(clocks) <= 18
    assert list(clocks) == sorted(set(clocks))


def test_a_device_without_clocks_is_refused():
    with pytest.raises(ConfigError, match="no supported SM clock"):
        select_clocks_mhz([])


def test_adapting_keeps_the_published_grid_where_it_is_supported():
    every = range(210, 1411, 15)
    assert adapt_to_device(A100, supported_clocks_mhz=every, num_sms=108) == A100
    capped = adapt_to_device(A100, supported_clocks_mhz=range(210, 1096, 15), num_sms=98)
    assert capped.clocks_mhz[-1] == 1095
    assert capped.num_sms == 98


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 108))
def test_sm_shares_are_kept(name, num_sms):
    gpu = GPUS[name]
    scaled = scale_sms(num_sms, gpu)
    assert scaled >= 1
    assert abs(scaled - num_sms * gpu.num_sms / 108) <= 0.5 or scaled == 1
    assert scale_sms(num_sms, A100) == num_sms
