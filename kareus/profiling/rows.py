"""Checks one recorded row at a time: what it says, whether that can be, and in which units.

A row is taken or refused with a reason; none is repaired by a guess.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.partition import OperatorKind, Partition
from kareus.core.workload import Gpu
from kareus.errors import ScheduleError
from kareus.schedule.formats import THREADS_PER_BLOCK, parse_entry

_MIN_CLOCK_MHZ, _MAX_CLOCK_MHZ = 100, 5000
# Without a known GPU: what no GPU draws while it works, and what none can.
_LEAST_POWER_W, _MOST_POWER_W = 10.0, 3000.0
_POWER_LIMIT_MARGIN = 1.5
# Real executions need 1.2 to 10 times what the peak rates allow; launch overheads dominate in
# tiny models, so a long absolute time is asked for, too.
_SLOWEST_RATIO, _LONG_S, _FASTEST_RATIO = 300.0, 0.3, 0.25
_CLOCK_ONLY = LaunchPoint.NONE.value
_TENSOR_WORK = (OperatorKind.LINEAR, OperatorKind.ATTENTION)


class RefusedRowError(ValueError):
    """A row cannot be taken; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A row that was taken.

    Attributes:
        measurement: What it says, as repeat 0.
        notation: How its launch was written: start, end, threads.
        repeat: What it says itself about which repeat it is; compared, not counted with.
    """

    measurement: Measurement
    notation: tuple[str, str, str]
    repeat: str


def parse_json_row(line: bytes, partition: Partition, gpu: Gpu | None, *, cut_off: bool) -> Row:
    """Return what a JSON line says.

    Args:
        line: The line, without its end.
        partition: The partition whose file it stands in.
        gpu: The GPU it was measured on; None if unknown.
        cut_off: Whether the file ends in this line without a line end.

    Raises:
        RefusedRowError: It cannot be taken.
    """
    try:
        fields = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        if cut_off:
            raise RefusedRowError("cut off in the middle of the line") from error
        raise RefusedRowError(f"no JSON object: {error}") from error
    if not isinstance(fields, dict):
        raise RefusedRowError(f"no JSON object but {_show(fields)}")
    clock = _whole(fields, "freq")
    configuration, notation = _configuration(fields, clock, partition)
    _check_configuration(configuration, gpu)
    time_s = _positive(fields, "time_s")
    energy_j = _positive(fields, "energy_j", nullable=True)
    return Row(
        measurement=_measurement(
            partition,
            configuration,
            time_s=time_s,
            energy_j=energy_j,
            gpu=gpu,
            extras=fields,
        ),
        notation=notation,
        repeat=str(fields.get("repeat")),
    )


def parse_outside_row(
    cells: Mapping[str, str], clock: str, partition: Partition, gpu: Gpu | None
) -> Row:
    """Return what a row about work outside partitions says.

    Args:
        cells: Cells by column.
        clock: Name of the folder it stands in.
        partition: The unit.
        gpu: The GPU it was measured on; None if unknown.

    Raises:
        RefusedRowError: It cannot be taken.
    """
    if not clock.isdecimal():
        raise RefusedRowError(f"its folder {clock!r} is no clock in MHz")
    configuration = Configuration(clock_mhz=int(clock))
    _check_configuration(configuration, gpu)
    values: dict[str, object] = {name: _cell(text) for name, text in cells.items()}
    time_s = _positive(values, "time (s)")
    energy_j = _positive(values, "per_rank_energy (J)", nullable=True)
    total_j = _positive(values, "total_energy (J)", nullable=True)
    if energy_j is None and total_j is not None:
        raise RefusedRowError("per_rank_energy (J) is missing while total_energy (J) is given")
    if energy_j is not None and total_j is not None and total_j < 0.99 * energy_j:
        raise RefusedRowError(
            f"total_energy (J) {total_j:g} is less than that of one rank, {energy_j:g}: "
            "different units?"
        )
    return Row(
        measurement=_measurement(
            partition, configuration, time_s=time_s, energy_j=energy_j, gpu=gpu, extras=values
        ),
        notation=("", "", ""),
        repeat=str(values.get("repeat")),
    )


def _cell(text: str) -> object:
    """A cell's value: a number, the mean of a list of numbers, an object, or None if empty."""
    text = text.strip()
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        try:
            # Spellings such as `nan`, `.5` and `1.` that JSON does not know.
            value = float(text)
        except ValueError:
            return text
    if isinstance(value, list) and value and all(_is_number(item) for item in value):
        return sum(value) / len(value)
    return value


