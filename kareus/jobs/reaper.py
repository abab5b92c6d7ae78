"""Finds jobs whose worker is gone, says so in the store, and ends what they left running."""

import logging
import threading
import time

from kareus.jobs import logs
from kareus.jobs.heartbeat import STALE_S
from kareus.jobs.processes import end_job_processes, this_host, worker_alive
from kareus.jobs.states import ACTIVE
from kareus.store import JobRecord, JobState, Store, StudyState
from kareus.store.records import now

_LOGGER = logging.getLogger(__name__)
_ORPHAN_GRACE_S = 3.0

# When this process first saw a living worker with a stale heartbeat: (job, heartbeat) -> monotonic
# seconds. A machine that wakes from sleep shows every heartbeat stale for a moment.
_suspects: dict[tuple[str, float], float] = {}
_suspects_lock = threading.Lock()


def reap(store: Store, *, stale_s: float = STALE_S) -> tuple[JobRecord, ...]:
    """Mark every unfinished job whose worker is gone.

    A worker is gone if its process (number and creation time) is, or, where this machine cannot
    look at it, if it gave no sign of life for `stale_s`. A living process of this machine whose
    heartbeat stands still is killed once it was seen so for `stale_s` by the same observer:
    frozen, it could wake up and disturb whoever has its GPU by then. A job that was being
    cancelled becomes cancelled, any other interrupted (a worker that never reported: failed). Its
    remaining processes on this machine are ended.

    Args:
        store: Where the jobs are kept.
        stale_s: Seconds without a sign of life.

    Returns:
        The jobs marked, as they are now.
    """
    marked = []
    for job in store.jobs(active=True):
        reason = _reason(job, stale_s)
        if reason is None:
            continue
        state = JobState.INTERRUPTED
        if job.state is JobState.CANCELLING:
            state = JobState.CANCELLED
        elif job.heartbeat_s is None and job.pid is not None:
            state = JobState.FAILED
        error = reason if state is not JobState.CANCELLED else None
        with store.transaction():
            changed = store.change_job(
                job.id,
                expected=[job.state],
                attempt=job.attempt,
                state=state,
                error=error,
                finished_at=now(),
            )
            if changed and job.study is not None:
                store.set_study_state(job.study, StudyState(state.value), error=error)
        if not changed:
            continue
        if job.host == this_host():
            end_job_processes(job.id, grace_s=_ORPHAN_GRACE_S)
        _LOGGER.info("job %s: %s", job.id, reason)
        marked.append(store.job(job.id))
    return tuple(marked)


def _reason(job: JobRecord, stale_s: float) -> str | None:
    """Why the job's worker counts as gone; None if it does not."""
    assert job.state in ACTIVE
    alive = worker_alive(job)
    last_s = job.heartbeat_s if job.heartbeat_s is not None else job.created_at.timestamp()
    silent_s = time.time() - last_s
    if alive is False:
        if job.heartbeat_s is None:
            return f"its worker (process {job.pid}) ended before it began{_last_words(job)}"
        return (
            f"its worker (process {job.pid}) ended without a word, killed or out of memory; "
            f"resume it with `kareus jobs resume {job.id}`"
        )
    if silent_s <= stale_s:
        return None
    if alive is None:
        place = f"on {job.host} " if job.host is not None else ""
        return f"its worker {place}gave no sign of life for {silent_s:.0f} s"
    with _suspects_lock:
        first_s = _suspects.setdefault((job.id, last_s), time.monotonic())
    if time.monotonic() - first_s < stale_s:
        return None
    return f"its worker (process {job.pid}) stood still for {silent_s:.0f} s and was ended"


def _last_words(job: JobRecord) -> str:
    """What stands last in the log, to explain a worker that never began."""
    lines = [line for line in logs.tail_of(job, num_lines=5) if line.strip()]
    return f": {lines[-1]}" if lines else "; its log is empty"
