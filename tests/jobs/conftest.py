"""A store in a file, and a manager that knows the tests' kinds of job."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kareus.core.measurement import SourceKind
from kareus.jobs import JobManager
from kareus.jobs.processes import end_job_processes
from kareus.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "kareus.db") as opened:
        yield opened


@pytest.fixture
def manager(store: Store) -> Iterator[JobManager]:
    manager = JobManager(store, kinds_module="tests.jobs.kinds")
    yield manager
    for job in store.jobs():
        end_job_processes(job.id, grace_s=0)


@pytest.fixture
def study(store: Store) -> str:
    return store.create_study("A study", request={}, source=SourceKind.SIMULATOR).id


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
