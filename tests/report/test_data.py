import numpy as np
import pandas as pd
import pytest

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.partition import Execution
from kareus.core.plan import Method
from kareus.core.timeline import build_timeline
from kareus.errors import ConfigError
from kareus.report import data
from tests.schedule.sample import (
    STATIC_POWER_W,
    make_frontiers,
    make_pipeline,
    make_plan,
    make_workload,
)

WORKLOAD = make_workload()
FRONTIERS = make_frontiers(WORKLOAD)


def setting(**kwargs):
    return data.FrontierSetting(
        **{
            "num_stages": 2,
            "static_power_w": STATIC_POWER_W,
            "gpus_per_stage": 8,
            "source": SourceKind.SIMULATOR,
            **kwargs,
        }
    )


def test_frontier_rows():
    frame = data.frontier_frame(FRONTIERS, setting())
    assert len(frame) == 16
    assert frame["plan_id"].is_unique
    assert list(frame["plan_id"][:2]) == ["kareus-0", "kareus-1"]
    plan = FRONTIERS[Method.KAREUS][0]
    row = frame.iloc[0]
    assert row["energy_j"] == plan.pipeline_energy_j
    assert row["static_energy_j"] == pytest.approx(2 * STATIC_POWER_W * plan.iteration_time_s)
    assert row["dynamic_energy_j"] + row["static_energy_j"] == pytest.approx(row["energy_j"])
    assert row["job_energy_j"] == pytest.approx(8 * plan.pipeline_energy_j)
    assert row["gap_pct"] == pytest.approx(100 / 999, rel=1e-6)
    assert not frame["filled"].any()
    assert frame["energy_low_j"].isna().all()
    megatron = frame[frame["method"] == "megatron"]
    assert megatron["gap_pct"].isna().all()


def test_job_scope_scales_every_energy_alike():
    pipeline = data.frontier_frame(FRONTIERS, setting())
    job = data.frontier_frame(FRONTIERS, setting(scope=data.Scope.JOB))
    for column in ("energy_j", "static_energy_j", "dynamic_energy_j", "average_power_w"):
        np.testing.assert_allclose(job[column], 8 * pipeline[column])
    np.testing.assert_allclose(job["pipeline_energy_j"], pipeline["pipeline_energy_j"])


def test_marks_say_where_numbers_come_from():
    frame = data.frontier_frame(FRONTIERS, setting(source=SourceKind.MEASURED))
    assert frame["filled"].all()
    assert set(frame["source"]) == {"measured"}
    frame = data.frontier_frame(FRONTIERS, setting(extrapolated=True, uncertainty=0.1))
    assert set(frame["source"]) == {"extrapolated"}
    np.testing.assert_allclose(frame["energy_low_j"], 0.9 * frame["energy_j"])
    np.testing.assert_allclose(frame["energy_high_j"], 1.1 * frame["energy_j"])


def test_plan_ids_round_trip():
    for plans in FRONTIERS.values():
        for plan in plans:
            assert data.parse_plan_id(data.plan_id(plan)) == (plan.method, plan.number)
    for text in ("", "kareus", "kareus-x", "other-1", "kareus--1"):
        with pytest.raises(ConfigError, match="not the name of a plan"):
            data.parse_plan_id(text)


def test_names_at_the_lines_do_not_touch():
    frame = data.frontier_frame(FRONTIERS, setting())
    labels = data.end_labels(frame)
    assert sorted(labels["method"]) == sorted(m.value for m in FRONTIERS)
    crowded = frame.assign(energy_j=100.0 + frame["energy_j"] / 1e6)
    crowded.loc[0, "energy_j"] = 200.0
    labels = data.end_labels(crowded, separation=0.05)
    near = labels[labels["method"] != "megatron"].sort_values("energy_j")
    assert (near["energy_j"].diff().dropna() > 0.04 * 100).all()
    assert data.end_labels(frame.iloc[:0]).empty


def test_a_name_does_not_lie_on_the_end_of_another_line():
    frame = pd.DataFrame(
        [
            ("kareus", "Kareus", 5.0, 120.0),
            ("kareus", "Kareus", 5.7, 100.0),
            ("nanobatching-perseus", "Nanobatching + Perseus", 5.8, 100.5),
            ("perseus", "Megatron-LM + Perseus", 6.6, 110.0),
        ],
        columns=["method", "method_name", "iteration_time_s", "energy_j"],
    ).assign(energy_low_j=np.nan, energy_high_j=np.nan)
    labels = data.end_labels(frame).set_index("method")
    assert labels["iteration_time_s"]["kareus"] == 5.8
    assert labels["iteration_time_s"]["perseus"] == 6.6
    assert labels["energy_j"]["nanobatching-perseus"] > labels["energy_j"]["kareus"] + 1
    banded = frame.assign(energy_low_j=50.0, energy_high_j=170.0)
    spread = data.end_labels(banded).set_index("method")["energy_j"]
    assert spread["nanobatching-perseus"] - spread["kareus"] >= 0.054 * 120


def test_guides_lead_to_the_baseline():
    plan = FRONTIERS[Method.KAREUS][4]
    guides = data.guide_frame(plan, FRONTIERS[Method.PERSEUS], setting())
    row = guides.set_index("kind").loc["time"]
    assert row["end_time_s"] == plan.iteration_time_s
    assert row["end_energy_j"] > row["energy_j"]
    assert row["energy_reduction_pct"] > 0
    plan = FRONTIERS[Method.KAREUS][0]
    row = data.guide_frame(plan, FRONTIERS[Method.PERSEUS], setting()).iloc[0]
    assert row["kind"] == "energy"
    assert row["end_energy_j"] == row["energy_j"]
    assert data.guide_frame(plan, [], setting()).empty


