"""Planned against actual, on logs written by hand: what deviates, why, and when the alarm goes."""

import json
from dataclasses import replace

import pytest

from kareus.core.partition import Execution
from kareus.errors import ConfigError, NotFoundError, ScheduleError
from kareus.schedule.bundle import write_bundle
from kareus.train.checks import schedule_checksum
from kareus.train.deviations import Cause
from kareus.train.log import (
    ClockEvent,
    InstructionRecord,
    LogWriter,
    ObservedUnit,
    RankInfo,
    RankLog,
    StepRecord,
    clock_file,
    read_log,
)
from kareus.train.perfetto import combined_trace
from kareus.train.track import track, track_logs
from tests.train.sample import make_schedule, make_workload

WORKLOAD = make_workload(pp=2, tp=2)
SCHEDULE = make_schedule(WORKLOAD)
NUM_STEPS = 8
STEP_NS = 10_000_000_000


def units_of(option):
    """What a faithful execution of an instruction is seen to do."""
    if option.execution is Execution.SEQUENTIAL:
        return tuple(
            ObservedUnit(unit=name, launches=(("none", None),), count=2, mean_s=0.004)
            for name, _ in option.configurations
        )
    return tuple(
        ObservedUnit(
            unit=name,
            launches=((c.launch_point.value, c.sm_allocation),),
            count=4,
            mean_s=0.002,
            spread_s=0.0001,
        )
        for name, c in option.configurations
    )


def make_log(
    rank,
    *,
    slower=1.0,
    only=None,
    clock_share=1.0,
    throttle=(),
    power_w=200.0,
    late_s=0.001,
    device="cuda",
    num_steps=NUM_STEPS,
    slower_from=1,
    energy_j=None,
):
    """A rank's log: instructions at their planned start, times scaled from a step on."""
    stage = rank // 2
    instructions = SCHEDULE.stages[stage].instructions
    options = SCHEDULE.to_plan().choices[stage]
    starts = SCHEDULE.pipeline.start_times_s([i.time_s for s in SCHEDULE.stages
                                              for i in s.instructions])  # fmt: skip
    starts = starts[:8] if stage == 0 else starts[8:]
    steps, events = [], []
    for step in range(1, num_steps + 1):
        begin_ns = step * STEP_NS
        scale = slower if step >= slower_from else 1.0
        records = []
        for position, (setting, option) in enumerate(zip(instructions, options, strict=True)):
            affected = only is None or position in only
            factor = scale if affected else 1.0
            begin_s, duration_s = starts[position] * scale, setting.time_s * factor
            records.append(
                InstructionRecord(
                    name=setting.direction.value,
                    microbatch=setting.microbatch,
                    clock_mhz=setting.clock_mhz,
                    begin_s=begin_s,
                    duration_s=duration_s,
                    units=units_of(option) if step == 2 else None,
                )
            )
            start_ns = begin_ns + round(begin_s * 1e9)
            events.append(
                ClockEvent(
                    time_ns=start_ns + round(late_s * 1e9),
                    event="set",
                    clock_mhz=setting.clock_mhz,
                    took_s=late_s,
                )
            )
            for share in (0.1, 0.5, 0.9):
                events.append(
                    ClockEvent(
                        time_ns=start_ns + round(share * duration_s * 1e9),
                        event="sample",
                        # The first reading still shows the clock before.
                        clock_mhz=300 if share == 0.1 else setting.clock_mhz * clock_share,
                        power_w=0.0 if share == 0.1 else power_w,
                        temperature_c=50,
                        throttle_reasons=tuple(throttle) if affected else (),
                    )
                )
        last = records[-1]
        steps.append(
            StepRecord(
                step=step,
                loss=5.0 - 0.1 * step,
                time_s=last.begin_s + last.duration_s + 0.05,
                pipeline_s=last.begin_s + last.duration_s,
                tokens_per_s=1000.0,
                energy_j=energy_j,
                gradient_norm=1.0,
                learning_rate=1e-3,
                begin_ns=begin_ns,
                instructions=tuple(records),
            )
        )
    return RankLog(
        info=RankInfo(
            rank=rank,
            stage=stage,
            dp_rank=0,
            cp_rank=0,
            tp_rank=rank % 2,
            device=device,
            clocks="applied",
            clocks_mhz=tuple(i.clock_mhz for i in instructions),
            host="node",
            schedule=schedule_checksum(SCHEDULE),
        ),
        steps=tuple(steps),
        ended=True,
        failure=None,
        clock_events=tuple(sorted(events, key=lambda event: event.time_ns)),
    )


def logs(**kwargs):
    return [make_log(rank, **kwargs) for rank in range(4)]