def _configuration(
    fields: Mapping[str, Any], clock: int, partition: Partition
) -> tuple[Configuration, tuple[str, str, str]]:
    """The configuration a row names, and how it wrote the launch."""
    start = str(fields.get("overlap_start", "none")).strip()
    end = str(fields.get("overlap_end", "none")).strip()
    start = _CLOCK_ONLY if start in ("-1", "None") else start
    end = _CLOCK_ONLY if end in ("-1", "None") else end
    block = fields.get("block", THREADS_PER_BLOCK)
    notation = (start, end, str(block))
    if not partition.searched:
        if start != _CLOCK_ONLY:
            raise RefusedRowError(f"{partition.name} launches no collective, but it says {start!r}")
        return Configuration(clock_mhz=clock), notation
    if "overlap_start" not in fields:
        raise RefusedRowError("overlap_start is missing")
    sms = _whole(fields, "sm")
    if start == _CLOCK_ONLY:
        return Configuration(
            clock_mhz=clock, sm_allocation=sms, launch_point=LaunchPoint.NONE
        ), notation
    try:
        entry = parse_entry(
            f"{start}-{end}-{sms}-{_whole({'block': block}, 'block')}", partition.name, "it"
        )
    except ScheduleError as error:
        raise RefusedRowError(str(error).removeprefix("it: ")) from error
    if entry.num_threads != THREADS_PER_BLOCK:
        raise RefusedRowError(
            f"block {entry.num_threads}: only collectives with {THREADS_PER_BLOCK} threads per "
            "block can be scheduled"
        )
    if entry.launch_point not in partition.launch_points:
        offered = ", ".join(point.value for point in partition.launch_points)
        raise RefusedRowError(
            f"launch point {start} is not offered by {partition.name}, which has {offered}, none"
        )
    return Configuration(
        clock_mhz=clock, sm_allocation=sms, launch_point=entry.launch_point
    ), notation


def _check_configuration(configuration: Configuration, gpu: Gpu | None) -> None:
    clock = configuration.clock_mhz
    if not _MIN_CLOCK_MHZ <= clock <= _MAX_CLOCK_MHZ:
        raise RefusedRowError(f"freq {_show(clock)} is no SM clock in MHz (kHz or GHz?)")
    sms = configuration.sm_allocation
    if sms is not None and (sms < 1 or (gpu is not None and sms > gpu.num_sms)):
        most = f"1 to {gpu.num_sms}" if gpu is not None else "at least 1"
        raise RefusedRowError(f"sm {_show(sms)} is no SM allocation: it must be {most}")


def _measurement(
    partition: Partition,
    configuration: Configuration,
    *,
    time_s: float | None,
    energy_j: float | None,
    gpu: Gpu | None,
    extras: Mapping[str, object],
) -> Measurement:
    """The checked measurement, with what else the row carries."""
    assert time_s is not None
    conditions = extras.get("conditions")
    conditions = dict(conditions) if isinstance(conditions, dict) else {}
    if energy_j is not None:
        _check_time(partition, time_s, gpu)
        if flag := _check_power(energy_j / time_s, partition, gpu):
            earlier = conditions.get("flags")
            flags = list(earlier) if isinstance(earlier, list) else []
            conditions["flags"] = flags if flag in flags else [*flags, flag]
    return Measurement(
        partition=partition.name,
        configuration=configuration,
        time_s=time_s,
        energy_j=energy_j,
        source=SourceKind.REPLAY,
        time_spread_s=_positive(extras, "time_spread_s", nullable=True, zero=True),
        energy_spread_j=_positive(extras, "energy_spread_j", nullable=True, zero=True),
        conditions=conditions,
    )


