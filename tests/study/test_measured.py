"""A whole measured study through the job system, over two stand-in GPUs."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.device.registry import ClockRegistry
from kareus.errors import ConfigError
from kareus.service import JobView, Service, StudyRequest, WorkloadSettings
from tests.profiling.conftest import quick
from tests.standin import StandIn
from tests.standin.plugin import standin, standin_library

__all__ = ["quick", "standin", "standin_library"]

REQUEST = StudyRequest(
    settings=WorkloadSettings(
        model="tiny", gpu="A100-SXM4-40GB", tp=2, pp=1,
        microbatch_size=2, seq_len=32, num_microbatches=2,
    ),
    source=SourceKind.MEASURED,
    budget="56",
)  # fmt: skip


@pytest.fixture
def machine(standin: StandIn, quick: None, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two GPUs with three clocks; computation runs on the processor."""
    monkeypatch.setenv("KAREUS_DEVICE", "rehearsal")
    monkeypatch.setenv("STANDIN_CLOCKS", "900:1410:255")
    return standin


def _until(service: Service, job: str, reached: Callable[[JobView], bool]) -> JobView:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        view = service.job(job)
        if reached(view):
            return view
        time.sleep(0.1)
    raise AssertionError(f"{view.state} with {view.measurements} measurements: {view.error}")


@pytest.mark.slow
def test_a_measured_study_survives_sigkill_and_releases_its_clocks(
    machine: StandIn, tmp_path: Path
) -> None:
    service = Service(tmp_path / "kareus.db")
    assessment = service.assess(REQUEST)
    assert assessment.ready, assessment.findings
    assert assessment.workload is not None
    assert assessment.workload.gpu.clocks_mhz == (900, 1155, 1410)

    handle = service.submit(REQUEST)
    before = _until(service, handle.job, lambda view: view.measurements >= 5)
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    killed = _until(service, handle.job, lambda view: view.finished)
    assert killed.resumable
    deadline = time.monotonic() + 30
    while any(machine.gpu(i).locked_mhz for i in (0, 1)) or ClockRegistry().claims():
        assert time.monotonic() < deadline, "clocks were left locked"
        time.sleep(0.1)
    kept = service.store.measurement_rows(handle.study)
    assert len(kept) >= 5

    service.resume_job(handle.job)
    done = _until(service, handle.job, lambda view: view.finished)
    assert done.state == "done", done.error
    rows = service.store.measurement_rows(handle.study)
    assert rows[: len(kept)] == kept
    assert all(row["source"] == "measured" and row["energy_j"] > 0 for row in rows)
    assert [machine.gpu(i).locked_mhz for i in (0, 1)] == [0, 0]
    assert service.plan_summaries(handle.study, Method.KAREUS)
    measured = service.measurements(handle.study)[0]
    assert measured.conditions["energy_source"]
    assert "achieved_clock_mhz" in measured.conditions


def test_a_machine_without_permission_is_told_before_the_study_is_stored(
    machine: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(tmp_path / "kareus.db")
    checks = service.preflight(REQUEST.settings)
    assert {check.state for check in checks} <= {"ok", "warning"}
    monkeypatch.setenv("STANDIN_GPUS", "1")
    with pytest.raises(ConfigError, match="2 GPUs"):
        service.submit(REQUEST)
    assert service.studies() == []
