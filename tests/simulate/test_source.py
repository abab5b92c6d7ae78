import random

import numpy as np
import pytest

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, MeasurementSource, SourceKind
from kareus.errors import ConfigError
from kareus.simulate.calibration import calibration_for
from kareus.simulate.source import ENERGY_NOISE, TIME_NOISE, SimulatorSource
from kareus.workload.gpus import load_gpu
from kareus.workload.partitions import build_partitions
from tests.simulate.workloads import workload

LOAD = workload()
PART = build_partitions(LOAD)["fwd_attn"]


def _measure(source: SimulatorSource, configurations, **settings) -> list[Measurement]:
    results = list(source.measure(PART, configurations, **settings))
    assert all(isinstance(result, Measurement) for result in results)
    return results  # type: ignore[return-value]


def test_it_is_a_source_of_simulated_measurements() -> None:
    source: MeasurementSource = SimulatorSource(LOAD, seed=1)
    assert source.kind is SourceKind.SIMULATOR
    space = source.space(PART)
    assert len(space) == len(set(space)) == 720 + 36 - _in_space()
    result = next(iter(source.measure(PART, space[:1])))
    assert isinstance(result, Measurement)
    assert result.source is SourceKind.SIMULATOR
    assert result.time_spread_s == pytest.approx(TIME_NOISE * result.time_s, rel=0.01)
    assert result.energy_spread_j == pytest.approx(ENERGY_NOISE * result.energy_j, rel=0.02)
    assert result.conditions["achieved_clock_mhz"] == space[0].clock_mhz
    assert result.conditions["throttle_reasons"] == []


def _in_space() -> int:
    return len(set(PART.baseline_configurations()) & set(PART.space()))


def test_values_do_not_depend_on_what_was_asked_before() -> None:
    space = list(PART.space())
    in_order = {m.configuration: m for m in _measure(SimulatorSource(LOAD, seed=3), space)}
    shuffled = space.copy()
    random.Random(0).shuffle(shuffled)
    other = SimulatorSource(LOAD, seed=3)
    for start in range(0, len(shuffled), 100):
        for measurement in _measure(other, shuffled[start : start + 100]):
            assert measurement == in_order[measurement.configuration]


def test_seed_repeat_and_workload_change_the_noise() -> None:
    one = PART.space()[:1]
    base = _measure(SimulatorSource(LOAD, seed=3), one)[0]
    assert _measure(SimulatorSource(LOAD, seed=4), one)[0].time_s != base.time_s
    again = _measure(SimulatorSource(LOAD, seed=3), one, repeat=1)[0]
    assert again.time_s != base.time_s
    assert again.repeat == 1


def test_noise_is_that_of_locked_clocks() -> None:
    space = PART.space()
    noisy = _measure(SimulatorSource(LOAD, seed=0), space)
    exact = _measure(SimulatorSource(LOAD, seed=0, noise=False), space)
    time = np.array([a.time_s / b.time_s - 1 for a, b in zip(noisy, exact, strict=True)])
    energy = np.array([a.energy_j / b.energy_j - 1 for a, b in zip(noisy, exact, strict=True)])
    assert time.std() == pytest.approx(TIME_NOISE, rel=0.1)
    assert energy.std() == pytest.approx(ENERGY_NOISE, rel=0.1)
    assert abs(np.corrcoef(time, energy)[0, 1]) < 0.15
    assert all(measurement.time_spread_s == 0 for measurement in exact)


def test_a_warm_gpu_draws_more_and_takes_as_long() -> None:
    one = PART.space()[:1]
    cool = _measure(SimulatorSource(LOAD, seed=0, noise=False), one)[0]
    warm = _measure(SimulatorSource(LOAD, seed=0, noise=False, temperature_c=80.0), one)[0]
    assert warm.time_s == cool.time_s
    assert cool.energy_j < warm.energy_j < 1.1 * cool.energy_j
    assert warm.conditions["temperature_c"] == 80.0
    with pytest.raises(ConfigError, match="200"):
        SimulatorSource(LOAD, seed=0, temperature_c=200.0)


def test_a_calibration_of_another_gpu_is_refused() -> None:
    with pytest.raises(ConfigError, match="A40"):
        SimulatorSource(LOAD, seed=0, calibration=calibration_for(load_gpu("A40")))


def test_extrapolated_measurements_say_so() -> None:
    load = workload(gpu="H100-SXM5-80GB")
    part = build_partitions(load)["fwd_attn"]
    source = SimulatorSource(load, seed=0)
    result = next(iter(source.measure(part, part.space()[-1:])))
    assert isinstance(result, Measurement)
    assert result.conditions["extrapolated"] is True


def test_a_throttled_measurement_records_the_clock_it_held() -> None:
    load = workload(gpu="H100-SXM5-80GB", model="llama3.1-8b", tp=1, microbatch_size=8)
    part = build_partitions(load)["seq_fwd_mlp"]
    top = Configuration(clock_mhz=load.gpu.clocks_mhz[-1])
    result = next(iter(SimulatorSource(load, seed=0).measure(part, [top])))
    assert isinstance(result, Measurement)
    assert result.conditions["throttle_reasons"] == ["power limit"]
    assert result.conditions["achieved_clock_mhz"] < top.clock_mhz
