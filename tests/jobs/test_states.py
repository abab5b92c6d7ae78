import itertools

import pytest

from kareus.errors import JobError
from kareus.jobs import states
from kareus.store import JobState, Store


def _job_in(store: Store, state: JobState) -> str:
    job = store.create_job("a").id
    store.change_job(job, expected=list(JobState), state=state)
    return job


@pytest.mark.parametrize(("old", "new"), list(itertools.product(JobState, JobState)))
def test_only_legal_changes_are_made(old: JobState, new: JobState) -> None:
    with Store.in_memory() as store:
        job = _job_in(store, old)
        if new in states.TRANSITIONS[old]:
            assert states.change(store, job, new).state is new
        else:
            with pytest.raises(JobError, match=f"is {old} and cannot become {new}"):
                states.change(store, job, new)
            assert store.job(job).state is old


def test_every_unfinished_job_can_end_and_done_is_the_end() -> None:
    assert states.TRANSITIONS[JobState.DONE] == frozenset()
    for state in states.ACTIVE:
        assert states.TRANSITIONS[state] & states.FINAL
    assert {JobState.CANCELLED, JobState.FAILED, JobState.INTERRUPTED} == states.RESUMABLE


def test_an_earlier_attempt_changes_nothing() -> None:
    with Store.in_memory() as store:
        job = _job_in(store, JobState.INTERRUPTED)
        states.change(store, job, JobState.QUEUED, attempt=1, new_attempt=2)
        with pytest.raises(JobError, match="taken over by attempt 2"):
            states.change(store, job, JobState.RUNNING, attempt=1)
