import subprocess
import sys
import time
from pathlib import Path

import pytest

from kareus.device import energy
from kareus.device.energy import EnergySource, integrate_power, processor_counter
from kareus.device.monitor import DeviceMonitor, WindowReading
from kareus.device.nvml import find_devices
from kareus.errors import DeviceError
from tests.standin import StandIn


def window(seconds: float = 0.6) -> WindowReading:
    monitor = DeviceMonitor(find_devices()[0], interval_s=0.02)
    monitor.begin()
    time.sleep(seconds)
    return monitor.end()


def test_a_ramp_is_integrated_exactly() -> None:
    samples = [(t / 10, 100 + t) for t in range(11)]
    assert integrate_power(samples) == pytest.approx(105.0)


def test_gaps_and_few_samples_give_no_energy() -> None:
    assert integrate_power([(0.0, 100.0), (0.1, 100.0)]) is None
    assert integrate_power([(t / 10 + (t > 5), 100.0) for t in range(11)]) is None
    assert integrate_power([(t / 10, 0.0) for t in range(11)]) is None


def test_the_counter_is_read_and_agrees_with_power(standin: StandIn) -> None:
    reading = window()
    assert reading.energy_source is EnergySource.COUNTER
    assert reading.energy_j == pytest.approx(300 * reading.duration_s, rel=0.1)
    assert reading.power_integral_j == pytest.approx(300 * reading.duration_s, rel=0.05)
    assert reading.energy_spread_j is not None
    assert reading.energy_spread_j > 0
    assert reading.achieved_clock_mhz == 1410
    assert reading.temperature_c == 45
    assert reading.throttle_reasons == ()
    assert reading.flags == ()


def test_a_disagreement_is_flagged(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_POWER_BIAS", "1.4")
    assert any("disagree by" in flag for flag in window().flags)


def test_without_a_counter_power_is_integrated_and_labelled(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_NO_COUNTER", "all")
    reading = window()
    assert reading.energy_source is EnergySource.POWER
    assert reading.energy_j == pytest.approx(300 * reading.duration_s, rel=0.05)


@pytest.mark.parametrize("lacks", [{"STANDIN_NO_COUNTER": "0", "STANDIN_NO_POWER": "0"},
                                   {"STANDIN_STUCK_COUNTER": "0"}])  # fmt: skip
def test_no_energy_is_none_with_the_reason(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, lacks: dict[str, str]
) -> None:
    for name, value in lacks.items():
        monkeypatch.setenv(name, value)
    reading = window(0.2)
    assert reading.energy_j is None
    assert reading.energy_source is EnergySource.NOT_MEASURED
    assert any(flag.startswith("energy not read") for flag in reading.flags)


def test_throttling_is_seen(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_THROTTLE", "0:68:210:99")
    reading = window(0.2)
    assert reading.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert reading.lowest_clock_mhz == 1200


def _packages(folder: Path) -> Path:
    """Two processor packages as the kernel shows them, without DRAM."""
    for number in (0, 1):
        package = folder / f"intel-rapl:{number}"
        package.mkdir(parents=True)
        (package / "name").write_text(f"package-{number}\n")
        (package / "energy_uj").write_text(f"{(number + 1) * 1_000_000}\n")
        (package / "max_energy_range_uj").write_text("262143328850\n")
    return folder


_READ_TWICE = """
import sys
import zeus.device.cpu.rapl as rapl
rapl.RAPL_DIR = sys.argv[1]
from kareus.device.energy import processor_counter
counter = processor_counter()
print(counter.energy_j())
open(sys.argv[1] + "/intel-rapl:1/energy_uj", "w").write("7000000")
print(counter.energy_j())
"""


def test_processor_packages_are_added_up_in_joules(tmp_path: Path) -> None:
    folder = _packages(tmp_path)
    answer = subprocess.run(
        [sys.executable, "-c", _READ_TWICE, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert answer.stdout.split() == ["3.0", "8.0"], answer.stderr


def test_processors_without_rapl_have_no_counter(monkeypatch, tmp_path) -> None:
    import zeus.device.cpu.rapl as rapl

    rapl.rapl_is_available.cache_clear()
    monkeypatch.setattr(rapl, "RAPL_DIR", str(tmp_path / "none"))
    assert processor_counter() is None
    with pytest.raises(DeviceError, match="RAPL"):
        energy.ProcessorCounter()
    rapl.rapl_is_available.cache_clear()
