"""The order of streams on CUDA, checked with stand-ins where there is no GPU."""

import contextlib

import pytest
import torch

from kareus.core.partition import CollectiveGroup, CollectiveKind, Direction
from kareus.execute import parallel, trace
from kareus.execute.parallel import CollectiveCall, Communicator
from kareus.execute.trace import EventKind, Recorder, Trace


class FakeStream:
    def __init__(self, name, log):
        self.name = name
        self.log = log
        self.device = torch.device("cuda:0")

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


class FakeEvent:
    clock_ms = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        FakeEvent.clock_ms += 2.0
        stream.log.append(f"event on {stream.name}")
        self.stream, self.at_ms = stream.name, FakeEvent.clock_ms

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


@pytest.fixture
def log(monkeypatch):
    log = []
    compute = FakeStream("compute", log)

    @contextlib.contextmanager
    def on_stream(stream):
        log.append(f"enter {stream.name}")
        yield
        log.append(f"leave {stream.name}")

    monkeypatch.setattr(parallel.torch.cuda, "current_stream", lambda device=None: compute)
    monkeypatch.setattr(parallel.torch.cuda, "stream", on_stream)
    monkeypatch.setattr(trace.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trace.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(trace.torch.cuda, "Event", FakeEvent)
    return log


def test_a_collective_waits_for_the_launch_point_and_computation_for_its_end(log, monkeypatch):
    communicator = Communicator(CollectiveGroup.TP, None, device=torch.device("cpu"))
    communicator.stream = FakeStream("communication", log)

    def issue(kind, source, destination, *, sm_allocation, async_op):
        log.append(f"{kind} with {sm_allocation} SMs, async {async_op}")

    monkeypatch.setattr(communicator, "issue", issue)
    tensor = torch.ones(3)
    call = CollectiveCall(
        CollectiveKind.ALL_REDUCE,
        communicator,
        tensor,
        tensor,
        layer=1,
        nanobatch=0,
        on_done=lambda: log.append("done"),
    )
    recorded = Trace()
    recorder = Recorder(trace=recorded, instruction=0, direction=Direction.FORWARD)
    recorder.write(EventKind.SLOT_STARTED, slot="norm_0")
    call.launch(6, recorder)
    assert call.launched
    call.wait(recorder)
    assert not call.launched
    assert log == [
        "event on compute",
        "communication waits for compute",
        "event on communication",
        "enter communication",
        "all-reduce with 6 SMs, async False",
        "leave communication",
        "event on communication",
        "compute waits for communication",
        "done",
    ]
    # Events stand on the stream they concern, and have GPU times.
    assert [event.cuda_event.stream for event in recorded.events] == [
        "compute",
        "communication",
        "communication",
    ]
    times = [recorded.gpu_time_s(event) for event in recorded.events]
    assert times == pytest.approx([0.0, 0.002, 0.004])


def test_without_a_gpu_there_are_no_gpu_times():
    recorded = Trace()
    Recorder(trace=recorded, instruction=0, direction=Direction.FORWARD).write(
        EventKind.UNIT_STARTED
    )
    assert recorded.gpu_time_s(recorded.events[0]) is None
