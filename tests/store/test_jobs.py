import pytest

from kareus.errors import JobError, NotFoundError, StoreError
from kareus.store import JobState, PartitionProgress, Phase, Progress, Store

PROGRESS = Progress(
    phase=Phase.MEASURING,
    done=3,
    planned=24,
    partitions=(
        PartitionProgress(
            name="fwd_attn", done=3, planned=24, hypervolume=(0.5, 0.75), seconds_left=12.5
        ),
    ),
)


def test_a_job_is_kept_as_given(store: Store, study: str) -> None:
    job = store.create_job(
        "study", study=study, request={"seed": 3}, resources=["gpu:1", "gpu:0", "gpu:1"]
    )
    assert store.job(job.id) == job
    assert (job.kind, job.study, job.request) == ("study", study, {"seed": 3})
    assert (job.state, job.attempt, job.resources) == (JobState.QUEUED, 1, ("gpu:0", "gpu:1"))
    assert (job.pid, job.progress, job.heartbeat_s) == (None, None, None)


def test_the_list_is_newest_first_and_can_be_narrowed(store: Store, study: str) -> None:
    one, two = store.create_job("a").id, store.create_job("b", study=study).id
    store.change_job(one, expected=[JobState.QUEUED], state=JobState.CANCELLED)
    assert [job.id for job in store.jobs()] == [two, one]
    assert [job.id for job in store.jobs(active=True)] == [two]
    assert [job.id for job in store.jobs(study=study)] == [two]


def test_a_study_has_one_unfinished_job_at_most(store: Store, study: str) -> None:
    first = store.create_job("study", study=study).id
    with pytest.raises(JobError, match=f"worked on by job {first}"):
        store.create_job("study", study=study)
    store.change_job(first, expected=[JobState.QUEUED], state=JobState.FAILED)
    assert store.create_job("study", study=study).id != first


def test_a_change_needs_the_expected_state_and_attempt(store: Store) -> None:
    job = store.create_job("a").id
    assert not store.change_job(job, expected=[JobState.RUNNING], state=JobState.DONE)
    assert not store.change_job(job, expected=[JobState.QUEUED], attempt=2, state=JobState.RUNNING)
    assert store.change_job(job, expected=[JobState.QUEUED], attempt=1, state=JobState.RUNNING)
    assert not store.change_job(job, expected=[JobState.QUEUED], state=JobState.RUNNING)
    assert store.job(job).state is JobState.RUNNING


def test_a_beat_tells_the_state_and_keeps_progress(store: Store) -> None:
    job = store.create_job("a").id
    assert store.beat(job, attempt=1, heartbeat_s=5.0, progress=PROGRESS) is JobState.QUEUED
    store.change_job(job, expected=[JobState.QUEUED], state=JobState.CANCELLING)
    assert store.beat(job, attempt=1, heartbeat_s=6.0) is JobState.CANCELLING
    assert (store.job(job).heartbeat_s, store.job(job).progress) == (6.0, PROGRESS)


def test_a_worker_that_lost_its_job_is_told(store: Store) -> None:
    job = store.create_job("a").id
    assert store.beat(job, attempt=2, heartbeat_s=5.0) is None
    store.change_job(job, expected=[JobState.QUEUED], state=JobState.INTERRUPTED)
    assert store.beat(job, attempt=1, heartbeat_s=5.0) is None
    assert store.job(job).heartbeat_s is None
    assert store.beat("unknown", attempt=1, heartbeat_s=5.0) is None


def test_a_resource_is_held_by_one_job_in_order_of_submission(store: Store) -> None:
    first = store.create_job("a", resources=["gpu:0", "gpu:1"]).id
    second = store.create_job("a", resources=["gpu:1"]).id
    other = store.create_job("a", resources=["gpu:2"]).id
    free = store.create_job("a").id
    assert store.take_leases(second, attempt=1) == (first,)
    assert store.take_leases(first, attempt=1) == ()
    assert store.take_leases(other, attempt=1) == ()
    assert store.take_leases(free, attempt=1) == ()
    assert store.leases() == {"gpu:0": first, "gpu:1": first, "gpu:2": other}
    store.change_job(first, expected=[JobState.QUEUED], state=JobState.RUNNING)
    assert store.take_leases(second, attempt=1) == (first,)
    store.change_job(first, expected=[JobState.RUNNING], state=JobState.DONE)
    assert store.take_leases(second, attempt=1) == ()
    assert store.leases() == {"gpu:1": second, "gpu:2": other}


def test_half_of_the_resources_is_never_taken(store: Store) -> None:
    holder = store.create_job("a", resources=["gpu:1"]).id
    store.take_leases(holder, attempt=1)
    store.change_job(holder, expected=[JobState.QUEUED], state=JobState.RUNNING)
    both = store.create_job("a", resources=["gpu:0", "gpu:1"]).id
    assert store.take_leases(both, attempt=1) == (holder,)
    assert store.leases() == {"gpu:1": holder}


def test_a_job_that_is_not_queued_takes_nothing(store: Store) -> None:
    job = store.create_job("a", resources=["gpu:0"]).id
    assert store.take_leases(job, attempt=2) is None
    store.change_job(job, expected=[JobState.QUEUED], state=JobState.CANCELLED)
    assert store.take_leases(job, attempt=1) is None
    assert store.leases() == {}


def test_unknown_jobs_are_refused(store: Store) -> None:
    with pytest.raises(NotFoundError, match="there is no job 'x'"):
        store.job("x")


def test_a_request_that_is_no_json_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="JSON"):
        store.create_job("a", request={"x": float("nan")})
    assert store.jobs() == ()
