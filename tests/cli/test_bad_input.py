"""Bad input on the command line: one line on standard error, exit code 2, nothing stored."""

import json
from pathlib import Path

import pytest

from kareus.profiling.replay import write_recorded
from kareus.service import Service, StudyRequest
from kareus.simulate.source import SimulatorSource
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.partitions import build_partitions
from tests.cli.conftest import Outcome, Run

TINY = ("--model", "tiny", "--microbatch-size", "2", "--seq-len", "128", "--num-microbatches", "4")
SETTINGS = WorkloadSettings(
    model="tiny", gpu="A100-SXM4-40GB", microbatch_size=2, seq_len=128, num_microbatches=4
)
FOLDER = Path("tiny") / "cp1-tp1-bs2-seq128"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Complete recorded measurements of the tiny workload."""
    workload = build_workload(SETTINGS)
    source = SimulatorSource(workload, seed=0)
    results = [
        result
        for partition in build_partitions(workload).values()
        for result in source.measure(partition, partition.baseline_configurations())
    ]
    write_recorded(tmp_path / "recorded", results, workload=workload)
    return tmp_path / "recorded"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database with one finished tiny study, and its id."""
    database = tmp_path_factory.mktemp("planned") / "kareus.db"
    result = Service(database).run(StudyRequest(settings=SETTINGS, budget="fast"))
    return database, result.study


def refused(outcome: Outcome, *words: str) -> None:
    """Check that a command was refused in one line with these words, and printed nothing else."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert len(outcome.err.splitlines()) == 1, outcome.err
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seed", "99999999999999999999999"), ("seed", "at most")),
        (("--plans", "100000"), ("100000 plans", "at most")),
        (("--measurements", "."), ("--measurements", "--source replay")),
        (("--source", "replay", "--measurements", "nowhere"), ("nowhere",)),
        (
            ("--source", "replay", "--measurements", ".", "--calibration", "c.json"),
            ("--calibration", "simulator"),
        ),
        # A warning (microbatches below stages) does not stand before the refusal.
        (("--tp", "2", "--pp", "4", "--num-microbatches", "1", "--budget", "1"), ("budget",)),
    ],
)
def test_a_refused_study_leaves_one_line_and_no_study(
    tmp_path: Path, run: Run, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    database = tmp_path / "kareus.db"
    refused(run("optimize", *TINY, *options, "--db", database, "--json"), *words)
    assert run("studies", "--db", database, "--json").json == []
    assert run("jobs", "list", "--db", database, "--json").json == []


def test_records_that_lack_a_partition_leave_no_study(
    tmp_path: Path, recorded: Path, run: Run
) -> None:
    database = tmp_path / "kareus.db"
    (recorded / FOLDER / "fwd_mlp" / "eval_results.jsonl").unlink()
    replay = ("optimize", *TINY, "--source", "replay", "--measurements", recorded)
    refused(run(*replay, "--db", database, "--json"), "fwd_mlp")
    assert run("studies", "--db", database, "--json").json == []
    assert run("jobs", "list", "--db", database, "--json").json == []


def test_refused_rows_of_replayed_records_are_told(
    tmp_path: Path, recorded: Path, run: Run
) -> None:
    file = recorded / FOLDER / "fwd_mlp" / "eval_results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[0]["time_s"] *= -1
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    database = tmp_path / "kareus.db"
    outcome = run(
        "optimize", *TINY, "--source", "replay", "--measurements", recorded, "--db", database,
        "--json",
    )  # fmt: skip
    assert outcome.code == 0
    assert "1 rows" in outcome.err
    assert "time_s" in outcome.err
    notes = run("show", outcome.json["study"], "--db", database, "--json").json["notes"]
    assert any("eval_results.jsonl:1" in note for note in notes)


def test_files_of_a_request_are_kept_by_their_whole_path(
    tmp_path: Path, recorded: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "kareus.db"
    study = run(
        "optimize", *TINY, "--source", "replay", "--measurements", "recorded", "--db", database,
        "--json",
    ).json["study"]  # fmt: skip
    request = run("show", study, "--db", database, "--json").json["request"]
    assert request["measurements"] == str(recorded.resolve())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("deadline", "power cap")),
        (("--deadline", "nan"), ("deadline", "positive")),
        (("--power-cap", "inf"), ("power cap", "positive")),
        (("--straggler", "0:nan"), ("straggler", "finite")),
        (("--clocks", "5:900"), ("stage 5",)),
        (("--clock-floor", "1000,1200"), ("1000,1200", "one clock")),
    ],
)
def test_senseless_constraints_are_refused_before_anything_is_stored(
    planned: tuple[Path, str], run: Run, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    database, study = planned
    refused(run("replan", study, *options, "--db", database, "--json"), *words)
    assert [one["study"] for one in run("studies", "--db", database, "--json").json] == [study]


def test_an_impossible_deadline_leaves_neither_study_nor_job(
    planned: tuple[Path, str], run: Run
) -> None:
    database, study = planned
    before = run("jobs", "list", "--db", database, "--json").json
    refused(run("replan", study, "--deadline", "1e-6", "--db", database, "--json"), "deadline")
    assert run("jobs", "list", "--db", database, "--json").json == before


def test_options_of_jobs_hold_for_its_commands(planned: tuple[Path, str], run: Run) -> None:
    database, study = planned
    plain = run("jobs", "list", "--db", database, "--json").json
    assert [job["study"] for job in plain] == [study]
    assert run("jobs", "--db", database, "--json", "list").json == plain
    assert run("jobs", "--db", database, "list", "--json").json == plain
    assert run("jobs", "--json", "list", "--db", database).json == plain


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--cps", "0"), "context-parallel degree = 0"),
        (("--cps", "-2"), "context-parallel degree = -2"),
        (("--microbatch-sizes", "0"), "microbatch size = 0"),
        (("--seed", "99999999999999999999"), "seed"),
    ],
)
def test_explorations_of_impossible_layouts_are_refused(
    tmp_path: Path, run: Run, options: tuple[str, ...], word: str
) -> None:
    database = tmp_path / "kareus.db"
    refused(run("explore", "tiny", "--gpus", "2", *options, "--db", database), word)
    assert run("explore", "--list", "--db", database, "--json").json == []


def test_what_is_no_database_is_bad_input(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to be taken for one" * 100)
    refused(run("studies", "--db", file, "--json"), "notes.txt", "not a database")
    assert file.read_text().startswith("not a database")


@pytest.mark.parametrize("command", ["show", "compare", "export", "replan", "frontier"])
def test_a_mistyped_database_is_refused_and_not_made(
    run: Run, tmp_path: Path, command: str
) -> None:
    database = tmp_path / "mistyped.db"
    refused(run(command, "some-study", "--db", database), str(database))
    assert not database.exists()
