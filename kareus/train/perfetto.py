"""Planned and actual timeline of a step in one Chrome trace, which opens in Perfetto.

Process 0 is the plan, process 1 the training step; one thread per stage in both, so that the two
lie below each other on one axis of time.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kareus.core.timeline import build_timeline, describe_configuration
from kareus.schedule.document import Schedule
from kareus.schedule.timeline import chrome_trace
from kareus.train.log import RankLog, StepRecord

_PLANNED, _ACTUAL = 0, 1


def combined_trace(schedule: Schedule, logs: Sequence[RankLog], *, step: int | None = None) -> str:
    """Return plan and step in Chrome's trace event format.

    Args:
        schedule: The schedule.
        logs: The ranks' logs; of each stage the lowest rank is shown.
        step: Which step; None for the last one.
    """
    title = f"Plan {schedule.plan} of study {schedule.provenance.study}"
    rows = build_timeline(
        schedule.to_plan(), schedule.pipeline, static_power_w=schedule.provenance.static_power_w
    )
    document = json.loads(chrome_trace(rows, title=f"Planned: {title}"))
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            event["name"] = f"Planned: {event['name']}"
    document["traceEvents"] += actual_events(schedule, logs, step=step)
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def actual_events(
    schedule: Schedule, logs: Sequence[RankLog], *, step: int | None = None
) -> list[dict[str, Any]]:
    """Return the trace events of a step as it ran; empty if no rank has it.

    Stages on one machine share its clock; those of others are aligned at the step's beginning.
    """
    shown: dict[int, tuple[RankLog, StepRecord]] = {}
    for log in sorted(logs, key=lambda log: log.info.rank):
        record = _step_of(log, step)
        if record is not None and log.info.stage not in shown:
            shown[log.info.stage] = (log, record)
    if not shown:
        return []
    first_log, first = shown[min(shown)]
    events: list[dict[str, Any]] = [
        {
            "ph": "M", "pid": _ACTUAL, "name": "process_name",
            "args": {"name": f"Actual: step {first.step} ({first_log.info.device})"},
        }
    ]  # fmt: skip
    hosts = {log.info.host for log, _ in shown.values()}
    earliest_ns = min(record.begin_ns for _, record in shown.values())
    for stage, (log, record) in sorted(shown.items()):
        events += [
            {
                "ph": "M", "pid": _ACTUAL, "tid": stage, "name": "thread_name",
                "args": {"name": f"Stage {stage} (rank {log.info.rank})"},
            },
            {
                "ph": "M", "pid": _ACTUAL, "tid": stage, "name": "thread_sort_index",
                "args": {"sort_index": stage},
            },
        ]  # fmt: skip
        offset_s = (record.begin_ns - earliest_ns) / 1e9 if len(hosts) == 1 else 0.0
        planned = schedule.stages[stage].instructions
        options = schedule.to_plan().choices[stage]
        for instruction, plan, option in zip(record.instructions, planned, options, strict=False):
            start_us = (offset_s + instruction.begin_s) * 1e6
            events.append(
                {
                    "ph": "X",
                    "pid": _ACTUAL,
                    "tid": stage,
                    "ts": start_us,
                    "dur": instruction.duration_s * 1e6,
                    "name": f"{instruction.name} {instruction.microbatch}",
                    "cat": instruction.name,
                    "args": {
                        "stage": stage,
                        "rank": log.info.rank,
                        "microbatch": instruction.microbatch,
                        "clock_mhz": instruction.clock_mhz,
                        "execution": plan.execution.value,
                        "planned_s": plan.time_s,
                        "deviation": instruction.duration_s / plan.time_s - 1.0,
                        **{
                            name: describe_configuration(configuration)
                            for name, configuration in option.configurations
                        },
                    },
                }
            )
            events.append(
                {
                    "ph": "C", "pid": _ACTUAL, "ts": start_us,
                    "name": f"Actual: Clock of stage {stage} (MHz)",
                    "args": {"MHz": instruction.clock_mhz},
                }
            )  # fmt: skip
    return events


def write_timeline(path: Path, schedule: Schedule, logs: Sequence[RankLog]) -> Path | None:
    """Write the last step beside the plan; None if no step was logged."""
    if not any(log.steps for log in logs):
        return None
    path.write_text(combined_trace(schedule, logs))
    return path


def _step_of(log: RankLog, step: int | None) -> StepRecord | None:
    if step is None:
        return log.steps[-1] if log.steps else None
    return next((record for record in log.steps if record.step == step), None)
