"""A measuring window on this rank: repeat a unit, equally often on all ranks, and time it.

CUDA events mark the window's tenths on the compute stream; on a CPU the clock of the host does. The
number of repetitions is rank 0's decision, made while warming up.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from kareus.device.energy import ProcessorCounter
from kareus.device.monitor import DeviceMonitor
from kareus.profiling.trial import RankReading

_NUM_PARTS = 10
_NUM_ATTEMPTS, _LEAST_SHARE = 3, 0.7


class Synchroniser:
    """Small decisions shared over the ranks, on the CPU.

    Args:
        group: A gloo group of all ranks; None for a rank that works alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self.rank = dist.get_rank(group) if group is not None else 0
        self.size = dist.get_world_size(group) if group is not None else 1

    def agree(self, value: int) -> int:
        """Return rank 0's value on every rank."""
        if self._group is None:
            return value
        shared = torch.tensor([value])
        dist.broadcast(shared, src=0, group=self._group)
        return int(shared.item())

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self._group is not None:
            dist.barrier(self._group)

    def share(self, text: str | None) -> str:
        """Return rank 0's text on every rank; may wait long for it."""
        shared = [text]
        if self._group is not None:
            dist.broadcast_object_list(shared, src=0, group=self._group)
        assert shared[0] is not None, "rank 0 gives the text"
        return shared[0]

    def collect(self, text: str) -> list[str]:
        """Return every rank's text, by rank."""
        if self._group is None:
            return [text]
        texts: list[str | None] = [None] * self.size
        dist.all_gather_object(texts, text, group=self._group)
        return [each for each in texts if each is not None]


def measure_window(
    run: Callable[[], None],
    *,
    device: torch.device,
    synchroniser: Synchroniser,
    warmup_s: float,
    window_s: float,
    monitor: DeviceMonitor | None,
    processors: ProcessorCounter | None = None,
) -> RankReading:
    """Warm up, repeat a unit for a window, and return what this rank saw of it.

    Args:
        run: Executes the unit once; on CUDA it may return when the work is queued.
        device: Where it computes.
        synchroniser: Over the ranks that execute it together.
        warmup_s: Repetitions that are not counted, at least.
        window_s: The window.
        monitor: Watches this rank's GPU; None without one.
        processors: The processors' energy counter; None if not read.
    """
    warmed_s, per_execution_s = _warm_up(run, device, synchroniser, warmup_s)
    for _ in range(_NUM_ATTEMPTS):
        reading = _window(
            run,
            device=device,
            synchroniser=synchroniser,
            wanted=max(1, math.ceil(window_s / per_execution_s)),
            monitor=monitor,
            processors=processors,
        )
        # While warming up it may still have been slow: a window too short tells better.
        per_execution_s = reading.time_s
        short = reading.time_s * reading.num_executions < _LEAST_SHARE * window_s
        if not synchroniser.agree(int(short)):
            break
    return replace(reading, warmup_s=warmed_s)


def _window(
    run: Callable[[], None],
    *,
    device: torch.device,
    synchroniser: Synchroniser,
    wanted: int,
    monitor: DeviceMonitor | None,
    processors: ProcessorCounter | None,
) -> RankReading:
    """One window of about so many executions."""
    per_part = synchroniser.agree(max(1, math.ceil(wanted / min(_NUM_PARTS, wanted))))
    num_parts = synchroniser.agree(max(1, math.ceil(wanted / per_part)))
    marks = _Marks(device)
    synchroniser.barrier()
    if monitor is not None:
        monitor.begin()
    start_j = processors.energy_j() if processors is not None else None
    marks.add()
    for _ in range(num_parts):
        for _ in range(per_part):
            run()
        marks.add()
    _wait(device)
    end_j = processors.energy_j() if processors is not None else None
    window = monitor.end() if monitor is not None else None
    parts_s = [seconds / per_part for seconds in marks.durations_s()]
    return RankReading(
        rank=synchroniser.rank,
        time_s=statistics.fmean(parts_s),
        time_spread_s=statistics.stdev(parts_s) if len(parts_s) > 1 else None,
        num_executions=num_parts * per_part,
        warmup_s=0.0,
        window=window,
        processor_energy_j=end_j - start_j if start_j is not None and end_j is not None else None,
    )


def _warm_up(
    run: Callable[[], None], device: torch.device, synchroniser: Synchroniser, warmup_s: float
) -> tuple[float, float]:
    """Repeat in growing rounds; return the time it took and that of one execution."""
    started_s = time.perf_counter()
    count = 1
    while True:
        _wait(device)
        round_s = time.perf_counter()
        for _ in range(count):
            run()
        _wait(device)
        now_s = time.perf_counter()
        per_execution_s = max((now_s - round_s) / count, 1e-9)
        left_s = warmup_s - (now_s - started_s)
        # The first execution also makes communicators and picks kernels: never the only one.
        wanted = 0
        if left_s > 0 or count == 1:
            wanted = max(2, min(2 * count, math.ceil(max(left_s, 0) / per_execution_s)))
        count = synchroniser.agree(wanted)
        if count == 0:
            return now_s - started_s, per_execution_s


class _Marks:
    """Moments on the device's own time line."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._moments_s: list[float] = []

    def add(self) -> None:
        """Mark what has been asked for up to now."""
        if self._on_gpu:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._moments_s.append(time.perf_counter())

    def durations_s(self) -> list[float]:
        """Return the seconds between marks; the device must have reached the last one."""
        if self._on_gpu:
            pairs = zip(self._events, self._events[1:], strict=False)
            return [start.elapsed_time(end) / 1e3 for start, end in pairs]
        return [b - a for a, b in zip(self._moments_s, self._moments_s[1:], strict=False)]


def _wait(device: torch.device) -> None:
    """Wait until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
