"""The planned timeline of one iteration as a Chrome trace, which opens in Perfetto."""

import json
from collections.abc import Sequence

from kareus.core.timeline import (
    TimelineRow,
    build_timeline,
    describe_configuration,
    slack_times_s,
)

__all__ = ["TimelineRow", "build_timeline", "chrome_trace", "slack_times_s"]


def chrome_trace(rows: Sequence[TimelineRow], *, title: str) -> str:
    """Return the timeline in Chrome's trace event format.

    One process, one thread per stage, one complete event per instruction with its clock, energy and
    configurations, and one counter of the clock per stage. Times in microseconds, as the format
    demands.
    """
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": title}}
    ]
    for stage in sorted({row.stage for row in rows}):
        events.append(
            {
                "ph": "M",
                "pid": 0,
                "tid": stage,
                "name": "thread_name",
                "args": {"name": f"Stage {stage}"},
            }
        )
        events.append(
            {
                "ph": "M",
                "pid": 0,
                "tid": stage,
                "name": "thread_sort_index",
                "args": {"sort_index": stage},
            }
        )
    for row in rows:
        events.append(
            {
                "ph": "X",
                "pid": 0,
                "tid": row.stage,
                "ts": row.start_s * 1e6,
                "dur": row.duration_s * 1e6,
                "name": f"{row.direction} {row.microbatch}",
                "cat": row.direction.value,
                "args": {
                    "stage": row.stage,
                    "microbatch": row.microbatch,
                    "clock_mhz": row.clock_mhz,
                    "execution": row.execution.value,
                    "energy_j": row.energy_j,
                    "effective_energy_j": row.effective_energy_j,
                    "average_power_w": row.average_power_w,
                    "slack_s": row.slack_s,
                    "critical": row.critical,
                    **{
                        partition: describe_configuration(configuration)
                        for partition, configuration in row.configurations
                    },
                },
            }
        )
        events.append(
            {
                "ph": "C",
                "pid": 0,
                "ts": row.start_s * 1e6,
                "name": f"Clock of stage {row.stage} (MHz)",
                "args": {"MHz": row.clock_mhz},
            }
        )
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"
