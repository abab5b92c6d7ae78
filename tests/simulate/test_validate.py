"""Accuracy against the published data; thresholds are the targets for held-out configurations."""

import csv
from pathlib import Path

import numpy as np
import pytest

from kareus.core.pipeline import one_f_one_b
from kareus.core.plan import Method
from kareus.errors import ConfigError, MeasurementError
from kareus.simulate.calibration import calibration_for, reference_gpu
from kareus.simulate.parameters import prior_parameters
from kareus.simulate.plan_replay import default_stage_layers, makespans_s
from kareus.simulate.validate import (
    load_replays,
    replay_frontiers,
    validate_frontiers,
    validate_sweep,
)
from tests.benchmarks.gains import gains, gains_table
from tests.reference import reference_data

FRONTIERS = "published_frontiers.csv"
FREQUENCIES = "published_frequencies.csv"
SWEEP = "attention_sweep.csv"


def test_published_plans_are_matched() -> None:
    table = validate_frontiers(reference_data(FRONTIERS), reference_data(FREQUENCIES))
    overall, ratio, rows = table["overall"], table["ratio"], table["rows"]
    assert overall["perseus"]["time_mape_pct"] < 1.5
    assert overall["perseus"]["energy_mape_pct"] < 1.5
    assert overall["nanobatching_perseus"]["time_mape_pct"] < 1.5
    assert overall["nanobatching_perseus"]["energy_mape_pct"] < 1.5
    assert ratio["time_err_pct"] < 1.2
    assert ratio["energy_err_pct"] < 1.0
    assert len(rows) == 10
    assert sum(row["plans"] for row in rows) == 100
    assert all(row["time_mape_pct"] < 2.5 and row["energy_mape_pct"] < 3.0 for row in rows)
    assert set(rows[0]) == {
        "model",
        "cp",
        "tp",
        "microbatch_size",
        "seq_len",
        "method",
        "plans",
        "time_mape_pct",
        "energy_mape_pct",
    }


def test_held_out_errors_of_the_shipped_calibration_meet_the_targets() -> None:
    errors = {e.method: e for e in calibration_for(reference_gpu()).held_out_errors}
    assert errors["perseus"].time_mape_pct < 2.2
    assert errors["perseus"].energy_mape_pct < 2.0
    assert errors["nanobatching_perseus"].time_mape_pct < 2.2
    assert errors["nanobatching_perseus"].energy_mape_pct < 2.0


def test_nanobatching_loses_where_it_lost() -> None:
    points = replay_frontiers(reference_data(FRONTIERS), reference_data(FREQUENCIES))
    fastest = {}
    for point in points:
        key = (point.key.cp, point.key.microbatch_size, point.key.model, point.method)
        fastest[key] = min(fastest.get(key, np.inf), point.predicted_time_s)
    for cp, batch, model, slower in (
        (2, 8, "qwen3-1.7b", True),
        (2, 16, "qwen3-1.7b", False),
        (1, 8, "qwen3-1.7b", False),
        (1, 8, "llama3.2-3b", False),
    ):
        nanobatching = fastest[cp, batch, model, Method.NANOBATCHING_PERSEUS]
        assert (nanobatching > fastest[cp, batch, model, Method.PERSEUS]) is slower


def test_the_published_sweep_is_matched() -> None:
    result = validate_sweep(reference_data(SWEEP))
    assert result["points"] == 640
    assert result["time_mape_pct"] < 2.0
    assert result["energy_mape_pct"] < 2.0
    assert result["spearman_time"] >= 0.96
    assert result["spearman_energy"] >= 0.90


def test_a_sweep_at_another_clock_is_slower_and_ranked_alike(tmp_path: Path) -> None:
    result = validate_sweep(reference_data(SWEEP), clock_mhz=1200)
    assert 5 < result["time_mape_pct"] < 20  # all of it the clock: the data is at 1410 MHz
    assert result["spearman_time"] > 0.95
    with pytest.raises(ConfigError, match="1500"):
        validate_sweep(reference_data(SWEEP), clock_mhz=1500)


