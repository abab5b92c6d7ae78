"""The planned timeline of one iteration: when each instruction starts, and how much slack it has.

Every instruction starts as early as the precedence graph allows. Critical are the instructions
with exactly zero slack; slack is computed in integers (every float is a whole number of powers of
two), because a tolerance would either miss the path or colour its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from kareus.core.configuration import Configuration
from kareus.core.partition import Direction, Execution
from kareus.core.pipeline import Pipeline
from kareus.core.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineRow:
    """One instruction on the timeline.

    Attributes:
        stage: The lane.
        position: Place in the stage's execution order, from 0.
        direction: Forward or backward.
        microbatch: Which microbatch, from 0.
        chunk: Model chunk of interleaved orders; 0 otherwise.
        start_s: Earliest start, seconds from the iteration's beginning.
        duration_s: Seconds.
        slack_s: Seconds it could last longer without lengthening the iteration.
        clock_mhz: SM clock.
        execution: Nanobatch or sequential.
        effective_energy_j: Dynamic energy of one GPU, joules.
        energy_j: Dynamic + static energy of one GPU while it runs.
        average_power_w: `energy_j` over its duration.
        critical: Whether its slack is exactly zero.
        configurations: (partition, configuration) as in the plan.
    """

    stage: int
    position: int
    direction: Direction
    microbatch: int
    chunk: int
    start_s: float
    duration_s: float
    slack_s: float
    clock_mhz: int
    execution: Execution
    effective_energy_j: float
    energy_j: float
    average_power_w: float
    critical: bool
    configurations: tuple[tuple[str, Configuration], ...]


def build_timeline(
    plan: Plan, pipeline: Pipeline, *, static_power_w: float
) -> tuple[TimelineRow, ...]:
    """Return the rows of a plan's timeline, stage by stage in execution order.

    Args:
        plan: The plan.
        pipeline: The pipeline its choices belong to.
        static_power_w: Static power of one GPU in watts.
    """
    options = [option for stage in plan.choices for option in stage]
    starts_s = pipeline.start_times_s([option.time_s for option in options])
    slacks_s = slack_times_s(pipeline, [option.time_s for option in options])
    rows = []
    index = 0
    for stage in pipeline.stages:
        for position, instruction in enumerate(stage):
            option = options[index]
            energy_j = option.effective_energy_j + static_power_w * option.time_s
            rows.append(
                TimelineRow(
                    stage=instruction.stage,
                    position=position,
                    direction=instruction.direction,
                    microbatch=instruction.microbatch,
                    chunk=instruction.chunk,
                    start_s=starts_s[index],
                    duration_s=option.time_s,
                    slack_s=slacks_s[index],
                    clock_mhz=option.clock_mhz,
                    execution=option.execution,
                    effective_energy_j=option.effective_energy_j,
                    energy_j=energy_j,
                    average_power_w=energy_j / option.time_s,
                    critical=slacks_s[index] == 0.0,
                    configurations=option.configurations,
                )
            )
            index += 1
    return tuple(rows)


def slack_times_s(pipeline: Pipeline, durations_s: Sequence[float]) -> list[float]:
    """Return how much longer each instruction could last without lengthening the iteration.

    Args:
        pipeline: The pipeline.
        durations_s: Seconds per instruction, in the order of `pipeline.instructions`.

    Returns:
        Seconds, exact before the last rounding: 0.0 exactly for critical instructions.
    """
    fractions = [Fraction(duration) for duration in durations_s]
    unit = lcm(*(fraction.denominator for fraction in fractions))
    ticks = [int(fraction * unit) for fraction in fractions]
    predecessors, order = pipeline.predecessors, pipeline.topological_order
    starts = [0] * len(ticks)
    for position in order:
        starts[position] = max(
            (starts[before] + ticks[before] for before in predecessors[position]), default=0
        )
    makespan = max(start + tick for start, tick in zip(starts, ticks, strict=True))
    latest_ends = [makespan] * len(ticks)
    for position in reversed(order):
        latest_start = latest_ends[position] - ticks[position]
        for before in predecessors[position]:
            latest_ends[before] = min(latest_ends[before], latest_start)
    return [float(Fraction(latest_ends[i] - starts[i] - ticks[i], unit)) for i in range(len(ticks))]


def describe_configuration(configuration: Configuration) -> str:
    """Return a configuration without its clock in words, such as `norm_0, 12 SMs`."""
    if configuration.launch_point is None:
        return "no overlap to place"
    return f"{configuration.launch_point.value}, {configuration.sm_allocation} SMs"
