"""The four hooks: they walk the schedule, and stop a loop that does not follow it."""

import pytest

from kareus.core.partition import Direction, Execution
from kareus.errors import ScheduleError
from kareus.schedule.bundle import write_bundle
from kareus.train.clocks import RecordedClocks
from kareus.train.runtime import ScheduleRuntime, planned_instructions
from tests.benchmarks.bench_hooks import measure
from tests.train.sample import make_schedule, make_workload

WORKLOAD = make_workload(pp=2, tp=2)
SCHEDULE = make_schedule(WORKLOAD)


def walk(runtime, *, stage=0, num_steps=1):
    for _ in range(num_steps):
        runtime.on_step_begin()
        for instruction in SCHEDULE.stages[stage].instructions:
            runtime.on_instruction_begin(instruction.direction.value, instruction.microbatch)
            runtime.on_instruction_end(instruction.direction.value)
        runtime.on_step_end()


@pytest.mark.parametrize("stage", [0, 1])
def test_every_instruction_gets_its_configurations_and_clocks_only_when_they_change(stage):
    told, clocks = [], RecordedClocks()
    runtime = ScheduleRuntime(
        SCHEDULE,
        stage=stage,
        configure=lambda direction, settings: told.append((direction, settings)),
        request_clock=clocks.request,
    )
    walk(runtime, stage=stage, num_steps=3)
    planned = SCHEDULE.stages[stage].instructions
    assert len(told) == 3 * len(planned)
    for (direction, settings), setting in zip(told, planned * 3, strict=True):
        assert direction is setting.direction
        assert settings.execution is setting.execution
        for partition in setting.partitions:
            configuration = settings.configurations[partition.partition]
            assert configuration.launch_point is partition.launch_point
            assert configuration.sm_allocation == partition.sm_allocation
    assert any(settings.execution is Execution.SEQUENTIAL for _, settings in told)
    # By hand: every clock that differs from the one before.
    changes, before = [], None
    for setting in planned * 3:
        if setting.clock_mhz != before:
            changes.append(setting.clock_mhz)
        before = setting.clock_mhz
    assert clocks.requests_mhz == changes


def test_equal_settings_are_one_object_so_that_the_engine_checks_them_once():
    schedule = make_schedule(make_workload(num_microbatches=4), clocks_mhz=(1200,))
    forwards = [p for p in planned_instructions(schedule, 0) if p.direction is Direction.FORWARD]
    assert len({id(p.settings) for p in forwards if p.settings.execution is not
                Execution.SEQUENTIAL}) == 1  # fmt: skip


def test_times_lie_within_the_step():
    runtime = ScheduleRuntime(SCHEDULE, stage=0)
    walk(runtime)
    length_s, timings = runtime.timings()
    assert len(timings) == len(SCHEDULE.stages[0].instructions)
    end_s = 0.0
    for timing in timings:
        assert timing.begin_s >= end_s and timing.duration_s >= 0
        end_s = timing.begin_s + timing.duration_s
    assert end_s <= length_s


def test_another_instruction_than_planned_stops_with_both_named():
    runtime = ScheduleRuntime(SCHEDULE, stage=0)
    runtime.on_step_begin()
    with pytest.raises(
        ScheduleError,
        match=r"stage 0, step 1, position 0: the training loop begins the backward, but the "
        r"schedule has the forward of microbatch 0; use a bundle .*pp 2, 4 microbatches",
    ):
        runtime.on_instruction_begin("backward")


def test_another_microbatch_stops():
    runtime = ScheduleRuntime(SCHEDULE, stage=0)
    runtime.on_step_begin()
    with pytest.raises(ScheduleError, match=r"forward of microbatch 1, but .* microbatch 0"):
        runtime.on_instruction_begin("forward", 1)


def test_too_few_and_too_many_instructions_stop():
    runtime = ScheduleRuntime(SCHEDULE, stage=1)
    runtime.on_step_begin()
    runtime.on_instruction_begin("forward")
    runtime.on_instruction_end("forward")
    with pytest.raises(ScheduleError, match="after 1 instructions, but the schedule has 8"):
        runtime.on_step_end()

    runtime = ScheduleRuntime(SCHEDULE, stage=0)
    runtime.on_step_begin()
    for instruction in SCHEDULE.stages[0].instructions:
        runtime.on_instruction_begin(instruction.direction.value)
        runtime.on_instruction_end(instruction.direction.value)
    with pytest.raises(ScheduleError, match=r"position 8: .* the schedule has 8 instructions"):
        runtime.on_instruction_begin("forward")


def test_hooks_out_of_turn_stop():
    runtime = ScheduleRuntime(SCHEDULE, stage=0)
    with pytest.raises(ScheduleError, match="no step has begun"):
        runtime.on_instruction_begin("forward")
    runtime.on_step_begin()
    with pytest.raises(ScheduleError, match="the one before has not ended"):
        runtime.on_step_begin()
    with pytest.raises(ScheduleError, match="ends the forward, but nothing is running"):
        runtime.on_instruction_end("forward")
    runtime.on_instruction_begin("forward")
    with pytest.raises(ScheduleError, match="the forward before has not ended"):
        runtime.on_instruction_begin("forward")
    with pytest.raises(ScheduleError, match="ends the backward, but the forward is running"):
        runtime.on_instruction_end("backward")


def test_stage_that_is_not_there_is_refused():
    with pytest.raises(ScheduleError, match="has 2 stages, this process is stage 2"):
        ScheduleRuntime(SCHEDULE, stage=2)


def test_clocks_from_elsewhere_replace_the_schedules():
    clocks = RecordedClocks()
    runtime = ScheduleRuntime(
        SCHEDULE, stage=0, request_clock=clocks.request, clocks_mhz=[1000] * 8
    )
    walk(runtime)
    assert clocks.requests_mhz == [1000]
    with pytest.raises(ScheduleError, match="3 clocks are given for the 8 instructions"):
        ScheduleRuntime(SCHEDULE, stage=0, clocks_mhz=[1000] * 3)


def test_bundle_for_another_job_is_refused(tmp_path):
    path = write_bundle(tmp_path / "bundle", SCHEDULE)
    runtime = ScheduleRuntime.from_bundle(path, stage=1, num_stages=2, num_microbatches=4)
    assert runtime.plan[0].name == "forward"
    with pytest.raises(ScheduleError, match="made for 2 pipeline stages, this job has 4"):
        ScheduleRuntime.from_bundle(path, stage=0, num_stages=4, num_microbatches=4)
    with pytest.raises(ScheduleError, match="made for 4 microbatches, this job has 8"):
        ScheduleRuntime.from_bundle(path, stage=0, num_stages=2, num_microbatches=8)


def test_hooks_cost_less_than_50_microseconds_per_instruction():
    figures = measure(num_steps=100)
    assert figures["median_us"] < figures["limit_us"], figures
