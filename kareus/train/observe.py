"""What a trace says about a step: per instruction, where collectives were seen to be launched."""

import statistics
from collections import defaultdict

from kareus.execute.trace import EventKind, Trace, TraceEvent
from kareus.train.log import ObservedUnit


def observed_units(
    trace: Trace, num_instructions: int
) -> tuple[tuple[ObservedUnit, ...], ...] | None:
    """Return the units of each instruction of a traced step, in order of first execution.

    A trace numbers its instructions in the order they ran, so they line up with the schedule's.

    Args:
        trace: The record of one step.
        num_instructions: Instructions of the step.

    Returns:
        None if the trace holds another number of instructions.
    """
    if len({event.instruction for event in trace.events}) != num_instructions:
        return None
    launches: list[dict[str, list[tuple[str, int | None]]]] = [
        defaultdict(list) for _ in range(num_instructions)
    ]
    for launch in trace.launches():
        seen = launches[launch.instruction][launch.unit]
        entry = (launch.launch_point, launch.collective.sm_allocation)
        if entry not in seen:
            seen.append(entry)
    times = _unit_times(trace, num_instructions)
    return tuple(
        tuple(
            ObservedUnit(
                unit=unit,
                launches=tuple(launches[position].get(unit, ())),
                count=len(times[position].get(unit, ())) or 1,
                mean_s=_mean(times[position].get(unit, ())),
                spread_s=_spread(times[position].get(unit, ())),
            )
            for unit in dict.fromkeys((*times[position], *launches[position]))
        )
        for position in range(num_instructions)
    )


def _unit_times(trace: Trace, num_instructions: int) -> list[dict[str, list[float]]]:
    """Seconds of every execution of every unit of every instruction."""
    times: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(num_instructions)]
    started: TraceEvent | None = None
    for event in trace.events:
        if event.kind is EventKind.UNIT_STARTED:
            started = event
        elif event.kind is EventKind.UNIT_ENDED and started is not None:
            times[event.instruction][event.unit].append(_between_s(started, event))
            started = None
    return times


def _between_s(begin: TraceEvent, end: TraceEvent) -> float:
    """Seconds between two events, of the GPU where it took them."""
    if begin.cuda_event is not None and end.cuda_event is not None:
        end.cuda_event.synchronize()
        return float(begin.cuda_event.elapsed_time(end.cuda_event)) / 1e3
    return (end.host_time_ns - begin.host_time_ns) / 1e9


def _mean(times_s: list[float] | tuple[()]) -> float | None:
    return statistics.fmean(times_s) if times_s else None


def _spread(times_s: list[float] | tuple[()]) -> float | None:
    return statistics.stdev(times_s) if len(times_s) > 1 else None
