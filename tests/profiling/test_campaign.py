from pathlib import Path

import pytest

from kareus.core.configuration import LaunchPoint
from kareus.errors import ConfigError, DeviceError, MeasurementError
from kareus.profiling.campaign import (
    ProfileProgress,
    choose_configurations,
    profile,
    split_devices,
)
from kareus.profiling.replay import read_recorded
from kareus.workload.partitions import build_partitions
from tests.profiling.conftest import make_workload
from tests.standin import StandIn


@pytest.mark.parametrize("budget", [1, 5, 24, 720, 740, 10_000])
def test_as_many_configurations_as_asked_for_without_repetition(budget: int) -> None:
    partition = build_partitions(make_workload(tp=2))["fwd_attn"]
    chosen = choose_configurations(partition, budget)
    possible = {*partition.space(), *partition.baseline_configurations()}
    assert len(set(chosen)) == len(chosen) == min(budget, len(possible))
    assert set(chosen) <= possible
    assert choose_configurations(partition, budget) == chosen


def test_baselines_come_after_the_whole_space() -> None:
    partition = build_partitions(make_workload(tp=2))["fwd_attn"]
    num_points = len(partition.space())
    chosen = choose_configurations(partition, num_points + 2)
    assert all(one.launch_point is not LaunchPoint.NONE for one in chosen[:num_points])
    assert len(chosen) == num_points + 2


def test_where_only_the_clock_varies_clocks_are_spread() -> None:
    partition = build_partitions(make_workload(tp=2))["seq_fwd_attn"]
    assert [one.clock_mhz for one in choose_configurations(partition, 1)] == [1410]
    assert [one.clock_mhz for one in choose_configurations(partition, 2)] == [1410, 900]
    assert len(choose_configurations(partition, 100)) == 18


@pytest.mark.parametrize(("num_ranks", "expected"), [(8, 1), (4, 2), (2, 4), (3, 2), (1, 8)])
def test_groups_are_disjoint_and_as_many_as_fit(num_ranks: int, expected: int) -> None:
    groups = split_devices(list(range(8)), num_ranks)
    assert len(groups) == expected
    flat = [gpu for group in groups for gpu in group]
    assert len(set(flat)) == len(flat) == expected * num_ranks


def test_bad_requests_are_refused_before_anything_starts(tmp_path: Path) -> None:
    workload = make_workload(tp=2)
    for options, reason in (
        ({"partitions": ["fwd_atn"]}, "did you mean fwd_attn"),
        ({"budget": 0}, "budget 0"),
        ({"window_s": 0.0}, "window_s"),
        ({"cooldown_s": -1.0}, "cooldown_s"),
        ({"device": "tpu"}, "'tpu' is unknown"),
    ):
        with pytest.raises(ConfigError, match=reason):
            profile(workload, out=tmp_path, **{"device": "cpu", **options})
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_cuda_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDIN_STATE", raising=False)
    with pytest.raises(DeviceError, match="--source simulator"):
        profile(make_workload(), device="cuda", out=tmp_path)


def test_a_processor_profile_is_recorded_and_read_back(quick: None, tmp_path: Path) -> None:
    workload = make_workload(tp=2)
    names = ["fwd_attn", "bwd_mlp", "seq_bwd_attn", "fwd_lead", "bwd_trail", "loss", "preprocess"]
    seen: list[ProfileProgress] = []
    report = profile(
        workload,
        partitions=names,
        device="cpu",
        budget=2,
        window_s=0.05,
        cooldown_s=0.0,
        out=tmp_path,
        on_progress=seen.append,
    )
    document = report.as_document()
    assert set(document["partitions"]) == set(names)
    for entry in document["partitions"].values():
        assert entry["measurements"] == 2
        assert entry["energy_source"] in ("not-measured", "rapl")
    assert [progress.done for progress in seen] == list(range(1, 15))
    recorded = read_recorded(tmp_path, build_partitions(workload), workload=workload)
    assert recorded.refusals == ()
    assert len(recorded.measurements) == 14
    for measurement in recorded.measurements:
        assert measurement.energy_j is None
        assert measurement.time_s > 0
        assert measurement.conditions["clock_applied"] is False
        assert measurement.conditions["sm_allocation_applied"] is False


def test_groups_of_gpus_measure_side_by_side(
    standin: StandIn, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDIN_GPUS", "5")
    workload = make_workload(tp=2)
    report = profile(
        workload,
        partitions=["fwd_mlp", "bwd_mlp"],
        device="rehearsal",
        budget=2,
        window_s=0.3,
        cooldown_s=0.0,
        out=tmp_path,
    )
    assert report.num_groups == 2
    recorded = read_recorded(tmp_path, build_partitions(workload), workload=workload)
    gpus = {
        measurement.partition: tuple(measurement.conditions["gpus"])
        for measurement in recorded.measurements
    }
    assert not set(gpus["fwd_mlp"]) & set(gpus["bwd_mlp"])
    assert {entry.energy_source for entry in report.partitions.values()} == {"counter"}
    for gpu in range(4):
        assert standin.gpu(gpu).num_sets > 0
        assert standin.gpu(gpu).locked_mhz == 0
    assert standin.gpu(4).num_sets == 0


def test_a_check_that_raises_stops_and_keeps_what_there_is(quick: None, tmp_path: Path) -> None:
    def check() -> None:
        raise MeasurementError("enough")

    workload = make_workload()
    with pytest.raises(MeasurementError, match="enough"):
        profile(workload, partitions=["fwd_mlp"], device="cpu", budget=4, window_s=0.05,
                cooldown_s=0.0, out=tmp_path, check=check)  # fmt: skip
    recorded = read_recorded(tmp_path, build_partitions(workload), workload=workload)
    assert len(recorded.measurements) == 1
