"""Whole workers, as processes: done, failed, killed, cancelled, resumed, queued."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kareus.errors import CancelledError, JobError, NotFoundError
from kareus.jobs import JobManager
from kareus.jobs.processes import JOB_VARIABLE, creation_time_s, this_host, worker_alive
from kareus.store import JobState, Phase, Progress, Store, StudyState
from tests.jobs.conftest import gone, until
from tests.jobs.kinds import measurement

WAIT_S = 60.0


def test_a_job_runs_to_its_end_in_a_session_of_its_own(
    store: Store, manager: JobManager, study: str
) -> None:
    job = manager.submit("measure", study=study, request={"count": 5, "pause_s": 0.05})
    assert job.pid is not None
    assert os.getsid(job.pid) == job.pid
    done = manager.wait(job.id, timeout_s=WAIT_S)
    assert (done.state, done.error) == (JobState.DONE, None)
    assert done.progress is not None
    assert (done.progress.done, done.progress.planned) == (5, 5)
    assert done.started_at is not None
    assert done.finished_at is not None
    assert store.study(study).state is StudyState.DONE
    assert store.measurements(study) == tuple(measurement(index) for index in range(5))
    log = manager.logs(job.id)
    assert any("measured 5 configurations" in line for line in log)
    assert json.loads(Path(str(job.log_path)).read_text().splitlines()[0])["study"] == study
    with pytest.raises(JobError, match="done and cannot be resumed: it is finished"):
        manager.resume(job.id)
    with pytest.raises(JobError, match="done: there is nothing to cancel"):
        manager.cancel(job.id)


def test_a_failure_is_kept_with_its_traceback(
    store: Store, manager: JobManager, study: str
) -> None:
    job = manager.wait(manager.submit("fail", study=study).id, timeout_s=WAIT_S)
    assert job.state is JobState.FAILED
    assert job.error == "ZeroDivisionError: a deliberate failure, in two lines"
    assert job.traceback is not None
    assert "raise ZeroDivisionError" in job.traceback
    found = store.study(study)
    assert (found.state, found.error) == (StudyState.FAILED, job.error)
    assert any("raise ZeroDivisionError" in line for line in manager.logs(job.id))


def test_a_killed_worker_is_resumed_and_nothing_is_repeated_or_lost(
    store: Store, manager: JobManager, study: str
) -> None:
    request = {"count": 12, "die_at": 5}
    job = manager.wait(manager.submit("measure", study=study, request=request).id, timeout_s=WAIT_S)
    assert job.state is JobState.INTERRUPTED
    assert "ended without a word" in str(job.error)
    assert f"kareus jobs resume {job.id}" in str(job.error)
    assert store.study(study).state is StudyState.INTERRUPTED
    before = store.measurement_rows(study)
    assert len(before) == 5
    resumed = manager.wait(manager.resume(job.id).id, timeout_s=WAIT_S)
    assert (resumed.state, resumed.attempt, resumed.error) == (JobState.DONE, 2, None)
    assert store.measurement_rows(study)[:5] == before
    assert store.measurements(study) == tuple(measurement(index) for index in range(12))
    assert store.study(study).state is StudyState.DONE


@pytest.mark.parametrize("orphan", [False, True])
def test_cancel_ends_children_and_grandchildren(
    store: Store, manager: JobManager, study: str, tmp_path: Path, orphan: bool
) -> None:
    pids = tmp_path / "pids"
    job = manager.submit("family", study=study, request={"pids": str(pids), "orphan": orphan})
    until(pids.exists)
    family = json.loads(pids.read_text())
    assert manager.cancel(job.id).state in (JobState.CANCELLING, JobState.CANCELLED)
    assert manager.cancel(job.id).state in (JobState.CANCELLING, JobState.CANCELLED)
    assert manager.wait(job.id, timeout_s=WAIT_S).state is JobState.CANCELLED
    assert all(gone(pid) for pid in family)
    until(lambda: gone(int(str(job.pid))))
    assert store.study(study).state is StudyState.CANCELLED


def test_a_failing_job_leaves_no_process_behind(manager: JobManager, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = manager.submit("family", request={"pids": str(pids), "orphan": True, "blocks": True})
    assert manager.wait(job.id, timeout_s=WAIT_S).state is JobState.FAILED
    assert all(gone(pid) for pid in json.loads(pids.read_text()))


def test_a_function_waiting_for_its_child_is_cancelled_not_failed(
    manager: JobManager, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    job = manager.submit("family", request={"pids": str(pids), "blocks": True})
    until(pids.exists)
    manager.cancel(job.id)
    ended = manager.wait(job.id, timeout_s=WAIT_S)
    assert (ended.state, ended.error) == (JobState.CANCELLED, None)


def test_a_killed_workers_children_are_ended(manager: JobManager, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = manager.submit("family", request={"pids": str(pids)})
    until(pids.exists)
    family = json.loads(pids.read_text())
    assert job.pid is not None
    os.kill(job.pid, signal.SIGKILL)
    until(lambda: gone(int(str(job.pid))))
    assert not any(gone(pid) for pid in family)
    assert manager.get(job.id).state is JobState.INTERRUPTED
    until(lambda: all(gone(pid) for pid in family))


def test_a_worker_that_was_killed_while_cancelling_is_cancelled(
    manager: JobManager, store: Store, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    job = manager.submit("stubborn", request={"started": str(started)})
    until(started.exists)
    store.change_job(job.id, expected=[JobState.RUNNING], state=JobState.CANCELLING)
    assert job.pid is not None
    os.kill(job.pid, signal.SIGKILL)
    until(lambda: gone(int(str(job.pid))))
    assert manager.get(job.id).state is JobState.CANCELLED


def test_a_function_that_does_not_stop_is_ended_after_its_grace_time(
    store: Store, tmp_path: Path
) -> None:
    started, overdue = tmp_path / "started", tmp_path / "overdue"
    program = f"""
