import time

import pytest
import torch

from kareus.profiling.window import Synchroniser, measure_window


def measure(run, *, warmup_s: float = 0.02, window_s: float = 0.2):
    return measure_window(
        run,
        device=torch.device("cpu"),
        synchroniser=Synchroniser(None),
        warmup_s=warmup_s,
        window_s=window_s,
        monitor=None,
    )


def test_a_unit_is_repeated_for_the_window_and_divided() -> None:
    durations_s = []

    def run() -> None:
        started_s = time.perf_counter()
        time.sleep(0.004)
        durations_s.append(time.perf_counter() - started_s)

    reading = measure(run)
    counted_s = durations_s[-reading.num_executions :]
    assert 1 < reading.num_executions < len(durations_s)
    assert reading.time_s == pytest.approx(sum(counted_s) / len(counted_s), rel=0.1)
    assert reading.time_spread_s is not None
    assert reading.window is None


def test_a_unit_longer_than_the_window_runs_once_in_it() -> None:
    reading = measure(lambda: time.sleep(0.05), window_s=0.01)
    assert reading.num_executions == 1
    assert reading.time_spread_s is None


def test_the_first_execution_does_not_decide_how_many_there_are() -> None:
    started: list[float] = []

    def run() -> None:
        time.sleep(0.001 if started else 0.3)
        started.append(time.perf_counter())

    assert measure(run, warmup_s=0.0, window_s=0.5).num_executions > 5


def test_a_window_that_came_out_too_short_is_repeated() -> None:
    calls: list[float] = []

    def run() -> None:
        # Slow while warming up, ten times as fast afterwards.
        calls.append(0.0)
        time.sleep(0.02 if len(calls) < 8 else 0.002)

    reading = measure(run, warmup_s=0.1, window_s=0.4)
    assert reading.time_s * reading.num_executions > 0.25
