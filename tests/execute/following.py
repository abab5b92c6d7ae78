"""Whether what was traced is what was asked for: observed launches against settings."""

from collections import Counter
from collections.abc import Sequence

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import Execution
from kareus.execute.settings import InstructionSettings
from kareus.execute.trace import EventKind, Launch, Trace


def find_deviations(trace: Trace, told: Sequence[InstructionSettings]) -> tuple[str, ...]:
    """Return where the traced instructions differ from what they were told, in words.

    Compared are: that nanobatches or a whole microbatch were executed as told, that every partition
    told to launch a collective launched exactly one per execution, at the launch point and with the
    SM allocation asked for. Clocks are not the engine's business.

    Args:
        trace: The trace.
        told: The settings of each of its instructions, in order.

    Returns:
        One line per deviation; empty if there is none.
    """
    found: list[str] = []
    num_instructions = sum(e.kind is EventKind.INSTRUCTION_STARTED for e in trace.events)
    if num_instructions != len(told):
        found.append(f"{num_instructions} instructions were executed, {len(told)} were told")
    launches = trace.launches()
    for number, settings in enumerate(told[:num_instructions]):
        of_instruction = [launch for launch in launches if launch.instruction == number]
        units = Counter(
            (event.unit, event.nanobatch is not None)
            for event in trace.events
            if event.kind is EventKind.UNIT_STARTED and event.instruction == number
        )
        found += (
            f"instruction {number}: {text}" for text in _deviations(of_instruction, units, settings)
        )
    return tuple(found)


def _deviations(
    launches: list[Launch], units: Counter[tuple[str, bool]], settings: InstructionSettings
) -> list[str]:
    """The deviations of one instruction."""
    found = []
    nanobatched = settings.execution is Execution.NANOBATCH
    for unit, was_nanobatch in units:
        if was_nanobatch is not nanobatched:
            found.append(f"{unit} was executed, which is not {settings.execution}")
    launched = Counter(launch.unit for launch in launches)
    for name, configuration in settings.configurations.items():
        executed = units[name, nanobatched]
        if nanobatched and configuration.launch_point is not None and launched[name] != executed:
            found.append(f"{name} ran {executed} times and launched {launched[name]} collectives")
    for launch in launches:
        asked = settings.configurations.get(launch.unit)
        if asked is None:
            continue
        where = f"{launch.unit} of layer {launch.layer}, nanobatch {launch.nanobatch}"
        point = asked.launch_point or LaunchPoint.NONE
        if launch.launch_point != point:
            found.append(f"{where} launched at {launch.launch_point}, told was {point}")
        if launch.collective.sm_allocation != asked.sm_allocation:
            found.append(
                f"{where} launched with {launch.collective.sm_allocation} SMs, "
                f"told was {asked.sm_allocation}"
            )
    return found
