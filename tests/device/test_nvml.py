import time

import pytest

from kareus.device import nvml
from kareus.errors import DeviceError
from tests.standin import StandIn


def test_without_a_driver_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDIN_STATE", raising=False)
    with pytest.raises(DeviceError, match="--source simulator") as error:
        nvml.visible_devices()
    assert "\n" not in str(error.value)


def test_devices_and_their_readings(standin: StandIn) -> None:
    first, second = nvml.find_devices()
    assert (first.index, first.name) == (0, "NVIDIA A100-SXM4-40GB")
    assert first.uuid != second.uuid
    assert first.supported_clocks_mhz()[0] == 210
    assert first.supported_clocks_mhz()[-1] == 1410
    assert first.clock_mhz() == 1410
    assert first.power_w() == pytest.approx(300, abs=1)
    assert first.power_limit_w() == 400
    assert first.temperature_c() == 45
    assert first.throttle_reasons() == ()
    assert not first.mig_enabled()
    assert first.persistent()
    assert first.compute_processes() == ()


def test_energy_is_in_joules_and_follows_the_clock(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_TICK_MS", "1")
    device = nvml.find_devices()[1]

    def power_w() -> float:
        start_j, start_s = device.energy_j(), time.monotonic()
        time.sleep(0.2)
        return (device.energy_j() - start_j) / (time.monotonic() - start_s)

    assert power_w() == pytest.approx(300, rel=0.05)
    device.lock_clock(705)
    time.sleep(0.05)
    assert power_w() == pytest.approx(85 + 215 * 0.5**2.4, rel=0.05)
    assert standin.gpu(1).locked_mhz == 705
    assert standin.gpu(0).num_sets == 0
    device.reset_clock()
    assert standin.gpu(1).locked_mhz == 0


@pytest.mark.parametrize(
    ("variable", "read"),
    [("STANDIN_NO_COUNTER", "energy_j"), ("STANDIN_NO_POWER", "power_w")],
)
def test_a_reading_that_is_not_there_is_an_error_never_zero(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, variable: str, read: str
) -> None:
    monkeypatch.setenv(variable, "1")
    first, second = nvml.find_devices()
    assert getattr(first, read)() > 0
    with pytest.raises(nvml.MissingReadingError, match="GPU 1"):
        getattr(second, read)()


def test_no_permission_names_three_remedies(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_NO_PERMISSION", "1")
    with pytest.raises(nvml.ClockPermissionError) as error:
        nvml.find_devices()[0].lock_clock(900)
    for remedy in ("root", "SYS_ADMIN", "zeusd"):
        assert remedy in str(error.value)


def test_throttling_and_foreign_locks_are_told_apart(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_THROTTLE", "0:32:300:99")
    first, second = nvml.find_devices()
    assert first.throttle_reasons() == ("sw_thermal_slowdown",)
    assert first.clock_mhz() == 1110
    assert not first.limited_by_user()
    second.lock_clock(900)
    assert second.limited_by_user()
    assert second.throttle_reasons() == ()


def test_visible_devices_follow_the_environment(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = nvml.find_devices()[1].uuid
    for text in ("1", "1,", uuid, uuid[:12]):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert [device.index for device in nvml.visible_devices()] == [1]
    assert len(nvml.visible_devices({})) == 2
    assert nvml.device_by_uuid(uuid).index == 1
    with pytest.raises(DeviceError, match="not there any more"):
        nvml.device_by_uuid("GPU-gone")


def test_a_daemon_that_does_not_serve_is_named(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    with pytest.raises(DeviceError, match=r"zeusd does not answer at .*zeusd\.sock"):
        nvml.find_devices()