def test_a_run_as_planned_deviates_nowhere():
    report = track_logs(SCHEDULE, logs(energy_j=SCHEDULE.prediction.job.energy_j / 4))
    assert report.schedule_followed is True, report.mismatches
    assert [step.deviation for step in report.steps] == pytest.approx([0.0] * NUM_STEPS, abs=1e-9)
    assert [step.energy_deviation for step in report.steps] == pytest.approx([0.0] * NUM_STEPS)
    assert [stage.deviation for stage in report.stages] == pytest.approx([0.0, 0.0])
    for instruction in report.instructions:
        assert instruction.deviation == pytest.approx(0.0)
        assert instruction.cause is None
        assert instruction.achieved_clock_mhz == instruction.clock_mhz
        assert instruction.energy_j == pytest.approx(200.0 * instruction.time_s)
        setting = SCHEDULE.stages[instruction.stage].instructions[instruction.position]
        assert instruction.planned_energy_j == pytest.approx(
            setting.effective_energy_j + 85.0 * setting.time_s
        )
    assert report.drift.raised is False
    assert report.drift.reason is None
    json.dumps(report.as_document(), allow_nan=False)


def test_drift_raises_the_alarm_and_says_since_when():
    report = track_logs(SCHEDULE, logs(slower=1.2, slower_from=4))
    assert report.drift.raised is True
    assert report.drift.since_step == 4
    assert report.drift.time_deviation == pytest.approx(0.2)
    assert "time +20.0%" in report.drift.reason
    assert track_logs(SCHEDULE, logs(slower=1.2), threshold=0.25).drift.raised is False
    # A single slow step is no drift.
    assert track_logs(SCHEDULE, logs(slower=1.2, slower_from=NUM_STEPS)).drift.raised is False


def test_energy_alone_raises_the_alarm_too():
    report = track_logs(SCHEDULE, logs(energy_j=SCHEDULE.prediction.job.energy_j / 4 * 1.3))
    assert report.drift.raised is True
    assert report.drift.energy_deviation == pytest.approx(0.3)
    assert "time" not in report.drift.reason.partition(":")[2]


@pytest.mark.parametrize(
    ("log", "cause", "detail"),
    [
        ({"throttle": ("sw_power_cap",)}, Cause.THROTTLED, "sw_power_cap"),
        ({"clock_share": 0.8}, Cause.CLOCK_NOT_REACHED, "asked for 1410 MHz, ran at 1128 MHz"),
        ({"late_s": 0.1}, Cause.CLOCK_LATE, "set 100.0 ms after"),
        ({}, Cause.PLAN, "plan again"),
    ],
)
def test_the_cause_is_what_the_readings_support(log, cause, detail):
    report = track_logs(SCHEDULE, logs(slower=1.3, **log))
    found = [i for i in report.instructions if i.clock_mhz == 1410 and i.direction == "forward"]
    assert {i.cause for i in found} == {cause}
    assert all(detail in i.detail for i in found)
    assert {stage.cause for stage in report.stages} == {cause}


def test_a_stage_that_lags_behind_the_others_is_named():
    slow = [make_log(rank, slower=1.5 if rank >= 2 else 1.0) for rank in range(4)]
    report = track_logs(SCHEDULE, slow)
    assert [stage.cause for stage in report.stages] == [None, Cause.STRAGGLING_STAGE]
    assert "stage 1" in report.stages[1].detail


def test_only_the_instruction_that_deviates_gets_a_cause():
    report = track_logs(SCHEDULE, logs(slower=1.5, only={3}, throttle=("hw_slowdown",)))
    assert {(i.position, i.cause) for i in report.instructions if i.cause} == {(3, Cause.THROTTLED)}


def test_on_a_cpu_nothing_is_blamed():
    report = track_logs(SCHEDULE, logs(slower=100.0, device="cpu"))
    assert report.drift.raised is None
    assert not [i for i in report.instructions if i.cause]
    assert report.measurements == ()
    assert any("CPU" in note for note in report.notes)


def test_what_was_measured_can_be_planned_with():
    report = track_logs(SCHEDULE, logs())
    found = {(m.partition, m.configuration): m for m in report.measurements}
    assert len(found) == len(report.measurements)
    wanted = {
        (name, configuration)
        for stage in SCHEDULE.to_plan().choices
        for option in stage
        for name, configuration in option.configurations
    }
    assert set(found) == wanted
    for (name, _), measurement in found.items():
        assert measurement.time_s == pytest.approx(0.004 if name.startswith("seq_") else 0.002)
        assert measurement.energy_j == pytest.approx(200.0 * measurement.time_s)
        assert measurement.source == "measured"
    unread = track_logs(SCHEDULE, [replace(log, clock_events=()) for log in logs()])
    assert {m.energy_j for m in unread.measurements} == {None}


