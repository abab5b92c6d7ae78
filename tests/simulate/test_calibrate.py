import csv
import dataclasses
from pathlib import Path

import pytest

from kareus.core.plan import Method
from kareus.errors import MeasurementError
from kareus.simulate.calibrate import CalibrationResult, calibrate
from kareus.simulate.calibration import (
    calibration_for,
    load_calibration,
    reference_gpu,
    save_calibration,
)
from kareus.simulate.parameters import SPECS, prior_parameters
from kareus.simulate.validate import load_replays, validate_frontiers
from tests.reference import reference_data

FRONTIERS = "published_frontiers.csv"
FREQUENCIES = "published_frequencies.csv"


def _subset(folder: Path, *, keep_every: int = 5, batches: tuple[str, ...] = ("8", "16")) -> Path:
    """A few plans of the two Qwen workloads without context parallelism."""
    for name in (FRONTIERS, FREQUENCIES):
        with reference_data(name).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if name == FRONTIERS:
            chosen = [
                row
                for row in rows
                if row["model"] == "qwen3_1.7b" and row["cp"] == "1" and row["method"] != "kareus"
                if row["microbatch_size"] in batches
            ][::keep_every]
            identities = {_identity(row) for row in chosen}
        else:
            chosen = [row for row in rows if _identity(row) in identities]
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(chosen)
    return folder


def _identity(row: dict[str, str]) -> tuple[str, ...]:
    names = ("model", "cp", "tp", "microbatch_size", "seq_len", "method", "plan")
    return tuple(row[name] for name in names)


def _calibrate(folder: Path, **settings: object) -> CalibrationResult:
    return calibrate(
        folder / FRONTIERS,
        folder / FREQUENCIES,
        gpu=reference_gpu(),
        max_evaluations=6,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def subset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _subset(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def result(subset: Path) -> CalibrationResult:
    return _calibrate(subset)


def test_a_few_plans_already_calibrate(result: CalibrationResult, subset: Path) -> None:
    assert result.fit["overall"]["perseus"]["time_mape_pct"] < 3.0
    assert result.fit["overall"]["nanobatching_perseus"]["energy_mape_pct"] < 3.0
    assert result.held_out is not None
    assert sum(row["plans"] for row in result.held_out["rows"]) == 8
    again = validate_frontiers(subset / FRONTIERS, subset / FREQUENCIES, result.calibration)
    assert again == result.fit
    assert [dataclasses.asdict(error) for error in result.calibration.fit_errors] == [
        {"method": method, **errors} for method, errors in result.fit["overall"].items()
    ]


def test_it_is_deterministic(result: CalibrationResult, subset: Path) -> None:
    assert _calibrate(subset).calibration == result.calibration


def test_what_the_data_cannot_tell_is_said(result: CalibrationResult) -> None:
    # Nothing here is context parallel, and there is no sweep.
    for name in ("cp_overlap_latency_s", "cp_sm_rate_bytes_s"):
        assert any(name in warning and "not determined" in warning for warning in result.warnings)
        assert result.calibration.table[name].value == pytest.approx(SPECS[name].prior, rel=1e-3)
    assert result.calibration.table["half_block_rate"].source.startswith("prior")
    assert result.calibration.table["gemm_efficiency"].source.startswith("fitted on")
    assert result.calibration.warnings == result.warnings
    assert result.sweep is None


def test_one_workload_has_nothing_to_hold_out(tmp_path: Path) -> None:
    only = _calibrate(_subset(tmp_path, batches=("8",)))
    assert only.held_out is None
    assert only.calibration.held_out_errors == ()


def test_the_result_is_a_file_the_simulator_loads(
    result: CalibrationResult, tmp_path: Path
) -> None:
    save_calibration(result.calibration, tmp_path / "mine.json")
    assert load_calibration(tmp_path / "mine.json") == result.calibration


def test_a_sweep_is_fitted_too(subset: Path) -> None:
    fitted = _calibrate(subset, sweep=reference_data("attention_sweep.csv"))
    assert fitted.sweep is not None
    assert fitted.sweep["time_mape_pct"] < 3.0
    assert fitted.calibration.table["half_block_rate"].source.startswith("fitted on")


def test_data_in_other_units_is_refused_by_row(subset: Path, tmp_path: Path) -> None:
    text = (subset / FRONTIERS).read_text(encoding="utf-8")
    with (subset / FRONTIERS).open(newline="", encoding="utf-8") as file:
        first = next(csv.DictReader(file))
    in_ms = str(float(first["iteration_time_s"]) * 1000)
    (tmp_path / FRONTIERS).write_text(
        text.replace(first["iteration_time_s"], in_ms, 1), encoding="utf-8"
    )
    with pytest.raises(MeasurementError, match=r"row 1: .* impossible"):
        calibrate(tmp_path / FRONTIERS, subset / FREQUENCIES, gpu=reference_gpu())


def test_calibration_moves_the_model_from_its_priors_to_the_data(subset: Path) -> None:
    gpu = reference_gpu()
    replays = load_replays(subset / FRONTIERS, subset / FREQUENCIES, gpu)
    sequential = next(replay for replay in replays if replay.method is Method.PERSEUS)
    errors = [
        abs(sequential.predict(p)[0] / sequential.recorded_time_s - 1).max()
        for p in (prior_parameters(), calibration_for(gpu).parameters)
    ]
    assert errors[1] < errors[0]
