"""The two list files of a schedule: `freqs_pipeline_NNNNN.py` and `scheds_pipeline_NNNNN.py`.

Both hold one Python list literal (one list per stage, instructions in pipeline order) and comment
lines with the plan's costs. The first gives each instruction's clock and is what a Zeus
pipeline-frequency-optimizer server loads; the second gives, per partition, a string
`launch-end-SMs-threads` such as `norm_0-none-12-1024`. Files are read as literals, never executed,
and every refusal names the file, the stage and the position, both counted from 0.
"""

import ast
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.core.partition import Direction
from kareus.core.pipeline import Pipeline, one_f_one_b
from kareus.core.workload import Recompute
from kareus.errors import ScheduleError
from kareus.schedule.entries import (
    FORWARD_CP,
    NOT_OVERLAPPED,
    THREADS_PER_BLOCK,
    LaunchEntry,
    PartitionLayout,
    parse_entry,
    partition_layout,
    shorten,
)

__all__ = [
    "MAX_FILE_BYTES",
    "NOT_OVERLAPPED",
    "THREADS_PER_BLOCK",
    "Clocks",
    "Costs",
    "FrequencyFile",
    "LaunchEntry",
    "LaunchFile",
    "Launches",
    "PartitionLayout",
    "decode",
    "format_frequencies",
    "format_launches",
    "frequency_file_name",
    "launch_file_name",
    "parse_entry",
    "parse_frequencies",
    "parse_launches",
    "partition_layout",
    "read_frequencies",
    "read_launches",
]

MAX_FILE_BYTES = 8 * 2**20
"""Larger list files are refused unread: 16 stages of 128 microbatches need about 1.5 MB."""


