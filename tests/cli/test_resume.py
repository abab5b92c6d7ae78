"""A study killed in the middle goes on: nothing repeated, nothing lost, the same frontier."""

import os
import signal
import time
from pathlib import Path

import pytest

from kareus.core.plan import Method
from kareus.store import Store
from tests.cli.conftest import WORKLOAD, Run

OPTIONS = (*WORKLOAD, "--budget", "fast", "--seed", "7", "--json")


@pytest.mark.slow
def test_sigkill_and_resume_end_like_an_undisturbed_study(tmp_path: Path, run: Run) -> None:
    undisturbed = run("optimize", *OPTIONS, "--db", tmp_path / "whole.db").json
    database = tmp_path / "broken.db"
    started = run("optimize", *OPTIONS, "--detach", "--db", database).json
    assert set(started) == {"job", "study"}

    before = _wait_for_measurements(run, database, started["job"], at_least=150)
    os.kill(before["pid"], signal.SIGKILL)
    killed = _wait_for_state(run, database, started["job"], {"interrupted", "failed"})
    assert 150 <= killed["measurements"] < undisturbed["measurements"]
    store = Store(database)
    stored_before = store.measurement_rows(started["study"])

    outcome = run("jobs", "resume", started["job"], "--wait", "--db", database, "--json")
    assert outcome.json["state"] == "done"
    stored_after = store.measurement_rows(started["study"])
    assert stored_after[: len(stored_before)] == stored_before

    whole = Store(tmp_path / "whole.db")
    assert [_value(row) for row in stored_after] == [
        _value(row) for row in whole.measurement_rows(undisturbed["study"])
    ]
    for method in Method:
        assert store.load_frontier(started["study"], method) == whole.load_frontier(
            undisturbed["study"], method
        )
    assert (
        run("compare", started["study"], "--db", database, "--json").json
        == (undisturbed["compare"])
    )


def test_cancel_keeps_what_was_measured_and_can_be_resumed(tmp_path: Path, run: Run) -> None:
    database = tmp_path / "kareus.db"
    started = run("optimize", *OPTIONS, "--detach", "--db", database).json
    _wait_for_measurements(run, database, started["job"], at_least=50)
    assert run("jobs", "cancel", started["job"], "--db", database).code == 0
    cancelled = _wait_for_state(run, database, started["job"], {"cancelled"})
    assert cancelled["measurements"] >= 50
    outcome = run("jobs", "resume", started["job"], "--wait", "--db", database, "--json")
    assert outcome.json["state"] == "done"
    assert run("jobs", "logs", started["job"], "--db", database).out


def _value(row: dict[str, object]) -> dict[str, object]:
    """A measurement without when it was made."""
    return {key: value for key, value in row.items() if key != "measured_at"}


def _job(run: Run, database: Path, job: str) -> dict[str, object]:
    return next(
        one for one in run("jobs", "list", "--json", "--db", database).json if one["job"] == job
    )


def _wait_for_measurements(
    run: Run, database: Path, job: str, *, at_least: int
) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = _job(run, database, job)
        if found["measurements"] >= at_least:
            return found
        assert found["state"] in {"queued", "running"}, found
        time.sleep(0.02)
    raise AssertionError(f"job {job} did not reach {at_least} measurements")


def _wait_for_state(run: Run, database: Path, job: str, states: set[str]) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = _job(run, database, job)
        if found["state"] in states:
            return found
        time.sleep(0.1)
    raise AssertionError(f"job {job} is {found['state']}, not one of {states}")
