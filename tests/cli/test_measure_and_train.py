"""From a profile to a refusal, and from a study to a trained model, through the command line."""

import json
from pathlib import Path

import pytest

from kareus.schedule.bundle import read_bundle
from kareus.service import Service
from tests.cli.conftest import Run
from tests.service.training_log import write_log

TINY = (
    "--model", "tiny", "--tp", "2", "--pp", "2", "--microbatch-size", "2", "--seq-len", "32",
    "--num-microbatches", "2",
)  # fmt: skip


@pytest.mark.slow
def test_a_profile_is_imported_and_without_energy_makes_no_study(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAREUS_WARMUP_S", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    database = tmp_path / "kareus.db"
    profiled = run(
        "profile", *TINY, "--partition", "fwd_attn", "--partition", "bwd_mlp", "--device", "cpu",
        "--budget", "3", "--window", "0.05", "--cooldown", "0", "--out", tmp_path / "records",
        "--json",
    )  # fmt: skip
    assert profiled.code == 0, profiled.err
    partitions = profiled.json["partitions"]
    assert {name: found["measurements"] for name, found in partitions.items()} == {
        "fwd_attn": 3,
        "bwd_mlp": 3,
    }
    assert all("counter" not in str(found["energy_source"]) for found in partitions.values())
    records = list((tmp_path / "records").rglob("eval_results.jsonl"))
    rows = [json.loads(line) for path in records for line in path.read_text().splitlines()]
    assert len(rows) == 6
    assert all(row["time_s"] > 0 and row["energy_j"] is None for row in rows)

    imported = run("import", tmp_path / "records", *TINY, "--db", database, "--json")
    assert imported.code == 0, imported.err
    assert (imported.json["taken"], imported.json["refused"]) == (6, 0)
    refused = run(
        "optimize", *TINY, "--source", "replay", "--measurements", imported.json["dataset"],
        "--db", database,
    )  # fmt: skip
    assert refused.code == 2
    assert refused.err.count("\n") == 1


@pytest.mark.slow
def test_a_study_is_exported_launched_and_tracked(tmp_path: Path, run: Run) -> None:
    database = tmp_path / "kareus.db"
    study = run("optimize", *TINY, "--budget", "64", "--db", database, "--json").json["study"]
    bundle = tmp_path / "bundle.zip"
    assert run("export", study, "--max-throughput", "--out", bundle, "--db", database).code == 0
    launched = run(
        "launch", bundle, "--device", "cpu", "--steps", "4", "--log", tmp_path / "log", "--json",
        "--threads", "1",
    )  # fmt: skip
    assert launched.code == 0, launched.err
    document = launched.json
    assert document["steps"] == 4
    assert len(document["losses"]) == 4
    assert document["schedule_followed"] is True
    assert document["energy_j"] is None
    assert document["planned_time_s"] > 0
    tracked = run("track", bundle, tmp_path / "log", "--json")
    assert tracked.code == 0
    assert len(tracked.json["steps"]) == 4
    refused = run("track", bundle, tmp_path / "log", "--replan", "--db", database)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "trained on a CPU" in refused.err

    other = run("launch", bundle, "--device", "cpu", "--pp", "4")
    assert other.code == 2
    assert other.err.count("\n") == 1
    assert "4" in other.err


@pytest.mark.slow
def test_what_a_run_measured_is_planned_with(tmp_path: Path, run: Run) -> None:
    database = tmp_path / "kareus.db"
    study = run("optimize", *TINY, "--budget", "64", "--db", database, "--json").json["study"]
    bundle = tmp_path / "bundle.zip"
    assert run("export", study, "--max-throughput", "--out", bundle, "--db", database).code == 0
    log = write_log(tmp_path / "log", read_bundle(bundle), unit_s=0.0003)
    tracked = run("track", bundle, log, "--replan", "--db", database, "--json")
    assert tracked.code == 0, tracked.err
    again = tracked.json["replanned"]
    service = Service(database)
    assert service.wait_for_job(again["job"], timeout_s=120).state == "done"
    assert study in service.study(again["study"]).notes[-1]