def test_a_plan_beyond_every_baseline_plan_is_led_to_the_fastest():
    slow = FRONTIERS[Method.MEGATRON]
    plan = FRONTIERS[Method.KAREUS][1]
    guides = data.guide_frame(plan, slow, setting(scope=data.Scope.JOB))
    assert list(guides["kind"]) == ["fastest"]
    assert guides["end_energy_j"][0] == pytest.approx(8 * slow[0].pipeline_energy_j)


def test_split_stands_beside_the_baselines():
    plan = FRONTIERS[Method.KAREUS][4]
    frame = data.split_frame(plan, FRONTIERS, setting())
    assert list(frame["label"].drop_duplicates()) == [
        "Plan 4",
        "Megatron-LM + Perseus",
        "Megatron-LM",
    ]
    perseus = frame[frame["label"] == "Megatron-LM + Perseus"]
    assert (perseus["iteration_time_s"] <= plan.iteration_time_s).all()
    total = frame[frame["order"] == 0]["energy_j"].sum()
    assert total == pytest.approx(plan.pipeline_energy_j)


def timeline(**kwargs):
    plan = make_plan(WORKLOAD, **kwargs)
    return plan, build_timeline(plan, make_pipeline(WORKLOAD), static_power_w=STATIC_POWER_W)


def test_timeline_rows():
    plan, rows = timeline(slow_first_mhz=900)
    frame = data.timeline_frame(rows)
    assert len(frame) == 16
    assert frame["end_s"].max() == plan.iteration_time_s
    assert "norm_0, 3 SMs" in frame["configurations"][0]
    busy_s = frame["duration_s"].sum()
    assert data.bubble_share(frame) == pytest.approx(1 - busy_s / (2 * plan.iteration_time_s))
    _, rows = timeline(execution=Execution.SEQUENTIAL)
    assert set(data.timeline_frame(rows)["configurations"]) == {"sequential"}


def test_configurations_by_stage_and_kind():
    plan, rows = timeline(slow_first_mhz=900)
    frame = data.configuration_frame(plan, rows)
    assert list(zip(frame["stage"], frame["instruction"], strict=True)) == [
        (0, "forward"),
        (0, "backward"),
        (1, "forward"),
        (1, "backward"),
    ]
    assert list(frame["clock_mhz"]) == [900, 1410, 1410, 1410]
    assert set(frame["microbatches"]) == {"0-3"}
    assert frame["count"].sum() == 16
    assert frame["bwd_mlp"][0] == "–"
    assert frame["bwd_mlp"][3] == "norm_0, 6 SMs"
    plan, rows = timeline(execution=Execution.SEQUENTIAL)
    assert "fwd_attn" not in data.configuration_frame(plan, rows)


def test_ranges():
    assert data.ranges([5, 0, 2, 1]) == "0-2, 5"
    assert data.ranges([]) == ""


def measurement(clock, sms, time_s, energy_j, **kwargs):
    return Measurement(
        partition="fwd_attn",
        configuration=Configuration(
            clock_mhz=clock, sm_allocation=sms, launch_point=LaunchPoint.NORM_0
        ),
        time_s=time_s,
        energy_j=energy_j,
        source=SourceKind.SIMULATOR,
        **kwargs,
    )


def test_partition_points_average_repeats_and_keep_gaps():
    frame = data.partition_frame(
        [
            measurement(900, 3, 0.002, 1.0),
            measurement(900, 3, 0.004, 3.0, repeat=1),
            measurement(900, 6, 0.004, 3.0),
            measurement(1410, 3, 0.001, 5.0),
            measurement(1410, 6, 0.0001, None),
        ],
        static_power_w=100.0,
    ).set_index("point_id")
    assert len(frame) == 4
    assert frame.loc["900-norm_0-3", "repeats"] == 2
    assert frame.loc["900-norm_0-3", "time_s"] == pytest.approx(0.003)
    assert frame.loc["900-norm_0-3", "dynamic_energy_j"] == pytest.approx(1.7)
    assert np.isnan(frame.loc["1410-norm_0-6", "energy_j"])
    assert not frame.loc["1410-norm_0-6", "on_frontier"]
    assert set(frame.index[frame["on_frontier"]]) == {"900-norm_0-3", "1410-norm_0-3"}
    assert set(frame.index[frame["on_clock_frontier"]]) == {"900-norm_0-3", "1410-norm_0-3"}


def test_partition_points_without_collective_or_rows():
    alone = Measurement(
        partition="fwd_mlp",
        configuration=Configuration(clock_mhz=900),
        time_s=0.1,
        energy_j=9.0,
        source=SourceKind.MEASURED,
    )
    frame = data.partition_frame([alone], static_power_w=50.0)
    assert frame["point_id"][0] == "900-–-none"
    assert frame["filled"][0]
    assert data.partition_frame([], static_power_w=50.0).empty


def test_convergence_and_parity_and_studies():
    frame = data.convergence_frame({"Kareus": [(24, 1.0), (48, 2.0)], "Random": []})
    assert list(frame["hypervolume"]) == [1.0, 2.0]
    assert list(frame["series"]) == ["Kareus", "Kareus"]
    point = data.ParityPoint(
        label="x",
        method="nanobatching_perseus",
        recorded_time_s=2.0,
        predicted_time_s=2.1,
        recorded_energy_j=100.0,
        predicted_energy_j=95.0,
    )
    frame = data.parity_frame([point])
    assert list(frame["error_pct"].round(6)) == [5.0, -5.0]
    assert set(frame["method"]) == {"nanobatching-perseus"}
