"""Recorded measurements: what is read, what is refused and why, and that nothing is lost."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.errors import MeasurementError
from kareus.profiling.replay import ReplaySource, read_recorded, write_recorded
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.partitions import build_partitions

WORKLOAD = build_workload(
    WorkloadSettings(model="llama3.2-3b", gpu="A100-SXM4-40GB", tp=8, pp=2, microbatch_size=8)
)
PARTITIONS = build_partitions(WORKLOAD)
WITH_CP = build_workload(
    WorkloadSettings(model="llama3.2-3b", gpu="A100-SXM4-40GB", tp=4, cp=2, pp=2)
)
SHAPE = "cp1-tp8-bs8-seq4096"


def row(**changes: object) -> dict[str, object]:
    """A row as the artifact writes it: 1.5 ms, 200 W."""
    return {
        "freq": 1200,
        "overlap_start": "norm_0",
        "overlap_end": "none",
        "sm": 12,
        "block": 1024,
        "time_s": 0.0015,
        "energy_j": 0.3,
        **changes,
    }


def text(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(line) + "\n" for line in rows)


def put(root: Path, content: str | bytes, *, partition: str = "fwd_attn") -> Path:
    path = root / "logs" / "llama3.2-3b" / SHAPE / partition / "eval_results.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def put_outside(root: Path, content: str | bytes, *, clock: str = "1200") -> Path:
    path = root / "llama3.2-3b" / SHAPE / "nonpartition" / clock / "loss_energy.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path):
    return read_recorded(path, PARTITIONS, workload=WORKLOAD)


def reasons(path: Path) -> list[tuple[int | None, str]]:
    return [(refusal.line, refusal.reason) for refusal in read(path).refusals]


# Reading


def test_a_row_becomes_the_measurement_it_says(tmp_path: Path) -> None:
    put(tmp_path, text([row(), row(overlap_start="none", sm=20, freq=900)]))
    recorded = read(tmp_path)
    assert recorded.measurements == (
        Measurement(
            partition="fwd_attn",
            configuration=Configuration(
                clock_mhz=1200, sm_allocation=12, launch_point=LaunchPoint.NORM_0
            ),
            time_s=0.0015,
            energy_j=0.3,
            source=SourceKind.REPLAY,
        ),
        Measurement(
            partition="fwd_attn",
            configuration=Configuration(
                clock_mhz=900, sm_allocation=20, launch_point=LaunchPoint.NONE
            ),
            time_s=0.0015,
            energy_j=0.3,
            source=SourceKind.REPLAY,
        ),
    )
    assert (recorded.num_taken, recorded.num_repeated, recorded.num_refused) == (2, 0, 0)
    assert recorded.notes == ()


@pytest.mark.parametrize("depth", range(5))
def test_any_folder_at_or_above_the_rows_will_do(tmp_path: Path, depth: int) -> None:
    file = put(tmp_path, text([row()]))
    assert read([file, *file.parents][depth]).num_taken == 1


def test_units_of_our_own_are_read_as_folders_too(tmp_path: Path) -> None:
    clock_only = {"freq": 1200, "time_s": 0.003, "energy_j": 0.6}
    artifact_like = {**row(overlap_start="none"), "time_s": 0.003, "energy_j": 0.6}
    for unit, line in (("seq_fwd_attn", clock_only), ("fwd_lead", artifact_like)):
        put(tmp_path, text([line]), partition=unit)
    recorded = read(tmp_path)
    assert {m.partition: m.configuration for m in recorded.measurements} == {
        "seq_fwd_attn": Configuration(clock_mhz=1200),
        "fwd_lead": Configuration(clock_mhz=1200),
    }


def test_repeats_are_numbered_and_identical_rows_kept_once(tmp_path: Path) -> None:
    put(tmp_path, text([row(), row(time_s=0.0016), row(), row(freq=930), row(time_s=0.0017)]))
    recorded = read(tmp_path)
    assert [(m.configuration.clock_mhz, m.repeat, m.time_s) for m in recorded.measurements] == [
        (1200, 0, 0.0015),
        (1200, 1, 0.0016),
        (930, 0, 0.0015),
        (1200, 2, 0.0017),
    ]
    assert (recorded.num_taken, recorded.num_repeated, recorded.num_refused) == (2, 3, 0)


@pytest.mark.parametrize(
    ("start", "end", "partition", "point"),
    [
        ("0", "6", "fwd_attn", LaunchPoint.NORM_0),
        (2, 6, "fwd_attn", LaunchPoint.LINEAR_0),
        (5, 6, "fwd_attn", LaunchPoint.ATTN_0),
        (-1, -1, "fwd_attn", LaunchPoint.NONE),
        ("-1", "-1", "fwd_attn", LaunchPoint.NONE),
        ("activation_0", None, "fwd_mlp", LaunchPoint.ACTIVATION_0),
        ("none", "none", "fwd_mlp", LaunchPoint.NONE),
    ],
)
def test_both_notations_of_launch_points(
    tmp_path: Path, start: object, end: object, partition: str, point: LaunchPoint
) -> None:
    put(
        tmp_path,
        text([row(overlap_start=start, overlap_end=end, time_s=0.003, energy_j=0.6)]),
        partition=partition,
    )
    (measurement,) = read(tmp_path).measurements
    assert measurement.configuration.launch_point is point


def test_the_earlier_notation_of_context_parallel_partitions(tmp_path: Path) -> None:
    path = tmp_path / "cp2-tp4-bs8-seq4096" / "fwd_qkv_ag" / "eval_results.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(text([row(overlap_start=2, overlap_end=5, sm=3)]))
    recorded = read_recorded(tmp_path, build_partitions(WITH_CP), workload=WITH_CP)
    assert [m.configuration.launch_point for m in recorded.measurements] == [LaunchPoint.LINEAR_0]


def test_two_overlaps_that_are_one_configuration_here_are_not_called_repeats(
    tmp_path: Path,
) -> None:
    rows = [row(overlap_start=0, overlap_end=6), row(overlap_start=1, overlap_end=6, time_s=0.002)]
    put(tmp_path, text(rows))
    ((line, reason),) = reasons(tmp_path)
    assert line == 2
    assert "1-6-1024 is the same configuration here as 0-6-1024" in reason


def test_an_unmeasured_energy_stays_unknown(tmp_path: Path) -> None:
    put(tmp_path, text([row(energy_j=None, time_s=7.0)]))
    (measurement,) = read(tmp_path).measurements
    assert (measurement.energy_j, measurement.time_s) == (None, 7.0)


def test_work_outside_partitions_is_read_per_clock(tmp_path: Path) -> None:
    header = "time (s),total_energy (J),per_rank_energy (J)\n"
    put_outside(tmp_path, f"\ufeff{header}0.05,80.0,10.0\r\n0.051,81.6,10.2\r\n")
    put_outside(tmp_path, f'{header}0.06,80.0,"[9.0, 11.0]"\n', clock="900")
    recorded = read(tmp_path)
    assert {
        (m.configuration.clock_mhz, m.repeat): (m.partition, m.time_s, m.energy_j)
        for m in recorded.measurements
    } == {
        (1200, 0): ("loss", 0.05, 10.0),
        (1200, 1): ("loss", 0.051, 10.2),
        (900, 0): ("loss", 0.06, 10.0),
    }


# Flaws


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"time_s": float("nan")}, "time_s is nan"),
        ({"energy_j": float("inf")}, "energy_j is inf"),
        ({"time_s": 10**400}, "time_s is 1000"),
        ({"freq": 10**400}, "no SM clock in MHz"),
        ({"sm": 10**400}, "SMs"),
        ({"time_s": 0}, "time_s is 0: it must be above 0"),
        ({"energy_j": 0.0}, "energy_j is 0: it must be above 0"),
        ({"time_s": -0.001}, "time_s is -0.001: it must be above 0"),
        ({"time_s": None}, "time_s is missing"),
        ({"time_s": "fast"}, "time_s is 'fast', no number"),
        ({"time_s": True}, "time_s is True, no number"),
        ({"freq": None}, "freq is missing"),
        ({"freq": 1200.5}, "freq is 1200.5, no whole number"),
        ({"freq": 1.2e9}, "no SM clock in MHz"),
        ({"freq": 0}, "no SM clock in MHz"),
        ({"sm": 0}, "must name 1 to 1024 SMs"),
        ({"sm": 109}, "sm 109 is no SM allocation: it must be 1 to 108"),
        ({"sm": None}, "sm is missing"),
        ({"block": 512}, "only collectives with 1024 threads"),
        ({"overlap_start": "activation_0"}, "activation_0 is not offered by fwd_attn"),
        ({"overlap_start": "warp_0"}, "launch point 'warp_0'"),
        ({"overlap_start": 99}, "launches at operator 99"),
        ({"overlap_start": "__import__('os')"}, "is not 'launch-end-SMs-threads'"),
        ({"time_s": 1.5}, "needs at its peak: ms instead of s?"),
        ({"time_s": 0.25}, "1.2 W per GPU, below 42.5 W: units?"),
        ({"energy_j": 0.0003}, "below 42.5 W: time in ms instead of s, or energy in kJ"),
        ({"energy_j": 300.0}, "above 600 W: energy in mJ instead of J?"),
        ({"time_s": 1.5, "energy_j": 300.0}, "needs at its peak: ms instead of s?"),
        ({"time_s": 1.5e-6, "energy_j": 3e-4}, "less than A100-SXM4-40GB can do at its peak"),
        ({"energy_j": 0.12}, "negative dynamic energy: 80 W is below the static 85 W"),
    ],
)
def test_a_flawed_row_is_refused_with_its_reason_and_the_others_kept(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    put(tmp_path, text([row(freq=900), row(**changes), row(freq=930)]))
    recorded = read(tmp_path)
    (refusal,) = recorded.refusals
    assert refusal.file.endswith(f"{SHAPE}/fwd_attn/eval_results.jsonl")
    assert refusal.line == 2
    assert reason in refusal.reason
    assert "\n" not in str(refusal)
    assert len(refusal.reason) < 200
    assert [m.configuration.clock_mhz for m in recorded.measurements] == [900, 930]
    assert (recorded.num_taken, recorded.num_refused) == (2, 1)


@pytest.mark.parametrize("missing", ["freq", "overlap_start", "sm", "time_s"])
def test_a_row_without_a_field_is_refused_naming_it(tmp_path: Path, missing: str) -> None:
    line = row()
    del line[missing]
    put(tmp_path, text([line]))
    assert reasons(tmp_path) == [(1, f"{missing} is missing")]


@pytest.mark.parametrize(
    "line", [b"{", b"[1, 2]", b"null", b"\x00\x00\x00", b'{"freq": \xff}', b"[" * 5000, b"NaN"]
)
def test_a_line_that_is_no_row_is_refused_wherever_it_stands(tmp_path: Path, line: bytes) -> None:
    good = json.dumps(row()).encode()
    put(tmp_path, b"\n".join([line, good, b"", line, json.dumps(row(freq=900)).encode(), b""]))
    recorded = read(tmp_path)
    assert [refusal.line for refusal in recorded.refusals] == [1, 4]
    assert recorded.num_taken == 2


def test_a_log_cut_off_anywhere_in_its_last_line_keeps_all_the_others(tmp_path: Path) -> None:
    whole = text([row(), row(freq=900), row(freq=930)]).encode()
    last = whole.rindex(b'{"freq": 930')
    for cut in range(last + 1, len(whole) - 1):
        put(tmp_path, whole[:cut])
        recorded = read(tmp_path)
        assert recorded.num_taken == 2
        assert [(r.line, r.reason) for r in recorded.refusals] == [
            (3, "cut off in the middle of the line")
        ]
    put(tmp_path, whole[:-1])
    assert read(tmp_path).num_taken == 3


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_byte_order_marks_and_line_ends_do_not_matter(
    tmp_path: Path, prefix: bytes, ending: bytes
) -> None:
    lines = [json.dumps(row(freq=freq)).encode() for freq in (900, 930)]
    put(tmp_path, prefix + ending.join([*lines, b""]))
    recorded = read(tmp_path)
    assert (recorded.num_taken, recorded.refusals) == (2, ())


def test_utf_16_is_refused_as_a_file(tmp_path: Path) -> None:
    put(tmp_path, text([row()]).encode("utf-16"))
    ((line, reason),) = reasons(tmp_path)
    assert line is None
    assert "UTF-16: save it as UTF-8" in reason


def test_mixed_units_without_energy_stand_out_by_magnitude(tmp_path: Path) -> None:
    rows = [row(energy_j=None, freq=freq) for freq in range(900, 1080, 30)]
    put(tmp_path, text([*rows, row(energy_j=None, freq=1410, time_s=1.5)]))
    ((line, reason),) = reasons(tmp_path)
    assert line == 7
    assert "times the file's median: ms and s mixed?" in reason


def test_an_unknown_partition_is_refused_once_with_all_its_rows(tmp_path: Path) -> None:
    put(tmp_path, text([row()]))
    put(tmp_path, text([row(), row(freq=900)]), partition="fwd_moe")
    recorded = read(tmp_path)
    (refusal,) = recorded.refusals
    assert (refusal.line, refusal.num_rows) == (None, 2)
    assert "unknown partition 'fwd_moe': known are fwd_attn, fwd_mlp" in refusal.reason
    assert (recorded.num_taken, recorded.num_refused) == (1, 2)


def test_a_launch_in_a_unit_that_launches_nothing_is_refused(tmp_path: Path) -> None:
    put(tmp_path, text([row()]), partition="seq_fwd_attn")
    assert reasons(tmp_path) == [(1, "seq_fwd_attn launches no collective, but it says 'norm_0'")]


def test_an_assumed_static_power_flags_instead_of_refusing(tmp_path: Path) -> None:
    put(tmp_path, text([row(energy_j=0.12)]))
    gpu = replace(WORKLOAD.gpu, static_power_measured=False)
    recorded = read_recorded(tmp_path, PARTITIONS, workload=replace(WORKLOAD, gpu=gpu))
    (measurement,) = recorded.measurements
    assert measurement.conditions["flags"] == [
        "negative dynamic energy: 80 W is below the static 85 W assumed for A100-SXM4-40GB"
    ]
    assert recorded.notes[0].startswith("1 measurements are doubtful")


def test_a_lone_collective_below_the_static_power_is_flagged(tmp_path: Path) -> None:
    clock_only = {"freq": 1200, "time_s": 0.001, "energy_j": 0.07}
    put(tmp_path, text([clock_only]), partition="fwd_trail")
    recorded = read(tmp_path)
    (measurement,) = recorded.measurements
    assert measurement.conditions["flags"] == [
        "negative dynamic energy: 70 W is below the static 85 W"
    ]
    assert recorded.notes[0].startswith("1 measurements are doubtful")


def test_without_a_workload_the_impossible_is_still_refused(tmp_path: Path) -> None:
    put(tmp_path, text([row(), row(freq=900, energy_j=300.0), row(freq=930, time_s=1.5)]))
    recorded = read_recorded(tmp_path, PARTITIONS)
    assert [refusal.line for refusal in recorded.refusals] == [2, 3]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("time,energy\n1,2\n", 1, "no column 'time (s)'"),
        ("{h}0.05,80,10\n0.05,nan,nan\n", 3, "per_rank_energy (J) is nan"),
        ("{h}0,80,10\n", 2, "time (s) is 0"),
        ("{h}0.05,80\n", 2, "2 cells instead of 3: cut off?"),
        ("{h}0.05,5,10\n", 2, "less than that of one rank"),
        ("{h}0.05,80,\n", 2, "per_rank_energy (J) is missing"),
        ("{h}50,80,10\n", 2, "ms instead of s"),
        ("{h}0.05,80,1e4\n", 2, "less than that of one rank"),
        ("{h}0.05,8e4,1e4\n", 2, "energy in mJ"),
        ("{h}fast,80,10\n", 2, "time (s) is 'fast', no number"),
    ],
)
def test_flaws_of_work_outside_partitions(
    tmp_path: Path, content: str, line: int, reason: str
) -> None:
    header = "time (s),total_energy (J),per_rank_energy (J)\n"
    put_outside(tmp_path, content.replace("{h}", header))
    recorded = read(tmp_path)
    (refusal,) = recorded.refusals
    assert refusal.line == line
    assert reason in refusal.reason


def test_a_second_header_of_an_appended_run_is_no_row(tmp_path: Path) -> None:
    block = "time (s),total_energy (J),per_rank_energy (J)\n0.05,80,10\n"
    put_outside(tmp_path, block + block.replace("0.05", "0.06"))
    recorded = read(tmp_path)
    assert (recorded.num_taken, recorded.num_repeated, recorded.refusals) == (1, 1, ())


def test_a_folder_that_is_no_clock_is_refused(tmp_path: Path) -> None:
    put_outside(tmp_path, "time (s),total_energy (J),per_rank_energy (J)\n1,1,1\n", clock="fast")
    assert reasons(tmp_path) == [(2, "its folder 'fast' is no clock in MHz")]


# Which workload


def test_a_path_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="there is nothing at"):
        read(tmp_path / "absent")
    with pytest.raises(MeasurementError, match="has no recorded measurements: expected"):
        read(tmp_path)


def test_the_workload_chooses_its_folder_among_several(tmp_path: Path) -> None:
    for model, shape, freq in (
        ("llama3.2_3b", SHAPE, 900),
        ("qwen3-1.7b", SHAPE, 930),
        ("llama3.2_3b", "cp2-tp4-bs8-seq4096", 960),
    ):
        path = tmp_path / model / shape / "fwd_mlp" / "eval_results.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(text([row(freq=freq, time_s=0.003, energy_j=0.6)]))
    recorded = read(tmp_path)
    assert [m.configuration.clock_mhz for m in recorded.measurements] == [900]
    assert recorded.notes == ()
    with pytest.raises(MeasurementError, match="measurements of 3 workloads"):
        read_recorded(tmp_path, PARTITIONS)


def test_measurements_of_another_shape_only_are_refused(tmp_path: Path) -> None:
    put(tmp_path, text([row()]))
    with pytest.raises(MeasurementError, match=f"no measurements of cp2-tp4.*but of.*{SHAPE}"):
        read_recorded(tmp_path, build_partitions(WITH_CP), workload=WITH_CP)


def test_a_folder_with_another_name_is_taken_and_said_so(tmp_path: Path) -> None:
    path = tmp_path / "run7" / SHAPE / "fwd_attn" / "eval_results.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(text([row()]))
    recorded = read(tmp_path)
    assert recorded.num_taken == 1
    assert recorded.notes == ("folder run7 is not named after the model: taken as llama3.2-3b",)


def test_the_report_is_a_json_document(tmp_path: Path) -> None:
    put(tmp_path, text([row(), row(), row(time_s=-1)]))
    report = json.loads(json.dumps(read(tmp_path).report()))
    assert (report["taken"], report["repeated"], report["refused"]) == (1, 1, 1)
    assert report["refusals"][0]["line"] == 3


# Writing and replaying


def _measurements() -> st.SearchStrategy[list[Measurement]]:
    """Measurements of this workload, plausible ones, repeats numbered from 0."""
    units = st.sampled_from(sorted(PARTITIONS))
    conditions = st.dictionaries(
        st.text(max_size=6).filter(lambda key: key != "flags"),
        st.none() | st.integers(-(2**50), 2**50) | st.floats(-1e6, 1e6) | st.text(max_size=5),
        max_size=2,
    )

    @st.composite
    def one(draw: st.DrawFn) -> Measurement:
        partition = PARTITIONS[draw(units)]
        configuration = draw(
            st.sampled_from((*partition.space(), *partition.baseline_configurations()))
        )
        least_s = sum(o.flops for o in partition.operators) / WORKLOAD.gpu.peak_flops
        time_s = max(least_s, 1e-4) * draw(st.floats(1.0, 10.0))
        power_w = draw(st.floats(90.0, 500.0))
        return Measurement(
            partition=partition.name,
            configuration=configuration,
            time_s=time_s,
            energy_j=draw(st.none() | st.just(time_s * power_w)),
            source=SourceKind.REPLAY,
            time_spread_s=draw(st.none() | st.floats(0, 1)),
            energy_spread_j=draw(st.none() | st.floats(0, 1)),
            conditions=draw(conditions),
        )

    def numbered(found: list[Measurement]) -> list[Measurement]:
        counts: dict[tuple[str, Configuration], int] = {}
        result = []
        for measurement in found:
            key = (measurement.partition, measurement.configuration)
            result.append(replace(measurement, repeat=counts.get(key, 0)))
            counts[key] = counts.get(key, 0) + 1
        return result

    return st.lists(one(), min_size=1, max_size=8).map(numbered)


@settings(max_examples=80, deadline=None)
@given(_measurements())
def test_what_is_written_is_read_back_unchanged(measurements: list[Measurement]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = write_recorded(root, measurements, workload=WORKLOAD)
        assert folder == Path(root) / "llama3.2-3b" / SHAPE
        recorded = read(Path(root))
    assert recorded.refusals == ()
    key = repr
    assert sorted(recorded.measurements, key=key) == sorted(measurements, key=key)


def test_writing_after_a_crash_keeps_the_broken_line_apart(tmp_path: Path) -> None:
    measurement = Measurement(
        partition="fwd_attn",
        configuration=Configuration(
            clock_mhz=1200, sm_allocation=3, launch_point=LaunchPoint.ATTN_0
        ),
        time_s=0.002,
        energy_j=0.4,
        source=SourceKind.REPLAY,
    )
    outside = replace(
        measurement,
        partition="loss",
        configuration=Configuration(clock_mhz=1200),
        time_s=0.05,
        energy_j=10.0,
    )
    write_recorded(tmp_path, [measurement, outside], workload=WORKLOAD)
    for path in tmp_path.rglob("*.*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-5])
    write_recorded(tmp_path, [measurement, outside], workload=WORKLOAD)
    recorded = read(tmp_path)
    assert sorted(m.partition for m in recorded.measurements) == ["fwd_attn", "loss"]
    assert recorded.num_refused == 2


def test_failures_are_written_apart_from_measurements(tmp_path: Path) -> None:
    failed = FailedMeasurement(
        partition="fwd_attn", configuration=Configuration(clock_mhz=900), reason="throttled"
    )
    folder = write_recorded(tmp_path, [failed], workload=WORKLOAD)
    line = json.loads((folder / "fwd_attn" / "failures.jsonl").read_text())
    assert (line["freq"], line["reason"]) == (900, "throttled")
    with pytest.raises(MeasurementError, match="no recorded measurements"):
        read(tmp_path)


def test_replay_gives_what_was_recorded_in_the_order_asked(tmp_path: Path) -> None:
    put(tmp_path, text([row(), row(freq=900), row(time_s=0.0016)]))
    source = ReplaySource(read(tmp_path).measurements)
    partition = PARTITIONS["fwd_attn"]
    space = source.space(partition)
    assert [c.clock_mhz for c in space] == [900, 1200]
    assert (source.kind, source.repeatable) == (SourceKind.REPLAY, False)
    first = list(source.measure(partition, space[::-1]))
    assert [r.time_s for r in first if isinstance(r, Measurement)] == [0.0015, 0.0015]
    assert [r.configuration for r in first] == list(space[::-1])
    (again,) = source.measure(partition, space[1:], repeat=1)
    assert isinstance(again, Measurement)
    assert again.time_s == 0.0016


def test_what_was_not_recorded_fails_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, text([row()]))
    source = ReplaySource(read(tmp_path).measurements)
    known = source.space(PARTITIONS["fwd_attn"])[0]
    unknown = replace(known, clock_mhz=900)
    results = [
        *source.measure(PARTITIONS["fwd_attn"], [unknown]),
        *source.measure(PARTITIONS["fwd_attn"], [known], repeat=3),
        *source.measure(PARTITIONS["fwd_mlp"], [known]),
    ]
    assert [r.reason for r in results if isinstance(r, FailedMeasurement)] == [
        "was not recorded",
        "was recorded 1 times, repeat 3 is not among them",
        "no measurement of fwd_mlp was recorded",
    ]
    assert source.space(PARTITIONS["fwd_mlp"]) == ()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 4),
    st.integers(0, 200),
    st.integers(0, 60),
    st.binary(max_size=60).map(lambda noise: noise.replace(b"\n", b"")),
)
def test_damage_to_one_line_never_reaches_another(
    line: int, start: int, length: int, noise: bytes
) -> None:
    frequencies = (900, 930, 960, 990, 1020)
    lines = [json.dumps(row(freq=freq)).encode() for freq in frequencies]
    lines[line] = lines[line][:start] + noise + lines[line][start + length :]
    with tempfile.TemporaryDirectory() as root:
        put(Path(root), b"\n".join([*lines, b""]))
        recorded = read(Path(root))
    others = {freq for number, freq in enumerate(frequencies) if number != line}
    assert others <= {m.configuration.clock_mhz for m in recorded.measurements}
    counted = recorded.num_taken + recorded.num_repeated + recorded.num_refused
    assert counted == sum(bool(part.strip()) for part in lines)
    assert {refusal.line for refusal in recorded.refusals} <= {line + 1}