import os
from pathlib import Path
from kareus.jobs import heartbeat, worker
heartbeat.GRACE_S = 0.3
import kareus.jobs.runner as runner
original = runner.Heartbeat
runner.Heartbeat = lambda *a, **k: original(*a, **dict(k, grace_s=0.3))
worker.main([{store.create_job("stubborn", request={"started": str(started)}).id!r},
    "--db", {str(store.path)!r}, "--kinds", "tests.jobs.kinds"])
Path({str(overdue)!r}).touch()
"""
    job = store.jobs()[0]
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, JOB_VARIABLE: job.id}
    )
    until(started.exists)
    process.terminate()
    assert process.wait(timeout=WAIT_S) == 3
    assert not overdue.exists()
    assert store.job(job.id).state is JobState.CANCELLED


def test_sigterm_to_the_worker_is_a_cancel_and_it_can_go_on(
    store: Store, manager: JobManager, study: str
) -> None:
    job = manager.submit("measure", study=study, request={"count": 40, "pause_s": 0.03})
    until(lambda: store.count_measurements(study))
    assert job.pid is not None
    os.kill(job.pid, signal.SIGTERM)
    assert manager.wait(job.id, timeout_s=WAIT_S).state is JobState.CANCELLED
    done = store.count_measurements(study)["fwd_attn"]
    assert 0 < done < 40
    assert manager.wait(manager.resume(job.id).id, timeout_s=WAIT_S).state is JobState.DONE
    assert store.measurements(study) == tuple(measurement(index) for index in range(40))


def test_jobs_that_want_one_gpu_run_one_after_the_other(
    store: Store, manager: JobManager, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    first = manager.submit("stubborn", request={"started": str(started)}, resources=["gpu:0"])
    until(started.exists)
    second = manager.submit("echo", resources=["gpu:0"])
    third = manager.submit("echo", resources=["gpu:1"])
    assert manager.wait(third.id, timeout_s=WAIT_S).state is JobState.DONE
    until(lambda: store.job(second.id).progress)
    waiting = manager.get(second.id)
    assert waiting.state is JobState.QUEUED
    assert waiting.progress == Progress(
        phase=Phase.WAITING, message=f"waiting for gpu:0, used by {first.id}"
    )
    # Even a holder that is killed does not block the queue.
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    assert manager.wait(second.id, timeout_s=WAIT_S).state is JobState.DONE
    assert store.job(first.id).state is JobState.INTERRUPTED
    assert store.leases() == {}


def test_a_waiting_job_can_be_cancelled(store: Store, manager: JobManager, tmp_path: Path) -> None:
    holder = store.create_job("a", resources=["gpu:0"])
    store.take_leases(holder.id, attempt=1)
    store.change_job(
        holder.id,
        expected=[JobState.QUEUED],
        state=JobState.RUNNING,
        pid=os.getpid(),
        process_created_s=creation_time_s(os.getpid()),
        host=this_host(),
        heartbeat_s=time.time(),
    )
    job = manager.submit("echo", resources=["gpu:0"])
    until(lambda: store.job(job.id).progress)
    manager.cancel(job.id)
    assert manager.wait(job.id, timeout_s=WAIT_S).state is JobState.CANCELLED
    assert store.leases() == {"gpu:0": holder.id}


def test_a_worker_that_cannot_begin_says_why(store: Store, tmp_path: Path) -> None:
    manager = JobManager(store, kinds_module="tests.jobs.kinds")
    for kind, message in (
        ("missing", "jobs of kind 'missing' cannot run here: No module named"),
        ("no-function", "is no function"),
    ):
        job = manager.wait(manager.submit(kind).id, timeout_s=WAIT_S)
        assert job.state is JobState.FAILED
        assert message in str(job.error)


def test_a_worker_that_dies_before_it_began_shows_its_last_words(
    store: Store, manager: JobManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    job = manager.wait(manager.submit("echo").id, timeout_s=WAIT_S)
    assert job.state is JobState.FAILED
    assert "ended before it began: no such library" in str(job.error)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(JobError, match="cannot be started"):
        manager.submit("echo")
    assert store.jobs()[0].state is JobState.FAILED


def test_what_cannot_be_submitted_is_refused_and_not_stored(
    store: Store, manager: JobManager, study: str
) -> None:
    with pytest.raises(JobError, match="no kind of job 'absent': known are"):
        manager.submit("absent")
    with pytest.raises(NotFoundError, match="no study"):
        manager.submit("echo", study="absent")
    with pytest.raises(JobError, match="need a database file"):
        JobManager(Store.in_memory(), kinds_module="tests.jobs.kinds").submit("echo")
    assert store.jobs() == ()
    with pytest.raises(NotFoundError, match="no job 'absent'"):
        manager.logs("absent")


def test_the_foreground_runs_the_same_job_and_returns_its_result(
    store: Store, manager: JobManager
) -> None:
    reports: list[Progress] = []
    result = manager.run_here("echo", request={"x": 1}, on_progress=reports.append)
    assert result == '{"x": 1}'
    assert [report.message for report in reports] == ["halfway"]
    (job,) = store.jobs()
    assert (job.state, job.pid) == (JobState.DONE, os.getpid())
    assert job.progress == reports[0]
    assert JOB_VARIABLE not in os.environ


def test_a_failure_in_the_foreground_is_raised_as_it_is(
    store: Store, manager: JobManager, study: str
) -> None:
    with pytest.raises(ZeroDivisionError):
        manager.run_here("fail", study=study)
    assert store.jobs()[0].state is JobState.FAILED


def test_interrupting_the_foreground_cancels_and_restores_the_signals(
    store: Store, manager: JobManager, study: str
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt(progress: Progress) -> None:
        if progress.done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(CancelledError):
        manager.run_here("measure", study=study, request={"count": 9}, on_progress=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    (job,) = store.jobs()
    assert job.state is JobState.CANCELLED
    assert store.count_measurements(study) == {"fwd_attn": 3}
    assert manager.wait(manager.resume(job.id).id, timeout_s=WAIT_S).state is JobState.DONE
    assert store.count_measurements(study) == {"fwd_attn": 9}


def test_a_second_worker_for_the_same_attempt_is_turned_away(store: Store) -> None:
    job = store.create_job("echo")
    store.change_job(job.id, expected=[JobState.QUEUED], state=JobState.RUNNING)
    command = [sys.executable, "-m", "kareus.jobs.worker", job.id, "--db", str(store.path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert ended.returncode == 1
    assert store.job(job.id).state is JobState.RUNNING


def test_a_process_with_the_same_number_is_not_the_worker(store: Store) -> None:
    job = store.create_job("echo")
    created = psutil.Process(os.getpid()).create_time()
    for created_s, alive in ((created, True), (created - 100.0, False)):
        store.change_job(
            job.id,
            expected=[JobState.QUEUED],
            pid=os.getpid(),
            process_created_s=created_s,
            host=this_host(),
        )
        assert worker_alive(store.job(job.id)) is alive