def _check_power(power_w: float, partition: Partition, gpu: Gpu | None) -> str | None:
    """Refuse a power no GPU draws; return a remark on one that is doubtful, else None."""
    static_w = gpu.static_power_w if gpu is not None else None
    least_w = 0.5 * static_w if static_w is not None else _LEAST_POWER_W
    most_w = _POWER_LIMIT_MARGIN * gpu.power_limit_w if gpu is not None else _MOST_POWER_W
    if power_w > most_w:
        hint = "energy in mJ instead of J?" if least_w <= power_w / 1000 <= most_w else "units?"
        raise RefusedRowError(
            f"energy over time is {power_w:.4g} W per GPU, above {most_w:.4g} W: {hint}"
        )
    if power_w < least_w:
        hint = (
            "time in ms instead of s, or energy in kJ instead of J?"
            if least_w <= power_w * 1000 <= most_w
            else "units?"
        )
        raise RefusedRowError(
            f"energy over time is {power_w:.4g} W per GPU, below {least_w:.4g} W: {hint}"
        )
    if gpu is not None and static_w is not None and power_w <= static_w:
        text = f"negative dynamic energy: {power_w:.4g} W is below the static {static_w:g} W"
        if not gpu.static_power_measured:
            # An assumed static power must not cost the user measured rows.
            return f"{text} assumed for {gpu.name}"
        if any(operator.kind in _TENSOR_WORK for operator in partition.operators):
            raise RefusedRowError(text)
        # Memory-bound work or a lone collective may draw less than the blocked GPU that the
        # static power is taken from.
        return text
    return None


def _check_time(partition: Partition, time_s: float, gpu: Gpu | None) -> None:
    """Refuse a time far from what the GPU's peak rates allow."""
    if gpu is None or not partition.operators:
        return
    flops_s = sum(operator.flops for operator in partition.operators) / gpu.peak_flops
    moved_s = (
        sum(operator.memory_bytes for operator in partition.operators)
        / gpu.memory_bandwidth_bytes_s
    )
    if partition.collective is not None:
        moved_s += partition.collective.bus_bytes / gpu.link_bandwidth_bytes_s
    if time_s > _LONG_S and time_s > _SLOWEST_RATIO * (flops_s + moved_s):
        raise RefusedRowError(
            f"time_s {time_s:g} is {time_s / (flops_s + moved_s):.0f} times what {gpu.name} needs "
            "at its peak: ms instead of s?"
        )
    if time_s < _FASTEST_RATIO * flops_s:
        raise RefusedRowError(
            f"time_s {time_s:g} is less than {gpu.name} can do at its peak, {flops_s:.3g} s: "
            "another workload's measurement, or units?"
        )


def _positive(
    fields: Mapping[str, object], name: str, *, nullable: bool = False, zero: bool = False
) -> float | None:
    """A finite number above 0 (or 0 itself, where that means something)."""
    value = fields.get(name)
    if value is None and nullable:
        return None
    if name not in fields or value is None:
        raise RefusedRowError(f"{name} is missing")
    if not _is_number(value):
        raise RefusedRowError(f"{name} is {_show(value)}, no number")
    try:
        number = float(value)  # type: ignore[arg-type]
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RefusedRowError(f"{name} is {_show(value)}")
    if number < 0 or (number == 0 and not zero):
        raise RefusedRowError(f"{name} is {number:g}: it must be above 0")
    return number


def _whole(fields: Mapping[str, Any], name: str) -> int:
    """A whole number, which may be written as text or with a decimal point."""
    value = fields.get(name)
    if isinstance(value, str):
        value = int(value) if value.strip().isdecimal() else value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        raise RefusedRowError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int):
        raise RefusedRowError(f"{name} is {_show(value)}, no whole number")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(value: object) -> str:
    """A value as messages show it, shortened."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
