"""Which process is to blame, and what is said about it."""

import json

import pytest

from kareus.errors import JobError
from kareus.train.failures import WorkerFailure, failed_run, read_failures
from kareus.train.log import LogWriter, RankInfo
from kareus.train.settings import TrainingSettings
from tests.train.test_track import make_log


@pytest.fixture
def settings(tmp_path):
    return TrainingSettings(bundle=tmp_path, log=tmp_path / "log", device="cpu")


def write_log(folder, rank, reason=None, num_steps=0, peer=False):
    writer = LogWriter(folder, rank)
    info: RankInfo = make_log(rank).info
    writer.start(info)
    for record in make_log(rank, num_steps=num_steps).steps:
        writer.step(record)
    if reason is not None:
        writer.failed(reason, peer=peer)
    writer.close()


def test_the_killed_one_is_named_not_those_who_lost_it(settings):
    write_log(settings.log, 0, "the all-reduce failed", peer=True)
    write_log(settings.log, 2, num_steps=3)
    failures = [WorkerFailure(rank=0, exit_code=1), WorkerFailure(rank=2, exit_code=-9)]
    error = failed_run(1, failures, settings)
    assert isinstance(error, JobError)
    assert str(error).startswith("rank 2 (stage 1) was killed by SIGKILL")
    assert "after step 3: the job was ended; start again" in str(error)


def test_a_reason_of_its_own_goes_before_a_lost_peer(settings):
    write_log(settings.log, 0, "Connection closed by peer", peer=True)
    write_log(settings.log, 1, "token 70 is not of the vocabulary")
    failures = [WorkerFailure(rank=rank, exit_code=1) for rank in (0, 1)]
    message = str(failed_run(1, failures, settings))
    assert message.startswith("rank 1 (stage 0) failed: token 70 is not of the vocabulary")
    assert "before its first step" in message


def test_one_that_said_nothing_is_named_with_its_status(settings):
    message = str(failed_run(1, [WorkerFailure(rank=3, exit_code=17)], settings))
    assert message.startswith("rank 3 failed with status 17 (see its messages above)")
    message = str(failed_run(1, [WorkerFailure(rank=3, exit_code=-11)], settings))
    assert "was killed by SIGSEGV" in message


def test_where_to_resume_from_is_said(tmp_path, settings):
    folder = tmp_path / "checkpoints" / "step-00000040"
    folder.mkdir(parents=True)
    (folder / ".metadata").touch()
    settings = TrainingSettings(
        bundle=tmp_path, log=settings.log, device="cpu", checkpoint_dir=folder.parent
    )
    message = str(failed_run(1, [WorkerFailure(rank=0, exit_code=-9)], settings))
    assert "continue after step 40 with --resume" in message


def test_a_job_ended_from_outside_blames_nobody(settings):
    assert "was ended from outside (status 143)" in str(failed_run(143, [], settings))


def test_failures_are_read_back_and_damage_is_no_failure(tmp_path):
    path = tmp_path / "failures.json"
    assert read_failures(path) == []
    path.write_text(json.dumps([{"rank": 1, "pid": 5, "exit_code": -9}]))
    assert read_failures(path) == [WorkerFailure(rank=1, exit_code=-9)]
    path.write_text("[{")
    assert read_failures(path) == []
