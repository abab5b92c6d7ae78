import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kareus.device.clocks import ClockKeeper, release_clocks, wait_settled
from kareus.device.nvml import find_devices
from kareus.device.registry import ClockRegistry, ProcessId
from kareus.errors import DeviceError
from tests.standin import StandIn

_OWNER = """
import sys, time
from kareus.device.clocks import ClockKeeper
from kareus.device.nvml import find_devices
keeper = ClockKeeper(find_devices())
with keeper:
    keeper.lock(900)
    print("locked", keeper._watchdog.process.pid, flush=True)
    time.sleep(60)
"""


def until(condition: Callable[[], bool], timeout_s: float = 15.0) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def owner(standin: StandIn):
    """A process in a session of its own that holds both clocks, and its watchdog."""
    process = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, "KAREUS_JOB": "job-1"},
    )
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert words[0] == "locked"
    yield process, int(words[1])
    process.kill()
    process.wait()
    process.stdout.close()


def test_locks_are_released_when_the_context_ends(standin: StandIn) -> None:
    devices = find_devices()
    with ClockKeeper(devices) as keeper:
        keeper.lock(900)
        assert [standin.gpu(i).locked_mhz for i in (0, 1)] == [900, 900]
        assert wait_settled(devices[0], 900, timeout_s=2.0) == 900
        claims = ClockRegistry().claims()
        assert [(claim.index, claim.clock_mhz, claim.stale) for claim in claims] == [
            (0, 900, False),
            (1, 900, False),
        ]
        keeper.lock(1200)
        watchdog = claims[0].watchdog
        assert watchdog is not None
        assert watchdog.alive
    assert [standin.gpu(i).locked_mhz for i in (0, 1)] == [0, 0]
    assert ClockRegistry().claims() == ()
    assert not watchdog.alive


def test_an_error_inside_releases_too(standin: StandIn) -> None:
    with pytest.raises(ZeroDivisionError), ClockKeeper(find_devices()[:1]) as keeper:
        keeper.lock(900)
        _ = 1 / 0
    assert standin.gpu(0).locked_mhz == 0


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_the_watchdog_releases_whatever_ends_the_owner(owner, standin, end) -> None:
    process, watchdog = owner
    assert standin.gpu(1).locked_mhz == 900
    # As a terminal does, to the whole foreground group.
    os.killpg(process.pid, end)
    process.wait(timeout=10)
    assert until(lambda: [standin.gpu(i).locked_mhz for i in (0, 1)] == [0, 0])
    assert until(lambda: not ClockRegistry().claims())
    assert until(lambda: not Path(f"/proc/{watchdog}").exists())


def test_the_watchdog_is_nobodys_child_and_no_part_of_the_job(owner) -> None:
    process, watchdog = owner
    status = Path(f"/proc/{watchdog}/stat").read_text().rsplit(")", 1)[1].split()
    parent, group, session = (int(field) for field in status[1:4])
    assert process.pid not in (parent, group, session)
    assert b"KAREUS_JOB" not in Path(f"/proc/{watchdog}/environ").read_bytes()


def test_two_processes_never_share_a_gpu(owner, standin) -> None:
    with (
        pytest.raises(DeviceError, match=r"GPU 0: held by process \d+ .*900 MHz"),
        ClockKeeper(find_devices()) as keeper,
    ):
        keeper.lock(1200)
    assert standin.gpu(0).locked_mhz == 900
    found = release_clocks()
    assert [(each.index, each.released) for each in found] == [(0, False), (1, False)]
    assert "cancel that job first" in found[0].reason


def test_what_owner_and_watchdog_left_is_stale_and_can_be_released(owner, standin) -> None:
    process, watchdog = owner
    os.kill(watchdog, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{watchdog}").exists())
    process.kill()
    process.wait()
    assert [claim.stale for claim in ClockRegistry().claims()] == [True, True]
    assert standin.gpu(0).locked_mhz == 900
    found = release_clocks()
    assert all(each.released for each in found)
    assert f"left by process {process.pid}" in found[0].reason
    assert standin.gpu(0).locked_mhz == 0
    assert ClockRegistry().claims() == ()


def test_a_stale_claim_is_taken_over(standin: StandIn) -> None:
    device = find_devices()[0]
    gone = ProcessId(pid=os.getpid(), created_s=1.0)
    ClockRegistry().claim(device.identity, gone, None)
    with ClockKeeper([device]) as keeper:
        keeper.lock(900)
        assert not ClockRegistry().claims()[0].stale


def test_a_clock_the_device_lacks_is_refused_before_anything_is_locked(standin: StandIn) -> None:
    with (
        ClockKeeper(find_devices()) as keeper,
        pytest.raises(DeviceError, match="no clock of 905 MHz: the nearest are 900 and 915"),
    ):
        keeper.lock(905)
    assert standin.gpu(0).num_sets == 0


def test_without_permission_nothing_stays_claimed_silently(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_NO_PERMISSION", "1")
    with pytest.raises(DeviceError, match="zeusd"), ClockKeeper(find_devices()) as keeper:
        keeper.lock(900)
    assert ClockRegistry().claims() == ()
    found = release_clocks()
    assert not any(each.released for each in found)
    assert "no permission" in found[0].reason


def test_a_broken_claim_is_named(standin: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "claims"
    registry = ClockRegistry(folder)
    assert registry.claims() == ()
    (folder / "GPU-0.json").write_text("{")
    with pytest.raises(DeviceError, match=r"GPU-0\.json does not say who holds a GPU"):
        registry.claims()
