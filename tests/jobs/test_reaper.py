"""Silent workers, without waiting for them: heartbeats and processes are set by hand."""

import subprocess
import time
from collections.abc import Iterator

import pytest

from kareus.jobs import reaper
from kareus.jobs.heartbeat import Heartbeat
from kareus.jobs.processes import creation_time_s, end_job_processes, this_host
from kareus.jobs.reaper import reap
from kareus.store import JobRecord, JobState, Phase, Progress, Store, StudyState
from tests.jobs.conftest import gone, until


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def _running(store: Store, study: str | None = None, **columns: object) -> JobRecord:
    job = store.create_job("a", study=study, resources=["gpu:0"])
    store.take_leases(job.id, attempt=1)
    store.change_job(job.id, expected=[JobState.QUEUED], state=JobState.RUNNING, **columns)
    return store.job(job.id)


def test_a_silent_worker_elsewhere_is_given_up_after_the_stale_time(
    store: Store, study: str
) -> None:
    job = _running(store, study, pid=1, host="elsewhere", heartbeat_s=time.time() - 20)
    assert reap(store, stale_s=30) == ()
    (marked,) = reap(store, stale_s=10)
    assert (marked.id, marked.state) == (job.id, JobState.INTERRUPTED)
    assert "on elsewhere gave no sign of life for 20 s" in str(marked.error)
    assert store.leases() == {}
    assert store.study(study).state is StudyState.INTERRUPTED
    assert reap(store, stale_s=10) == ()


def test_a_dead_process_is_found_at_once(store: Store, sleeper: subprocess.Popen[bytes]) -> None:
    job = _running(
        store,
        pid=sleeper.pid,
        process_created_s=creation_time_s(sleeper.pid),
        host=this_host(),
        heartbeat_s=time.time(),
    )
    assert reap(store) == ()
    sleeper.kill()
    sleeper.wait()
    (marked,) = reap(store)
    assert (marked.id, marked.state) == (job.id, JobState.INTERRUPTED)


def test_a_job_whose_worker_was_never_started_is_given_up(store: Store) -> None:
    store.create_job("a")
    assert reap(store, stale_s=30) == ()
    time.sleep(0.02)
    (marked,) = reap(store, stale_s=0.01)
    assert marked.state is JobState.INTERRUPTED


def test_a_living_worker_that_stands_still_is_ended_only_after_a_second_look(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine that wakes from sleep shows a stale heartbeat of a worker that is well.
    ended: list[str] = []
    monkeypatch.setattr(reaper, "end_job_processes", lambda job, *, grace_s: ended.append(job))
    process = subprocess.Popen(["sleep", "60"])
    try:
        job = _running(
            store,
            pid=process.pid,
            process_created_s=creation_time_s(process.pid),
            host=this_host(),
            heartbeat_s=time.time() - 1000,
        )
        assert reap(store, stale_s=0.2) == ()
        store.beat(job.id, attempt=1, heartbeat_s=time.time() - 500)
        time.sleep(0.25)
        assert reap(store, stale_s=0.2) == ()
        time.sleep(0.25)
        (marked,) = reap(store, stale_s=0.2)
        assert "stood still" in str(marked.error)
        assert ended == [job.id]
    finally:
        process.kill()
        process.wait()


def test_a_heartbeat_tells_progress_and_hears_the_cancel(store: Store) -> None:
    job = _running(store)
    heartbeat = Heartbeat(store, job.id, attempt=1, beat_s=0.01)
    heartbeat.start()
    until(lambda: store.job(job.id).heartbeat_s)
    progress = Progress(phase=Phase.COMPOSING, done=5, planned=5)
    heartbeat.progress(progress)
    until(lambda: store.job(job.id).progress == progress)
    assert not heartbeat.should_cancel()
    store.change_job(job.id, expected=[JobState.RUNNING], state=JobState.CANCELLING)
    assert heartbeat.wait_cancel(10.0)
    heartbeat.stop()
    assert not heartbeat.taken_over


def test_a_worker_given_up_elsewhere_learns_it_and_stops(store: Store) -> None:
    job = _running(store)
    heartbeat = Heartbeat(store, job.id, attempt=1, beat_s=0.01)
    heartbeat.start()
    store.change_job(job.id, expected=[JobState.RUNNING], state=JobState.INTERRUPTED)
    assert heartbeat.wait_cancel(10.0)
    heartbeat.stop()
    assert heartbeat.taken_over


def test_the_last_progress_is_written_before_the_end(store: Store) -> None:
    job = _running(store)
    heartbeat = Heartbeat(store, job.id, attempt=1, beat_s=60.0)
    heartbeat.start()
    until(lambda: store.job(job.id).heartbeat_s)
    progress = Progress(phase=Phase.FINISHED, done=1, planned=1)
    heartbeat.progress(progress)
    heartbeat.stop()
    assert store.job(job.id).progress == progress


def test_processes_without_the_mark_are_never_ended(sleeper: subprocess.Popen[bytes]) -> None:
    assert end_job_processes("some-job", grace_s=0) == 0
    assert not gone(sleeper.pid)
