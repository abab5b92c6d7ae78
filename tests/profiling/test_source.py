import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.device.registry import ClockRegistry
from kareus.errors import ConfigError, DeviceError
from kareus.profiling.source import MeasuredSource, default_device
from kareus.profiling.static_power import measure_static_power
from kareus.workload.partitions import build_partitions
from tests.profiling.conftest import make_workload
from tests.standin import StandIn


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.05)
    return False


def ranks() -> list[psutil.Process]:
    """The measuring ranks among this process' descendants."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "kareus.profiling.worker" in line and "torch.distributed.run" not in line:
            found.append(process)
    return found


@pytest.fixture
def source(standin: StandIn, quick: None) -> Iterator[MeasuredSource]:
    with MeasuredSource(make_workload(tp=2), device="rehearsal") as source:
        yield source


def configuration(clock_mhz: int, sms: int | None = 12, point: str | None = "linear_0"):
    return Configuration(
        clock_mhz=clock_mhz,
        sm_allocation=sms,
        launch_point=LaunchPoint(point) if point is not None else None,
    )


def test_a_source_tells_what_it_is_without_starting_anything() -> None:
    partition = build_partitions(make_workload(tp=2))["fwd_attn"]
    source = MeasuredSource(make_workload(tp=2), device="cpu")
    assert source.kind is SourceKind.MEASURED
    assert source.repeatable
    space = source.space(partition)
    assert len(space) == len(set(space))
    assert set(space) == {*partition.space(), *partition.baseline_configurations()}
    assert source.preflight() == ()
    assert ranks() == []


def test_the_device_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAREUS_DEVICE", raising=False)
    assert default_device() == "cuda"
    monkeypatch.setenv("KAREUS_DEVICE", "Rehearsal")
    assert default_device() == "rehearsal"
    monkeypatch.setenv("KAREUS_DEVICE", "gpu")
    with pytest.raises(ConfigError, match="cuda, cpu, rehearsal"):
        default_device()


def test_measuring_locks_clocks_reads_energy_and_survives_bad_requests(
    source: MeasuredSource, standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GPU 1 is throttled until its clock was set more than three times, the preflight's included:
    # the first configuration is measured three times, after longer rests, and the last one counts.
    monkeypatch.setenv("STANDIN_THROTTLE", "1:64:150:3")
    partition = build_partitions(make_workload(tp=2))["fwd_attn"]
    asked = [
        configuration(900),
        configuration(1410, point="none"),
        configuration(900, sms=2000),
        configuration(900, point="activation_0"),
        configuration(900),
    ]
    results = []
    for result in source.measure(partition, asked, repeat=1):
        results.append(result)
        assert standin.gpu(0).locked_mhz == asked[len(results) - 1].clock_mhz
    assert [result.configuration for result in results] == asked
    assert all(result.repeat == 1 for result in results)
    slow, fast, *failed, again = results
    assert isinstance(again, Measurement)
    for result, reason in zip(failed, ("2000 SMs", "no launch point 'activation_0'"), strict=True):
        assert isinstance(result, FailedMeasurement)
        assert reason in result.reason
    for result in (slow, fast):
        assert isinstance(result, Measurement)
        assert result.energy_j is not None
        assert result.conditions["energy_source"] == "counter"
        assert result.conditions["achieved_clock_mhz"] == result.configuration.clock_mhz
        assert result.conditions["temperature_c"] == 45
        assert result.conditions["throttled"] is False
        assert result.conditions["attempts"] == (3 if result is slow else 1)

    source.close()
    assert ranks() == []
    assert [standin.gpu(i).locked_mhz for i in (0, 1)] == [0, 0]


def test_a_rank_that_dies_ends_the_others_with_the_reason(
    source: MeasuredSource, standin: StandIn
) -> None:
    partition = build_partitions(make_workload(tp=2))["bwd_mlp"]
    results = source.measure(partition, [configuration(900)] * 50)
    first = next(results)
    assert isinstance(first, Measurement)
    processes = ranks()
    assert len(processes) == 2
    victim = next(p for p in processes if p.environ()["RANK"] == "1")
    victim.send_signal(signal.SIGKILL)
    started_s = time.monotonic()
    with pytest.raises(DeviceError, match="rank 1 was killed by signal 9") as error:
        list(results)
    assert time.monotonic() - started_s < 30
    assert "\n" not in str(error.value)
    assert "what was measured before is kept" in str(error.value)
    assert [standin.gpu(i).locked_mhz for i in (0, 1)] == [0, 0]
    assert ClockRegistry().claims() == ()
    assert until(lambda: not any(process.is_running() for process in processes))


_OWNER = """
import sys
from kareus.core.configuration import Configuration
from kareus.profiling.source import MeasuredSource
from kareus.workload.partitions import build_partitions
from tests.profiling.conftest import make_workload
workload = make_workload(tp=2)
source = MeasuredSource(workload, device="rehearsal")
partition = build_partitions(workload)["seq_fwd_mlp"]
for result in source.measure(partition, [Configuration(clock_mhz=900)] * 1000):
    print(result.time_s, flush=True)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_whatever_ends_the_asking_process_clocks_are_reset_and_ranks_end(
    standin: StandIn, quick: None, end: signal.Signals
) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert owner.stdout is not None
    assert float(owner.stdout.readline()) > 0
    assert standin.gpu(0).locked_mhz == 900
    children = psutil.Process(owner.pid).children(recursive=True)
    assert len(children) >= 3
    os.kill(owner.pid, end)
    owner.stdout.close()
    owner.wait(timeout=20)
    assert until(lambda: [standin.gpu(i).locked_mhz for i in (0, 1)] == [0, 0])
    assert until(lambda: not any(child.is_running() for child in children))
    assert ClockRegistry().claims() == ()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("STANDIN_NO_PERMISSION", "1", r"root.*SYS_ADMIN.*zeusd"),
        ("STANDIN_MIG", "1", "GPU 1 MIG"),
        ("STANDIN_GPUS", "1", "2 are needed"),
        ("CUDA_VISIBLE_DEVICES", "", "hides every GPU"),
    ],
)
def test_the_preflight_stops_before_the_first_measurement(
    source: MeasuredSource, standin: StandIn, monkeypatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)
    partition = build_partitions(make_workload(tp=2))["fwd_attn"]
    with pytest.raises(DeviceError, match=reason):
        next(source.measure(partition, [configuration(900)]))
    assert ranks() == []
    assert standin.gpu(0).locked_mhz == 0


def test_static_power_is_that_of_a_gpu_blocked_on_a_receive(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_LOAD", "0")
    found = measure_static_power(device="rehearsal", window_s=0.5)
    assert found.static_power_w == pytest.approx(85, rel=0.05)
    assert found.gpus == ("GPU-a0000001-0000-0000-0000-000000000000",)
    assert found.energy_source == "counter"
    assert ClockRegistry().claims() == ()
    for options, reason in (({"device": "cpu"}, "a GPU's"), ({"num_gpus": 1}, "at least 2"),
                            ({"num_gpus": 3}, "2 can be used")):  # fmt: skip
        with pytest.raises(DeviceError, match=reason):
            measure_static_power(**{"device": "rehearsal", **options})
