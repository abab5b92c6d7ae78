import json
from dataclasses import replace

import pytest

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.device.energy import EnergySource
from kareus.device.monitor import WindowReading
from kareus.errors import ConfigError
from kareus.profiling.trial import (
    DeviceKind,
    RankReading,
    TrialSettings,
    combine_readings,
    is_throttled,
)

CONFIGURATION = Configuration(clock_mhz=1200, sm_allocation=12, launch_point=LaunchPoint.NORM_0)


def window(**changes: object) -> WindowReading:
    usual = WindowReading(
        duration_s=5.0,
        energy_j=1000.0,
        energy_spread_j=8.0,
        energy_source=EnergySource.COUNTER,
        power_integral_j=1010.0,
        achieved_clock_mhz=1200.0,
        lowest_clock_mhz=1200.0,
        temperature_c=50.0,
        start_temperature_c=48.0,
        throttle_reasons=(),
        flags=(),
    )
    return replace(usual, **changes)


def reading(rank: int, time_s: float = 0.01, **changes: object) -> RankReading:
    return RankReading(
        rank=rank,
        time_s=time_s,
        time_spread_s=1e-4,
        num_executions=500,
        warmup_s=1.0,
        window=window(**changes),
        allocation_applied=True,
    )


def combine(*readings: RankReading, device: DeviceKind = DeviceKind.CUDA, attempts: int = 1):
    return combine_readings(
        "fwd_attn",
        CONFIGURATION,
        readings,
        settings=TrialSettings(),
        device=device,
        cooldown_s=5.0,
        num_attempts=attempts,
        gpus=["GPU-a", "GPU-b"],
    )


def test_time_and_energy_are_averaged_over_ranks_per_execution() -> None:
    measurement = combine(reading(0, 0.010), reading(1, 0.012, energy_j=1200.0))
    assert measurement.time_s == pytest.approx(0.011)
    assert measurement.energy_j == pytest.approx(1100.0 / 500)
    assert measurement.energy_spread_j == pytest.approx(8.0 / 500)
    assert measurement.conditions["energy_source"] == "counter"
    assert measurement.conditions["rank_times_s"] == [0.010, 0.012]
    assert "flags" not in measurement.conditions
    json.dumps(measurement.conditions, allow_nan=False)


def test_energy_missing_on_one_rank_is_missing_not_less() -> None:
    lacking = reading(1, energy_j=None, energy_source=EnergySource.NOT_MEASURED)
    measurement = combine(reading(0), lacking)
    assert measurement.energy_j is None
    assert measurement.energy_spread_j is None
    assert measurement.conditions["energy_source"] == "not-measured"
    assert measurement.conditions["flags"] == ["energy of 1 ranks is missing"]


def test_integrated_power_on_one_rank_labels_the_whole() -> None:
    other = reading(1, energy_source=EnergySource.POWER, energy_spread_j=None)
    assert combine(reading(0), other).conditions["energy_source"] == "power-integral"


def test_throttling_is_kept_and_marked() -> None:
    slow = reading(1, throttle_reasons=("sw_power_cap",), achieved_clock_mhz=1050.0)
    assert is_throttled([reading(0), slow])
    conditions = combine(reading(0), slow, attempts=3).conditions
    assert conditions["throttled"] is True
    assert conditions["attempts"] == 3
    assert conditions["throttle_reasons"] == ["sw_power_cap"]
    assert conditions["achieved_clock_mhz"] == 1050.0


def test_a_clock_that_does_not_hold_without_a_reason_is_flagged() -> None:
    conditions = combine(reading(0, achieved_clock_mhz=1410.0)).conditions
    assert conditions["flags"] == ["ran at 1410 MHz instead of 1200 MHz"]


def test_a_processor_has_no_gpu_energy_but_its_own_beside() -> None:
    cpu = RankReading(
        rank=0,
        time_s=0.01,
        time_spread_s=None,
        num_executions=10,
        warmup_s=0.1,
        processor_energy_j=50.0,
    )
    measurement = combine(cpu, replace(cpu, rank=1, processor_energy_j=None), device=DeviceKind.CPU)
    assert measurement.energy_j is None
    assert measurement.conditions["processor_energy_j"] == 5.0
    assert measurement.conditions["energy_source"] == "rapl"
    assert measurement.conditions["clock_applied"] is False
    assert measurement.conditions["sm_allocation_applied"] is False
    without = combine(replace(cpu, processor_energy_j=None), device=DeviceKind.CPU)
    assert without.conditions["energy_source"] == "not-measured"


@pytest.mark.parametrize(
    "given",
    [{"window_s": 0.0}, {"window_s": float("nan")}, {"cooldown_s": -1.0}, {"max_retries": -1}],
)
def test_impossible_phases_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(given))):
        TrialSettings(**given)


def test_phases_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAREUS_WINDOW_S", "0.5")
    assert TrialSettings.from_environment() == TrialSettings(window_s=0.5)
    monkeypatch.setenv("KAREUS_WINDOW_S", "long")
    with pytest.raises(ConfigError, match="KAREUS_WINDOW_S='long'"):
        TrialSettings.from_environment()