_COMMENT = re.compile(
    r"#\s*Iteration\s+(?P<plan>\d+)\s+(?P<what>cost change|total cost with P2P|total cost)\s*:"
    r"\s*(?P<value>[-+.\deE]+)\s*"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What the comment lines say.

    Attributes:
        plan: The plan's number.
        change_j: Effective energy above the next slower plan's, in joules.
        effective_energy_j: Sum of dynamic energies, one GPU per stage.
        pipeline_energy_j: Effective energy + stages x static power x iteration time.
    """

    plan: int
    change_j: float
    effective_energy_j: float
    pipeline_energy_j: float

    def comments(self) -> str:
        """Return the three comment lines."""
        return (
            f"# Iteration {self.plan} cost change: {self.change_j!r}\n"
            f"# Iteration {self.plan} total cost: {self.effective_energy_j!r}\n"
            f"# Iteration {self.plan} total cost with P2P: {self.pipeline_energy_j!r}\n"
        )


Clocks = tuple[tuple[tuple[Direction, int], ...], ...]
"""Per stage, in pipeline order: (direction, clock in MHz)."""

Launches = tuple[tuple[tuple[Direction, tuple[LaunchEntry, ...]], ...], ...]
"""Per stage, in pipeline order: (direction, entries in the order of the layout)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FrequencyFile:
    """The contents of a `freqs_` file; costs are None where the comments are missing."""

    clocks: Clocks
    costs: Costs | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchFile:
    """The contents of a `scheds_` file; costs are None where the comments are missing."""

    launches: Launches
    layout: PartitionLayout
    costs: Costs | None


def frequency_file_name(plan: int) -> str:
    """Return `freqs_pipeline_NNNNN.py`."""
    return f"freqs_pipeline_{plan:05d}.py"


def launch_file_name(plan: int) -> str:
    """Return `scheds_pipeline_NNNNN.py`."""
    return f"scheds_pipeline_{plan:05d}.py"


def format_frequencies(clocks: Clocks, costs: Costs) -> str:
    """Return the text of a `freqs_` file."""
    stages = [repr([(direction.value, clock) for direction, clock in stage]) for stage in clocks]
    return _format(stages, costs)


def format_launches(launches: Launches, layout: PartitionLayout, costs: Costs) -> str:
    """Return the text of a `scheds_` file.

    Under recompute, instructions stand in pipeline order; without, as one (forward, backward) pair
    per microbatch, the n-th forward with the n-th backward of the stage.
    """
    stages = []
    for stage in launches:
        tuples = [(direction.value, *map(str, entries)) for direction, entries in stage]
        if layout.recompute is Recompute.FULL:
            stages.append(repr(tuples))
        else:
            forwards = [entry for entry in tuples if entry[0] == Direction.FORWARD]
            backwards = [entry for entry in tuples if entry[0] == Direction.BACKWARD]
            stages.append(repr(list(zip(forwards, backwards, strict=True))))
    return _format(stages, costs)


def read_frequencies(path: Path, pipeline: Pipeline | None = None) -> FrequencyFile:
    """Read a `freqs_` file.

    Args:
        path: The file.
        pipeline: What it must fit; None for the 1F1B pipeline of as many stages and microbatches
            as it holds.

    Raises:
        ScheduleError: It is not such a file, or does not fit the pipeline.
    """
    return parse_frequencies(_read(path), path.name, pipeline)


def read_launches(path: Path, pipeline: Pipeline | None = None) -> LaunchFile:
    """Read a `scheds_` file; see `read_frequencies`. The layout follows from its tuples."""
    return parse_launches(_read(path), path.name, pipeline)


def parse_frequencies(text: str, name: str, pipeline: Pipeline | None = None) -> FrequencyFile:
    """Parse the text of a `freqs_` file; `name` is what messages call it."""
    stages = _stage_lists(text, name)
    clocks: list[tuple[tuple[Direction, int], ...]] = []
    for stage, items in enumerate(stages):
        parsed = []
        for position, item in enumerate(items):
            place = _place(name, stage, position)
            if not (isinstance(item, tuple | list) and len(item) == 2):
                raise ScheduleError(
                    f"{place}: {shorten(item)} is not a pair ('forward'|'backward', MHz)"
                )
            direction, clock = _direction(item[0], place), item[1]
            if not isinstance(clock, int) or isinstance(clock, bool) or clock <= 0:
                raise ScheduleError(
                    f"{place}: clock {shorten(clock)} is not a whole number of MHz above 0"
                )
            parsed.append((direction, clock))
        clocks.append(tuple(parsed))
    _check_order([[direction for direction, _ in stage] for stage in clocks], name, pipeline)
    return FrequencyFile(clocks=tuple(clocks), costs=_costs(text))


def parse_launches(text: str, name: str, pipeline: Pipeline | None = None) -> LaunchFile:
    """Parse the text of a `scheds_` file; `name` is what messages call it."""
    stages = _stage_lists(text, name)
    first = stages[0][0]
    paired = isinstance(first, tuple | list) and bool(first) and isinstance(first[0], tuple | list)
    recompute = Recompute.NONE if paired else Recompute.FULL
    sample = first[0] if paired and isinstance(first, tuple | list) else first
    cp = 2 if isinstance(sample, tuple | list) and len(sample) == 1 + len(FORWARD_CP) else 1
    layout = partition_layout(recompute, cp=cp)
    parsed: list[list[tuple[Direction, tuple[LaunchEntry, ...]]]] = []
    for stage, items in enumerate(stages):
        instructions = []
        for position, item in enumerate(items):
            place = _place(name, stage, position)
            if not paired:
                instructions.append(_instruction(item, layout, place))
                continue
            if not (isinstance(item, tuple | list) and len(item) == 2):
                raise ScheduleError(f"{place}: {shorten(item)} is not a pair (forward, backward)")
            pair = [_instruction(half, layout, place) for half in item]
            if [direction for direction, _ in pair] != [Direction.FORWARD, Direction.BACKWARD]:
                raise ScheduleError(f"{place}: a pair must hold a forward, then a backward")
            instructions += pair
        parsed.append(instructions)
    if paired:
        parsed = _in_pipeline_order(parsed, name, pipeline)
    _check_order([[direction for direction, _ in stage] for stage in parsed], name, pipeline)
    return LaunchFile(
        launches=tuple(tuple(stage) for stage in parsed), layout=layout, costs=_costs(text)
    )


def _format(stages: Sequence[str], costs: Costs) -> str:
    """Join the stages' lists and the comment lines."""
    return "[\n" + "".join(f"{stage},\n" for stage in stages) + "]\n" + costs.comments()


def _read(path: Path) -> str:
    """Return the text of a list file of bounded size."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScheduleError(f"{path.name}: cannot be read: {error.strerror or error}") from error
    return decode(data, path.name)


def decode(data: bytes, name: str, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Return a file's text; a byte-order mark is dropped.

    Raises:
        ScheduleError: It is larger than `max_bytes` or not UTF-8.
    """
    if len(data) > max_bytes:
        raise ScheduleError(f"{name}: larger than {max_bytes // 2**20} MiB, not a schedule")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ScheduleError(f"{name}: not UTF-8 text (byte {error.start})") from error


def _stage_lists(text: str, name: str) -> list[list[object]]:
    """Parse the literal: a non-empty list of non-empty lists."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # an invalid escape in a string is only a bad string here
            value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise ScheduleError(
            f"{name}{f', line {line}' if line else ''}: not a Python list literal; "
            "a schedule file holds data only and is never executed"
        ) from error
    if not isinstance(value, list) or not value:
        raise ScheduleError(f"{name}: must hold one list with a list per stage")
    for stage, items in enumerate(value):
        if not isinstance(items, list) or not items:
            raise ScheduleError(f"{name}, stage {stage}: not a list of instructions")
    return value


def _instruction(
    item: object, layout: PartitionLayout, place: str
) -> tuple[Direction, tuple[LaunchEntry, ...]]:
    """Parse one instruction's tuple."""
    if not (isinstance(item, tuple | list) and item):
        raise ScheduleError(
            f"{place}: {shorten(item)} is not a tuple ('forward'|'backward', strings)"
        )
    direction = _direction(item[0], place)
    names = layout.names(direction)
    if len(item) != 1 + len(names):
        raise ScheduleError(
            f"{place}: {direction} lists {len(item) - 1} partitions, "
            f"expected {len(names)}: {', '.join(names)}"
        )
    entries = tuple(
        parse_entry(text, partition, place) for text, partition in zip(item[1:], names, strict=True)
    )
    return direction, entries


def _direction(value: object, place: str) -> Direction:
    """Parse an instruction's name."""
    if value not in ("forward", "backward"):
        raise ScheduleError(f"{place}: instruction {shorten(value)} is not 'forward' or 'backward'")
    return Direction(value)


def _expected(num_stages: int, num_instructions: int, pipeline: Pipeline | None) -> Pipeline:
    """Return the given pipeline, or the 1F1B one of that many stages and instructions."""
    return pipeline or one_f_one_b(num_stages, max(1, num_instructions // 2))


def _check_stages(num_stages: int, expected: Pipeline, name: str) -> None:
    """Refuse another number of stages."""
    if num_stages != expected.num_stages:
        raise ScheduleError(
            f"{name}: holds {num_stages} stages, the pipeline has {expected.num_stages}"
        )


def _check_order(
    stages: Sequence[Sequence[Direction]], name: str, pipeline: Pipeline | None
) -> None:
    """Refuse another number of stages or instructions, or another order."""
    expected = _expected(len(stages), len(stages[0]), pipeline)
    _check_stages(len(stages), expected, name)
    for stage, (directions, instructions) in enumerate(zip(stages, expected.stages, strict=True)):
        if len(directions) != len(instructions):
            raise ScheduleError(
                f"{name}, stage {stage}: holds {len(directions)} instructions, "
                f"expected {len(instructions)}"
            )
        for position, (direction, instruction) in enumerate(
            zip(directions, instructions, strict=True)
        ):
            if direction is not instruction.direction:
                raise ScheduleError(
                    f"{_place(name, stage, position)}: {direction} where the "
                    f"{expected.order} order has {instruction.direction} of microbatch "
                    f"{instruction.microbatch}"
                )


def _in_pipeline_order(
    stages: Sequence[Sequence[tuple[Direction, tuple[LaunchEntry, ...]]]],
    name: str,
    pipeline: Pipeline | None,
) -> list[list[tuple[Direction, tuple[LaunchEntry, ...]]]]:
    """Turn (forward, backward) pairs per microbatch into the order of the pipeline."""
    expected = _expected(len(stages), len(stages[0]), pipeline)
    _check_stages(len(stages), expected, name)
    ordered = []
    for stage, (pairs, instructions) in enumerate(zip(stages, expected.stages, strict=True)):
        if len(pairs) != len(instructions):
            raise ScheduleError(
                f"{name}, stage {stage}: holds {len(pairs) // 2} microbatches, "
                f"expected {len(instructions) // 2}"
            )
        waiting = {
            direction: iter([entry for entry in pairs if entry[0] is direction])
            for direction in Direction
        }
        ordered.append([next(waiting[instruction.direction]) for instruction in instructions])
    return ordered


def _costs(text: str) -> Costs | None:
    """Return what the comment lines say; None unless all three are there."""
    values: dict[str, float] = {}
    plan = None
    for line in text.splitlines():
        match = _COMMENT.fullmatch(line.strip())
        if match is None:
            continue
        try:
            values[match["what"]] = float(match["value"])
        except ValueError:
            continue
        plan = int(match["plan"])
    if plan is None or len(values) < 3:
        return None
    return Costs(
        plan=plan,
        change_j=values["cost change"],
        effective_energy_j=values["total cost"],
        pipeline_energy_j=values["total cost with P2P"],
    )


def _place(name: str, stage: int, position: int) -> str:
    """Return the beginning of a message."""
    return f"{name}, stage {stage}, position {position}"
