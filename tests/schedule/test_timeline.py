import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.pipeline import one_f_one_b
from kareus.schedule.timeline import build_timeline, chrome_trace, slack_times_s
from tests.schedule.sample import STATIC_POWER_W, make_pipeline, make_plan, make_workload


def rows_of(workload, **kwargs):
    plan = make_plan(workload, **kwargs)
    return plan, build_timeline(plan, make_pipeline(workload), static_power_w=STATIC_POWER_W)


def test_rows_fill_the_iteration_and_account_for_its_energy():
    workload = make_workload(pp=4, num_microbatches=6)
    plan, rows = rows_of(workload, slow_first_mhz=900)
    assert max(row.start_s + row.duration_s for row in rows) == plan.iteration_time_s
    busy_j = math.fsum(row.energy_j for row in rows)
    idle_s = 4 * plan.iteration_time_s - math.fsum(row.duration_s for row in rows)
    assert busy_j + STATIC_POWER_W * idle_s == pytest.approx(plan.pipeline_energy_j)
    for stage in range(4):
        lane = [row for row in rows if row.stage == stage]
        assert [row.position for row in lane] == list(range(12))
        for before, after in itertools.pairwise(lane):
            assert after.start_s >= before.start_s + before.duration_s


def test_one_stage_is_critical_throughout():
    _, rows = rows_of(make_workload(pp=1))
    assert all(row.critical for row in rows)


def test_critical_instructions_make_a_path_of_the_iteration_time():
    plan, rows = rows_of(make_workload(pp=2, num_microbatches=4), slow_first_mhz=900)
    critical = [row for row in rows if row.critical]
    assert 0 < len(critical) < len(rows)
    assert min(row.start_s for row in critical) == 0.0
    assert max(row.start_s + row.duration_s for row in critical) == plan.iteration_time_s


@settings(max_examples=40, deadline=None)
@given(data=st.data(), pp=st.integers(1, 4), microbatches=st.integers(1, 5))
def test_slack_is_what_an_instruction_may_last_longer(data, pp, microbatches):
    pipeline = one_f_one_b(pp, microbatches)
    times = [data.draw(st.floats(0.01, 1.0, allow_nan=False)) for _ in pipeline.instructions]
    slacks = slack_times_s(pipeline, times)
    makespan = pipeline.makespan_s(times)
    assert min(slacks) == 0.0
    for index, slack in enumerate(slacks):
        longer = list(times)
        longer[index] += slack
        assert pipeline.makespan_s(longer) == pytest.approx(makespan, rel=1e-12)
        longer[index] += 1e-3
        assert pipeline.makespan_s(longer) > makespan


def test_trace_has_a_lane_per_stage_and_an_event_per_instruction():
    workload = make_workload(pp=2, num_microbatches=4)
    plan, rows = rows_of(workload)
    trace = json.loads(chrome_trace(rows, title="Plan 0"))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 16
    assert {event["tid"] for event in events} == {0, 1}
    end_us = max(event["ts"] + event["dur"] for event in events)
    assert end_us == pytest.approx(plan.iteration_time_s * 1e6)
    assert events[0]["args"]["fwd_attn"] == "norm_0, 3 SMs"
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["Stage 0", "Stage 1"]
