"""Runs one job in the calling process: waits for its resources, runs it, says how it ended.

The same for a worker in the background and for a command in the foreground.
"""

import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from kareus.errors import CancelledError, JobError, KareusError
from kareus.jobs import states
from kareus.jobs.context import JobContext, JobFunction
from kareus.jobs.heartbeat import GRACE_S, Heartbeat
from kareus.jobs.processes import (
    JOB_VARIABLE,
    creation_time_s,
    end_job_processes,
    this_host,
)
from kareus.jobs.reaper import reap
from kareus.store import JobRecord, JobState, Phase, Progress, Store, StudyState
from kareus.store.records import now

_LOGGER = logging.getLogger(__name__)
_QUEUE_POLL_S = 0.5
_STUDY_STATES = {
    JobState.DONE: StudyState.DONE,
    JobState.FAILED: StudyState.FAILED,
    JobState.CANCELLED: StudyState.CANCELLED,
}


def run_job(
    store: Store,
    job: str,
    function: JobFunction,
    *,
    attempt: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    on_overdue: Callable[[], None] | None = None,
) -> object:
    """Run a queued job in this process, from waiting for its resources to its final state.

    SIGTERM and SIGINT ask the job to stop while it runs, if this is the main thread.

    Args:
        store: Where the job is kept.
        job: The job's id.
        function: What to run.
        attempt: The attempt this is.
        on_progress: Is told how far the job is as well, at once; for progress bars.
        on_overdue: What to do when a cancelled job does not stop within its grace time.

    Returns:
        What the function returns.

    Raises:
        CancelledError: The job was asked to stop and did.
        JobError: It is not queued (any more), or another attempt took over.
        Exception: What the function raised; it is stored with its traceback.
    """
    record = _claim(store, job, attempt)
    heartbeat = Heartbeat(store, job, attempt=attempt, on_overdue=on_overdue)

    def progress(report: Progress) -> None:
        heartbeat.progress(report)
        if on_progress is not None:
            on_progress(report)

    context = JobContext(
        store=store,
        job=job,
        study=record.study,
        attempt=attempt,
        request=record.request,
        should_cancel=heartbeat.should_cancel,
        progress=progress,
        logger=logging.getLogger("kareus.jobs.run"),
    )
    with _marked(job), _signals(heartbeat.cancel):
        heartbeat.start()
        try:
            _wait_for_resources(store, record, heartbeat, progress)
            with store.transaction():
                states.change(store, job, JobState.RUNNING, attempt=attempt, started_at=now())
                _set_study(store, record, StudyState.RUNNING)
            _LOGGER.info("job %s (%s), attempt %d, started", job, record.kind, attempt)
            result = function(context)
        except BaseException as error:
            # Before the job counts as ended: whoever sees it so may use its GPUs.
            end_job_processes(job, grace_s=GRACE_S / 2)
            heartbeat.stop()
            if heartbeat.taken_over:
                raise JobError(f"job {job} was taken over or given up elsewhere") from error
            cancelled = isinstance(error, CancelledError | KeyboardInterrupt) or (
                # A child that was ended makes its parent fail: that is the cancel, too.
                heartbeat.should_cancel() and isinstance(error, Exception)
            )
            finish(store, record, JobState.CANCELLED if cancelled else JobState.FAILED, error)
            if cancelled and not isinstance(error, CancelledError):
                raise CancelledError(states.stopped_words(job)) from error
            raise
        heartbeat.stop()
        if heartbeat.taken_over:
            raise JobError(f"job {job} was taken over or given up elsewhere")
        finish(store, record, JobState.DONE, None)
        return result


def _claim(store: Store, job: str, attempt: int) -> JobRecord:
    """Enter this process as the worker of a queued job."""
    claimed = store.change_job(
        job,
        expected=[JobState.QUEUED],
        attempt=attempt,
        pid=os.getpid(),
        process_created_s=creation_time_s(os.getpid()),
        host=this_host(),
        heartbeat_s=time.time(),
    )
    record = store.job(job)
    if not claimed:
        if record.state is JobState.CANCELLING and record.attempt == attempt:
            finish(store, record, JobState.CANCELLED, None)
            raise CancelledError(f"job {job} was cancelled before it started")
        raise JobError(f"job {job} is {record.state} (attempt {record.attempt}), not queued")
    return record


def _wait_for_resources(
    store: Store,
    record: JobRecord,
    heartbeat: Heartbeat,
    progress: Callable[[Progress], None],
) -> None:
    """Wait until the job holds all its resources alone."""
    told: tuple[str, ...] = ()
    while True:
        blocking = store.take_leases(record.id, attempt=record.attempt)
        if heartbeat.should_cancel() or blocking is None:
            raise CancelledError(f"job {record.id} was cancelled while it was waiting")
        if not blocking:
            return
        if blocking != told:
            told = blocking
            message = f"waiting for {', '.join(record.resources)}, used by {', '.join(blocking)}"
            _LOGGER.info("job %s is %s", record.id, message)
            progress(Progress(phase=Phase.WAITING, message=message))
        reap(store)
        heartbeat.wait_cancel(_QUEUE_POLL_S)


def finish(store: Store, record: JobRecord, state: JobState, error: BaseException | None) -> None:
    """Set the final state of a job and of its study, if the attempt still has the right to."""
    failed = error if state is JobState.FAILED else None
    message = one_line(failed) if failed is not None else None
    with store.transaction():
        changed = store.change_job(
            record.id,
            expected=states.ACTIVE,
            state=state,
            attempt=record.attempt,
            error=message,
            traceback="".join(traceback.format_exception(failed)) if failed is not None else None,
            finished_at=now(),
        )
        if changed:
            _set_study(store, record, _STUDY_STATES[state], message)
    if changed:
        _LOGGER.info("job %s is %s", record.id, state.value)


def _set_study(
    store: Store, record: JobRecord, state: StudyState, error: str | None = None
) -> None:
    if record.study is not None:
        store.set_study_state(record.study, state, error=error)


def one_line(error: BaseException) -> str:
    """An error in one line: our own messages as they are, others with their kind."""
    text = " ".join(str(error).split())
    return text if isinstance(error, KareusError) else f"{type(error).__name__}: {text}"


@contextmanager
def _marked(job: str) -> Iterator[None]:
    """Let the processes started meanwhile carry the job's id."""
    before = os.environ.get(JOB_VARIABLE)
    os.environ[JOB_VARIABLE] = job
    try:
        yield
    finally:
        if before is None:
            del os.environ[JOB_VARIABLE]
        else:
            os.environ[JOB_VARIABLE] = before


@contextmanager
def _signals(cancel: Callable[[], None]) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into a request to stop; a second one acts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, _frame: FrameType | None) -> None:
        cancel()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
