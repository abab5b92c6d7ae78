"""The process that sets clocks, over stand-in GPUs."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import ClassVar

import psutil
import pytest
import torch

from kareus.errors import DeviceError
from kareus.train.clocks import ClockInStreamOrder, ClockProcess, RecordedClocks


def wait_for(condition, timeout_s=30.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.02)


def test_clocks_are_set_on_request_and_released_at_the_end(tmp_path, standin):
    clock = ClockProcess(device=1, first_clock_mhz=900, log=tmp_path / "clocks.jsonl")
    assert standin.gpu(1).locked_mhz == 900
    process = next(
        child
        for child in psutil.Process().children()
        if "kareus.train.clock_process" in child.cmdline()
    )
    process.suspend()
    clock.request(1410)  # Returns although nobody can answer.
    assert standin.gpu(1).locked_mhz == 900
    process.resume()
    wait_for(lambda: standin.gpu(1).locked_mhz == 1410)
    for clock_mhz in (1200, 1200, 1200):
        clock.request(clock_mhz)
    wait_for(lambda: standin.gpu(1).locked_mhz == 1200)
    clock.close()
    assert standin.gpu(1).locked_mhz == 0
    assert standin.gpu(1).num_sets == 3
    assert standin.gpu(0).num_sets == 0
    assert '"event": "released"' in (tmp_path / "clocks.jsonl").read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("variables", "device", "clock_mhz", "message"),
    [
        ({"STANDIN_NO_PERMISSION": "1"}, 0, 900, "no permission; run as root"),
        ({}, 0, 907, "has no clock of 907 MHz: the nearest are 900 and 915"),
        ({}, 2, 900, "process 2 of this node has no GPU of its own: 2 are visible"),
    ],
)
def test_what_cannot_be_locked_is_said_before_training(
    tmp_path, standin, monkeypatch, variables, device, clock_mhz, message
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DeviceError, match=message):
        ClockProcess(device=device, first_clock_mhz=clock_mhz, log=tmp_path / "clocks.jsonl")
    assert standin.gpu(0).locked_mhz == 0


def test_a_gpu_of_another_job_is_left_alone(tmp_path, standin):
    first = ClockProcess(device=0, first_clock_mhz=900, log=tmp_path / "first.jsonl")
    with pytest.raises(DeviceError, match="held by process"):
        ClockProcess(device=0, first_clock_mhz=1410, log=tmp_path / "second.jsonl")
    assert standin.gpu(0).locked_mhz == 900
    first.close()


def test_a_clock_process_that_is_killed_is_noticed_and_the_clock_released(tmp_path, standin):
    clock = ClockProcess(device=0, first_clock_mhz=900, log=tmp_path / "clocks.jsonl")
    (child,) = [
        p for p in psutil.Process().children() if "kareus.train.clock_process" in p.cmdline()
    ]
    child.kill()
    child.wait(10)
    with pytest.raises(DeviceError, match="died without a word"):
        clock.request(1200)
    wait_for(lambda: standin.gpu(0).locked_mhz == 0)  # its watchdog
    clock.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_clock_is_released_when_the_training_process_ends(tmp_path, standin, number):
    code = (
        "import time; from pathlib import Path; from kareus.train.clocks import ClockProcess\n"
        f"ClockProcess(device=0, first_clock_mhz=900, log=Path({str(tmp_path / 'c.jsonl')!r}))\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: standin.gpu(0).locked_mhz == 900)
    os.kill(process.pid, number)
    process.wait()
    wait_for(lambda: standin.gpu(0).locked_mhz == 0)


class FakeEvent:
    """A place in a stream that the GPU reaches when it is told to."""

    made: ClassVar[list["FakeEvent"]] = []

    def __init__(self, **_):
        self.reached = threading.Event()
        self.made.append(self)

    def record(self):
        pass

    def synchronize(self):
        self.reached.wait(30)


def test_on_a_gpu_a_clock_waits_for_its_place_in_the_stream(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    FakeEvent.made.clear()
    sink = RecordedClocks()
    clocks = ClockInStreamOrder(sink)
    clocks.request(900)
    clocks.request(1410)
    time.sleep(0.05)
    assert sink.requests_mhz == []
    FakeEvent.made[1].reached.set()  # out of turn: order is kept
    time.sleep(0.05)
    assert sink.requests_mhz == []
    FakeEvent.made[0].reached.set()
    wait_for(lambda: sink.requests_mhz == [900, 1410])
    clocks.close()


def test_on_a_gpu_a_clock_that_could_not_be_set_stops_the_next_request(monkeypatch):
    class Broken(RecordedClocks):
        def request(self, clock_mhz):
            raise DeviceError("the GPU is gone")

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    FakeEvent.made.clear()
    clocks = ClockInStreamOrder(Broken())
    clocks.request(900)
    FakeEvent.made[0].reached.set()

    def next_request_fails():
        try:
            clocks.request(1410)
        except DeviceError:
            return True
        return False

    wait_for(next_request_fails)
    clocks.close()
