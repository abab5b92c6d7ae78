"""Which changes of a job's state are legal.

queued -> running -> done | failed
queued | running -> cancelling -> cancelled       (asked to stop)
queued | running -> interrupted                   (its worker is gone)
interrupted | failed | cancelled -> queued        (resumed, as the next attempt)
"""

from collections.abc import Mapping

from kareus.errors import JobError
from kareus.store import JobRecord, JobState, Store

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {JobState.RUNNING, JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED}
        | {JobState.INTERRUPTED}
    ),
    JobState.RUNNING: frozenset(
        {JobState.DONE, JobState.FAILED, JobState.CANCELLING, JobState.INTERRUPTED}
    ),
    # It may end by itself before it notices that it should stop.
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.DONE, JobState.FAILED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.INTERRUPTED: frozenset({JobState.QUEUED}),
    JobState.DONE: frozenset(),
}
ACTIVE = frozenset({JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING})
FINAL = frozenset(JobState) - ACTIVE
RESUMABLE = frozenset(old for old, new in TRANSITIONS.items() if old in FINAL and new)


def stopped_words(job: str) -> str:
    """Return what is said of a job that was cancelled or interrupted, with how to go on."""
    return f"job {job} was asked to stop; what it stored is kept: kareus jobs resume {job} goes on"


def sources(state: JobState) -> frozenset[JobState]:
    """Return the states from which a state may be reached."""
    return frozenset(old for old, new in TRANSITIONS.items() if state in new)


def change(
    store: Store,
    job: str,
    state: JobState,
    *,
    attempt: int | None = None,
    **columns: object,
) -> JobRecord:
    """Bring a job into a state, if that is legal from the one it is in.

    Args:
        store: Where the job is kept.
        job: The job's id.
        state: The new state.
        attempt: Only if this is the current attempt; None for any.
        columns: Further columns to set with it.

    Returns:
        The job afterwards.

    Raises:
        JobError: The change is not legal, or another attempt took over.
        NotFoundError: There is no such job.
    """
    if store.change_job(job, expected=sources(state), state=state, attempt=attempt, **columns):
        return store.job(job)
    present = store.job(job)
    if attempt is not None and present.attempt != attempt:
        raise JobError(f"job {job} was taken over by attempt {present.attempt}")
    raise JobError(f"job {job} is {present.state} and cannot become {state}")