def test_missing_ranks_leave_gaps_not_zeros():
    report = track_logs(SCHEDULE, [*logs(energy_j=5.0)[:3]])
    assert report.schedule_followed is None
    assert {step.energy_j for step in report.steps} == {None}
    assert report.drift.energy_deviation is None


def test_an_instruction_out_of_order_or_at_another_launch_point_is_found():
    swapped = logs()
    first = swapped[0].steps[2]
    reordered = (first.instructions[1], first.instructions[0], *first.instructions[2:])
    steps = list(swapped[0].steps)
    steps[2] = replace(first, instructions=reordered)
    swapped[0] = replace(swapped[0], steps=tuple(steps))
    report = track_logs(SCHEDULE, swapped)
    assert report.schedule_followed is False
    assert report.mismatches[0].startswith("rank 0, step 3, position 0: planned forward of")

    moved = logs()
    record = moved[3].steps[1]
    nanobatched = next(
        i for i, option in enumerate(SCHEDULE.to_plan().choices[1])
        if option.execution is Execution.NANOBATCH
    )  # fmt: skip
    instruction = record.instructions[nanobatched]
    unit = replace(instruction.units[0], launches=(("linear_1", 7),))
    changed = list(record.instructions)
    changed[nanobatched] = replace(instruction, units=(unit, *instruction.units[1:]))
    steps = list(moved[3].steps)
    steps[1] = replace(record, instructions=tuple(changed))
    moved[3] = replace(moved[3], steps=tuple(steps))
    (mismatch,) = track_logs(SCHEDULE, moved).mismatches
    assert mismatch.startswith(f"rank 3, step 2, position {nanobatched}: ")
    assert "linear_1 on 7 SMs" in mismatch


def test_a_run_without_a_trace_is_not_said_to_follow():
    untraced = []
    for log in logs():
        steps = [
            replace(r, instructions=tuple(replace(i, units=None) for i in r.instructions))
            for r in log.steps
        ]
        untraced.append(replace(log, steps=tuple(steps)))
    report = track_logs(SCHEDULE, untraced)
    assert report.schedule_followed is False
    assert "not recorded" in report.mismatches[0]


def test_logs_survive_the_disk_and_a_crash(tmp_path):
    folder = tmp_path / "log"
    for log in logs():
        writer = LogWriter(folder, log.info.rank)
        writer.start(log.info)
        for record in log.steps:
            writer.step(record)
        writer.end()
        writer.close()
        lines = [
            json.dumps({name: getattr(e, name) for name in ClockEvent.__dataclass_fields__})
            for e in log.clock_events
        ]
        clock_file(folder, log.info.rank).write_text("\n".join(lines))
    bundle = write_bundle(tmp_path / "bundle.zip", SCHEDULE)
    path = folder / "rank-00001.jsonl"
    path.write_bytes(path.read_bytes()[:-200])  # cut off in the middle of a line
    report = track(bundle, folder)
    # The last step of rank 1 is gone; what all ranks have is there.
    assert [step.step for step in report.steps] == list(range(1, NUM_STEPS))
    assert any("1 lines" in note for note in report.notes)
    # Writing goes on with a line of its own.
    writer = LogWriter(folder, 1)
    writer.failed("for a test", peer=False)
    writer.close()
    assert read_log(folder)[1].failure == "for a test"


def test_what_cannot_be_tracked_is_refused(tmp_path):
    bundle = write_bundle(tmp_path / "bundle.zip", SCHEDULE)
    with pytest.raises(NotFoundError, match="holds no training log"):
        track(bundle, tmp_path)
    other = make_schedule(WORKLOAD, clocks_mhz=(1200,))
    with pytest.raises(ScheduleError, match="give the bundle that was trained with"):
        track_logs(other, logs())
    with pytest.raises(ScheduleError, match="holds no step"):
        track_logs(SCHEDULE, [replace(make_log(0), steps=(), failure="no memory")])
    with pytest.raises(ConfigError, match="threshold 0"):
        track_logs(SCHEDULE, logs(), threshold=0)


def test_plan_and_step_share_one_trace():
    document = json.loads(combined_trace(SCHEDULE, logs(slower=1.5), step=5))
    events = document["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {
        "Planned: Plan 3 of study sample",
        "Actual: step 5 (cuda)",
    }
    spans = {
        pid: {(e["tid"], e["name"]): e for e in events if e["ph"] == "X" and e["pid"] == pid}
        for pid in (0, 1)
    }
    assert set(spans[0]) == set(spans[1])
    assert len(spans[0]) == 16
    for key, planned in spans[0].items():
        actual = spans[1][key]
        assert actual["dur"] == pytest.approx(1.5 * planned["dur"])
        assert actual["ts"] == pytest.approx(1.5 * planned["ts"])
        assert actual["args"]["clock_mhz"] == planned["args"]["clock_mhz"]
        assert actual["args"]["deviation"] == pytest.approx(0.5)
