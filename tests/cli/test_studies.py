import itertools
import re
import zipfile
from pathlib import Path

import pytest

from kareus.core.plan import Method
from kareus.schedule.bundle import read_bundle
from tests.cli.conftest import WORKLOAD, Run


def test_optimize_prints_one_document_that_names_a_stored_study(tmp_path: Path, run: Run) -> None:
    database = tmp_path / "kareus.db"
    outcome = run(
        "optimize", "--db", database, "--model", "tiny", "--tp", "2", "--pp", "2",
        "--microbatch-size", "2", "--seq-len", "128", "--num-microbatches", "4",
        "--budget", "fast", "--name", "trial", "--json",
    )  # fmt: skip
    assert outcome.code == 0
    document = outcome.json
    assert set(document) == {"study", "seconds", "measurements", "compare"}
    assert " " not in document["study"]
    shown = run("show", document["study"], "--db", database, "--json").json
    assert shown["name"] == "trial"
    assert shown["measurements"] == document["measurements"]
    assert run("compare", "trial", "--db", database, "--json").json == document["compare"]


def test_kareus_beats_perseus_on_the_reference_workload(
    studied: tuple[Path, str], run: Run
) -> None:
    database, study = studied
    figures = run("compare", study, "--db", database, "--json").json
    assert figures["iso_time_energy_reduction_pct"]["kareus"] > 5
    assert figures["iso_energy_time_reduction_pct"]["kareus"] > 5
    assert figures["max_throughput"]["kareus"]["time_reduction_pct"] > 5
    volumes = figures["hypervolume"]
    assert volumes["kareus"] > volumes["nanobatching-perseus"] > volumes["megatron"]


def test_frontier_is_fastest_first_and_consistent(studied: tuple[Path, str], run: Run) -> None:
    database, study = studied
    document = run("frontier", study, "--method", "KAREUS", "--db", database, "--json").json
    plans = document["plans"]
    assert document["method"] == "kareus"
    assert len(plans) >= 30
    for faster, slower in itertools.pairwise(plans):
        assert faster["iteration_time_s"] < slower["iteration_time_s"]
        assert faster["pipeline_energy_j"] > slower["pipeline_energy_j"]
    for plan in plans:
        static_j = 2 * 85.0 * plan["iteration_time_s"]
        assert plan["pipeline_energy_j"] == pytest.approx(plan["effective_energy_j"] + static_j)
        assert plan["job_energy_j"] == pytest.approx(8 * plan["pipeline_energy_j"])
        assert plan["average_power_w"] == pytest.approx(
            plan["job_energy_j"] / plan["iteration_time_s"]
        )


def test_kareus_is_never_worse_than_a_baseline_plan(studied: tuple[Path, str], run: Run) -> None:
    database, study = studied
    ours = run("frontier", study, "--db", database, "--json").json["plans"]
    for method in ("megatron", "perseus", "nanobatching_perseus"):
        for baseline in run("frontier", study, "--method", method, "--db", database, "--json").json[
            "plans"
        ]:
            within = [
                plan["pipeline_energy_j"]
                for plan in ours
                if plan["iteration_time_s"] <= baseline["iteration_time_s"] * (1 + 1e-9)
            ]
            assert min(within) <= baseline["pipeline_energy_j"] * (1 + 1e-9)


@pytest.mark.parametrize("name", ["schedule", "schedule.zip"])
def test_export_writes_a_bundle_that_reads_back(
    studied: tuple[Path, str], run: Run, tmp_path: Path, name: str
) -> None:
    database, study = studied
    out = tmp_path / name
    outcome = run("export", study, "--max-throughput", "--out", out, "--db", database, "--json")
    assert outcome.code == 0
    schedule = read_bundle(out)
    assert schedule.method is Method.KAREUS
    assert schedule.prediction.iteration_time_s == outcome.json["iteration_time_s"]
    names = (
        zipfile.ZipFile(out).namelist()
        if name.endswith(".zip")
        else [p.name for p in out.iterdir()]
    )
    number = f"{outcome.json['plan']:05d}"
    assert {
        "schedule.json", f"freqs_pipeline_{number}.py", f"scheds_pipeline_{number}.py",
        "launch.sh", "launch.sbatch", "timeline.json", "README.md",
    } <= set(names)  # fmt: skip


@pytest.mark.parametrize(
    ("selector", "check"),
    [
        (("--deadline", "{slowest}"), "most frugal"),
        (("--energy-budget", "{most}"), "fastest"),
        (("--min-energy",), "most frugal"),
        (("--plan", "0"), "fastest"),
    ],
)
def test_every_way_of_choosing_a_plan(
    studied: tuple[Path, str], run: Run, tmp_path: Path, selector: tuple[str, ...], check: str
) -> None:
    database, study = studied
    plans = run("frontier", study, "--db", database, "--json").json["plans"]
    values = {
        "slowest": plans[-1]["iteration_time_s"] + 1,
        "most": plans[0]["pipeline_energy_j"] + 1,
    }
    arguments = [part.format(**values) for part in selector]
    outcome = run("export", study, *arguments, "--out", tmp_path / "b", "--db", database, "--json")
    expected = plans[-1] if check == "most frugal" else plans[0]
    assert outcome.json["plan"] == expected["plan"]