def test_replay_agrees_with_the_pipelines_own_makespan() -> None:
    pipeline = one_f_one_b(3, 4)
    durations = np.random.default_rng(0).uniform(1, 2, (5, len(pipeline.instructions)))
    together = makespans_s(pipeline, durations)
    for row, makespan in zip(durations, together, strict=True):
        assert makespan == pytest.approx(pipeline.makespan_s(list(row)))


def test_stage_layers_of_the_published_experiments() -> None:
    assert default_stage_layers(28, 2) == (15, 13)
    assert default_stage_layers(80, 8) == (10,) * 8
    assert sum(default_stage_layers(36, 2)) == 36


def test_a_file_with_nothing_to_replay_is_refused(tmp_path: Path) -> None:
    source = reference_data(FRONTIERS)
    with source.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    kept = [rows[0], *(row for row in rows[1:] if row[5] == "kareus")]
    path = tmp_path / "frontiers.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(kept)
    with pytest.raises(MeasurementError, match="no plan of perseus"):
        validate_frontiers(path, reference_data(FREQUENCIES))


def test_an_unknown_model_is_refused_by_row(tmp_path: Path) -> None:
    paths = []
    for name in (FRONTIERS, FREQUENCIES):
        text = reference_data(name).read_text(encoding="utf-8")
        paths.append(tmp_path / name)
        paths[-1].write_text(text.replace("qwen3_1.7b", "gizmo_2b"), encoding="utf-8")
    with pytest.raises(MeasurementError, match=r"row \d+: gizmo-2b .*unknown model"):
        load_replays(*paths, reference_gpu())


def test_recorded_gains_are_of_the_published_order() -> None:
    rows = gains_table(reference_data(FRONTIERS), reference_gpu())
    assert len(rows) == 6
    for row in rows:
        assert row.simulated is None
        assert 0 < row.recorded.fastest < 0.2
        assert row.recorded.iso_time is not None
        assert 0 < row.recorded.iso_time < 0.3


def test_gains_of_a_frontier_over_itself_are_none() -> None:
    frontier = [(1.0, 20.0), (2.0, 10.0)]
    same = gains(frontier, frontier)
    assert (same.fastest, same.iso_time, same.iso_energy) == (0.0, 0.0, 0.0)
    worse = gains([(3.0, 30.0)], frontier)
    assert worse.fastest == pytest.approx(-2.0)
    assert worse.iso_time is None
    assert worse.iso_energy is None
    better = gains([(0.5, 15.0), (1.5, 9.0)], frontier)
    assert better.iso_time == pytest.approx(0.25)
    assert better.iso_energy == pytest.approx(0.25)


def test_stages_are_balanced_at_the_recorded_clocks() -> None:
    # A planner slows each stage down until it fills the cycle: a model in which one stage takes
    # much longer at those clocks has its layers, or its head, wrong.
    gpu = reference_gpu()
    replays = load_replays(reference_data(FRONTIERS), reference_data(FREQUENCIES), gpu)
    parameters = [calibration_for(gpu).parameters]
    for replay in replays:
        imbalance = replay.predict_sets(parameters).imbalance[0]
        assert imbalance.shape == (10, 2)
        assert np.allclose(imbalance.sum(axis=1), 0)
        assert np.abs(imbalance).mean() < 0.02


def test_many_parameter_sets_give_what_each_gives_alone() -> None:
    gpu = reference_gpu()
    replays = load_replays(reference_data(FRONTIERS), reference_data(FREQUENCIES), gpu)
    sets = [prior_parameters(), calibration_for(gpu).parameters]
    for replay in replays[:2]:
        together = replay.predict_sets(sets)
        for i, p in enumerate(sets):
            time, energy = replay.predict(p)
            assert together.time_s[i] == pytest.approx(time, rel=1e-12)
            assert together.energy_j[i] == pytest.approx(energy, rel=1e-12)
