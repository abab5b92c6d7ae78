import pytest

from kareus.device.clocks import ClockKeeper
from kareus.device.nvml import find_devices
from kareus.device.preflight import Check, CheckState, preflight, require
from kareus.device.registry import ClockRegistry, ProcessId
from kareus.errors import DeviceError
from tests.standin import StandIn


def run(**options) -> dict[str, Check]:
    defaults = {"static_power_w": 85.0, "static_power_measured": True, "settle_s": 0.2}
    return {check.name: check for check in preflight(**{**defaults, **options})}


def test_a_sound_machine_passes_and_its_clocks_are_reset(standin: StandIn) -> None:
    checks = run(num_gpus=2, model="A100-SXM4-40GB", clocks_mhz=(900, 1410))
    assert {check.state for check in checks.values()} == {CheckState.OK}
    assert "read back" in checks["GPU 1 clock lock"].found
    for gpu in (standin.gpu(0), standin.gpu(1)):
        assert (gpu.locked_mhz, gpu.num_sets) == (0, 1)
        assert gpu.num_resets >= 1
    require(tuple(checks.values()))


def test_without_a_driver_there_is_one_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDIN_STATE", raising=False)
    (check,) = preflight()
    assert check.state is CheckState.MISSING
    assert check.remedy


@pytest.mark.parametrize(
    ("variable", "value", "name", "state", "remedy"),
    [
        ("STANDIN_MIG", "0", "GPU 0 MIG", "missing", "-mig 0"),
        ("STANDIN_STUCK_COUNTER", "0", "GPU 0 energy", "missing", "reload"),
        ("STANDIN_NO_COUNTER", "0", "GPU 0 energy", "warning", "windows of 5 s"),
        ("STANDIN_NO_PERSISTENCE", "0", "GPU 0 persistence", "warning", "-pm 1"),
        ("STANDIN_BUSY", "0", "GPU 0 processes", "warning", "end them"),
        ("STANDIN_NO_PERMISSION", "1", "GPU 0 clock lock", "missing", "SYS_ADMIN"),
        ("STANDIN_DISOBEY", "0", "GPU 0 clock lock", "missing", "who else sets its clock"),
        ("STANDIN_NAME", "NVIDIA A40", "GPU model", "warning", "--gpu"),
        ("STANDIN_CLOCKS", "210:1200:15", "GPU 0 clocks", "missing", "--gpu"),
        ("CUDA_VISIBLE_DEVICES", "", "NVIDIA GPUs", "missing", "unset it"),
        ("CUDA_VISIBLE_DEVICES", "MIG-1", "NVIDIA GPUs", "missing", "disable MIG"),
        ("CUDA_VISIBLE_DEVICES", "1", "Visible GPUs", "missing", "fewer ranks"),
        ("STANDIN_NAME", "NVIDIA A40;NVIDIA L4", "NVIDIA GPUs", "missing", "UUID"),
    ],
)
def test_each_failure_has_its_remedy(
    standin: StandIn, monkeypatch, variable: str, value: str, name: str, state: str, remedy: str
) -> None:
    monkeypatch.setenv(variable, value)
    checks = run(
        num_gpus=2,
        model="A100-SXM4-40GB",
        clocks_mhz=(900, 1410),
        set_clocks=name.endswith("lock"),
    )
    assert checks[name].state == state
    assert remedy in (checks[name].remedy or "")
    if state == "missing":
        with pytest.raises(DeviceError, match="nothing was measured"):
            require(tuple(checks.values()))
    assert standin.gpu(0).locked_mhz == 0


def test_clocks_are_left_alone_on_request(standin: StandIn) -> None:
    assert run(set_clocks=False)["GPU 0 clock lock"].found == "free; not tried"
    assert standin.gpu(0).num_sets == standin.gpu(0).num_resets == 0


def test_static_power_must_be_known(standin: StandIn) -> None:
    assert run(num_gpus=0, static_power_w=None)["Static power"].state is CheckState.WARNING
    assumed = run(num_gpus=0, static_power_measured=False)["Static power"]
    assert assumed.state is CheckState.WARNING
    assert "--static-power" in (assumed.remedy or "")


def test_a_foreign_lock_is_left_alone(standin: StandIn) -> None:
    find_devices()[0].lock_clock(1200)
    check = run()["GPU 0 clock lock"]
    assert check.state is CheckState.MISSING
    assert "kareus doctor --release-clocks" in (check.remedy or "")
    assert standin.gpu(0).locked_mhz == 1200


def test_stale_and_held_claims_are_told_apart(standin: StandIn) -> None:
    first, second = find_devices()
    registry = ClockRegistry()
    registry.claim(first.identity, ProcessId(pid=1, created_s=1.0), None)
    init = ProcessId.of(1)
    registry.claim(second.identity, init, None)
    checks = run()
    assert "release-clocks" in (checks["GPU 0 clock lock"].remedy or "")
    assert "wait for that job" in (checks["GPU 1 clock lock"].remedy or "")
    assert standin.gpu(0).num_sets == standin.gpu(1).num_sets == 0


def test_what_this_process_holds_passes(standin: StandIn) -> None:
    with ClockKeeper(find_devices()) as keeper:
        keeper.lock(900)
        assert run()["GPU 0 clock lock"].found == "held by this process"
        assert standin.gpu(0).locked_mhz == 900