BAD_INPUT = {
    "unknown model": (("optimize", "--model", "llama9"), "llama9"),
    "unknown GPU": (("optimize", "--model", "tiny", "--gpu", "B9000"), "B9000"),
    "impossible parallelism": (("optimize", *WORKLOAD, "--tp", "5"), "--tp 5"),
    "odd microbatch": (("optimize", *WORKLOAD, "--microbatch-size", "3"), "3 is odd"),
    "no microbatch": (("optimize", *WORKLOAD, "--num-microbatches", "0"), "--num-microbatches 0"),
    "layers that do not add up": (("optimize", *WORKLOAD, "--stage-layers", "9,9"), "28 layers"),
    "layers that are no list": (("optimize", *WORKLOAD, "--stage-layers", "a,b"), "a,b"),
    "unknown budget": (("optimize", *WORKLOAD, "--budget", "lots"), "lots"),
    "budget below the designs": (("optimize", *WORKLOAD, "--budget", "3"), "budget of 3"),
    "negative seed": (("optimize", *WORKLOAD, "--seed", "-1"), "seed -1"),
    "impossible temperature": (("optimize", *WORKLOAD, "--temperature", "500"), "500"),
    "chunks without an order": (("optimize", *WORKLOAD, "--chunks", "2"), "num_chunks = 2"),
    "replay of nothing": (("optimize", *WORKLOAD, "--source", "replay"), "--measurements"),
    "endless budget": (("optimize", *WORKLOAD, "--budget", "9" * 5000), "at most 12 digits"),
    "layers of chunks": (
        (
            "optimize",
            *WORKLOAD,
            "--order",
            "interleaved-1f1b",
            "--chunks",
            "2",
        ),
        "--stage-layers",
    ),
    "unknown study": (("show", "nope"), "nope"),
    "unknown method": (("frontier", "x", "--method", "magic"), "magic"),
    "unknown option": (("optimize", "--modell", "tiny"), "--modell"),
    "unknown job": (("jobs", "cancel", "nope"), "nope"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_exit_2_and_stores_nothing(
    case: str, run: Run, tmp_path: Path
) -> None:
    arguments, named = BAD_INPUT[case]
    database = tmp_path / "kareus.db"
    assert run("studies", "--db", database, "--json").json == []
    outcome = run(*arguments, "--db", database)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert named in outcome.err
    listed = run("studies", "--db", database, "--json")
    assert listed.json == []


def test_bounds_out_of_reach_name_the_nearest_value(
    studied: tuple[Path, str], run: Run, tmp_path: Path
) -> None:
    database, study = studied
    plans = run("frontier", study, "--db", database, "--json").json["plans"]
    too_early = run(
        "export", study, "--deadline", "0.01", "--out", tmp_path / "b", "--db", database
    )
    assert too_early.code == 2
    offered = re.search(r"takes (\S+) s", too_early.err)
    assert offered
    outcome = run(
        "export", study, "--deadline", offered[1], "--out", tmp_path / "a", "--db", database,
        "--json",
    )  # fmt: skip
    assert outcome.json["plan"] == plans[0]["plan"]
    too_little = run(
        "export", study, "--energy-budget", "1", "--out", tmp_path / "b", "--db", database
    )
    assert too_little.code == 2
    offered = re.search(r"needs (\S+) J", too_little.err)
    assert offered
    assert float(offered[1]) == pytest.approx(plans[-1]["pipeline_energy_j"], rel=1e-4)
    two_ways = run(
        "export", study, "--plan", "0", "--knee", "--out", tmp_path / "b", "--db", database
    )
    assert two_ways.code == 2
    assert not (tmp_path / "b").exists()


def test_every_command_has_help_and_it_names_units(run: Run) -> None:
    outcome = run("optimize", "--help")
    assert outcome.code == 0
    for command in ("optimize", "studies", "show", "frontier", "compare", "export", "import",
                    "validate", "jobs", "doctor", "calibrate"):  # fmt: skip
        assert run(command, "--help").code == 0
    assert "(s)" in run("export", "--help").out
    assert "(J)" in run("export", "--help").out


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        (("--straggler", "0:1e9"), "0 to 1000"),
        (("--deadline", "1e18"), "longer than any iteration"),
        (("--clocks", "0:900", "--clocks", "0:1200"), "stage 0 has 900 already"),
    ],
)
def test_constraints_that_make_no_sense_are_refused(
    studied: tuple[Path, str], run: Run, constraints: tuple[str, ...], words: str
) -> None:
    database, study = studied
    outcome = run("replan", study, *constraints, "--db", database)
    assert outcome.code == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_cap_beyond_the_most_frugal_time_is_met_with_one_clock_too(
    studied: tuple[Path, str], run: Run
) -> None:
    database, study = studied
    options = ("--power-cap", "2800", "--max-clocks", "1")
    planned = run("replan", study, *options, "--db", database, "--json").json["study"]
    plans = run("frontier", planned, "--db", database, "--json").json["plans"]
    assert plans
    for plan in plans:
        assert plan["average_power_w"] <= 2800 * (1 + 1e-9)
    notes = run("show", planned, "--db", database, "--json").json["notes"]
    assert any(note.startswith("megatron is left out") for note in notes)
    again = run("replan", planned, "--deadline", "50", "--db", database)
    assert again.code == 2
    assert "planned under constraints already" in again.err
