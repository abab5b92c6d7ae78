"""Recorded data as files: planned frontiers, their clocks, and partition sweeps, checked by row.

Columns are those of the published data; `kareus` rows may be present. Every refusal names file, row
(1 = the line below the header), value and remedy; nothing is half-loaded. Data that is read here is
never trusted: units are checked against the power a GPU can draw.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kareus.core.partition import Direction
from kareus.core.plan import Method
from kareus.core.workload import Gpu
from kareus.errors import MeasurementError

_LOWEST_POWER_SHARE = 0.5  # of static power; below it a unit must be wrong
_HIGHEST_POWER_SHARE = 1.25  # of the board's limit


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class RecordKey:
    """Which workload and method a recorded frontier belongs to.

    Attributes:
        model: Model name as in the file, hyphens for underscores.
        cp: Context-parallel degree.
        tp: Tensor-parallel degree.
        microbatch_size: Sequences per microbatch.
        seq_len: Tokens per sequence.
    """

    model: str
    cp: int
    tp: int
    microbatch_size: int
    seq_len: int

    def __str__(self) -> str:
        return f"{self.model} cp{self.cp} tp{self.tp} {self.microbatch_size} x {self.seq_len}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedPlan:
    """One planned iteration of a recorded frontier.

    Attributes:
        key: The workload.
        method: Who planned it.
        release: Which release of the data it is from; empty if the file does not say.
        plan: Its number.
        iteration_time_s: Planned iteration time.
        effective_energy_j: Planned dynamic energy; None if not recorded.
        total_energy_j: Planned pipeline energy.
        clocks_mhz: Per stage, (direction, clock) of each instruction in order; empty if no clocks
            were asked for.
        row: Row of the frontier file.
    """

    key: RecordKey
    method: Method
    release: str
    plan: int
    iteration_time_s: float
    effective_energy_j: float | None
    total_energy_j: float
    clocks_mhz: tuple[tuple[tuple[Direction, int], ...], ...]
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPoint:
    """One configuration of a recorded partition sweep, averaged over its repeats.

    Attributes:
        overlap_start: Operator at which the collective is launched; -1 if it is not overlapped.
        overlap_end: Last operator it may run beside; -1 likewise.
        num_sms: SMs of the collective.
        threads_per_block: Threads of its blocks.
        time_s: Mean time.
        energy_j: Mean energy per GPU.
    """

    overlap_start: int
    overlap_end: int
    num_sms: int
    threads_per_block: int
    time_s: float
    energy_j: float


class _Row:
    """A line of a CSV file, whose fields are read with the right words on failure."""

    def __init__(self, path: Path, number: int, fields: Mapping[str, str | None]) -> None:
        self.path, self.number, self._fields = path, number, fields

    def fail(self, what: str) -> MeasurementError:
        return MeasurementError(f"{self.path}, row {self.number}: {what}")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def optional(self, column: str) -> str:
        return (self._fields.get(column) or "").strip()

    def text(self, column: str) -> str:
        value = self.optional(column)
        if not value:
            raise self.fail(f"{column} is empty: fill it in or remove the row")
        return value

    def integer(self, column: str, *, at_least: int) -> int:
        text = self.text(column)
        try:
            value = int(text)
        except ValueError:
            raise self.fail(f"{column} is {text!r}, not a whole number") from None
        if value < at_least:
            raise self.fail(f"{column} is {value}: at least {at_least} is possible")
        return value

    def positive(self, column: str) -> float:
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            raise self.fail(f"{column} is {text!r}, not a number") from None
        if not math.isfinite(value) or value <= 0:
            raise self.fail(f"{column} is {text}: a positive number is needed")
        return value


def _rows(path: Path, required: tuple[str, ...]) -> Iterator[_Row]:
    """The rows of a CSV file with at least these columns."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = [name.strip() for name in reader.fieldnames or ()]
            missing = [name for name in required if name not in header]
            if missing:
                raise MeasurementError(
                    f"{path}: column {', '.join(missing)} is missing: it needs "
                    f"{', '.join(required)}"
                )
            reader.fieldnames = header
            number = 0
            for number, fields in enumerate(reader, start=1):
                if None in fields:
                    raise MeasurementError(f"{path}, row {number}: more fields than columns")
                yield _Row(path, number, fields)
            if number == 0:
                raise MeasurementError(f"{path}: no rows below the header")
    except FileNotFoundError:
        raise MeasurementError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path}: not a readable CSV file: {error}") from error


def normal_name(name: str) -> str:
    """Return a name with hyphens for underscores, in lower case."""
    return name.strip().lower().replace("_", "-")


def _key(row: _Row) -> tuple[RecordKey, Method, str]:
    """Workload, method and release of a row."""
    text = row.text("method")
    try:
        method = Method(normal_name(text))
    except ValueError:
        known = ", ".join(method.value for method in Method)
        raise row.fail(f"method is {text!r}: known are {known}") from None
    key = RecordKey(
        model=normal_name(row.text("model")),
        cp=row.integer("cp", at_least=1),
        tp=row.integer("tp", at_least=1),
        microbatch_size=row.integer("microbatch_size", at_least=1),
        seq_len=row.integer("seq_len", at_least=1),
    )
    return key, method, row.optional("release")


_KEY_COLUMNS = ("model", "cp", "tp", "microbatch_size", "seq_len", "method", "plan")


def read_frontiers(
    frontiers: Path, frequencies: Path | None, gpu: Gpu, *, wanted: Callable[[Method], bool]
) -> tuple[RecordedPlan, ...]:
    """Read recorded plans of the wanted methods with the clocks of their instructions.

    Args:
        frontiers: One row per plan.
        frequencies: One row per instruction of a plan; None leaves the clocks out.
        gpu: The GPU they were recorded on; its power range exposes wrong units.
        wanted: Which methods are needed; other rows are still checked.

    Returns:
        Plans by workload, method and time, fastest first.

    Raises:
        MeasurementError: If a file is unreadable, a row malformed, repeated or absurd, or a plan
            has no clocks.
    """
    clocks = _read_frequencies(frequencies, gpu) if frequencies is not None else {}
    plans: dict[tuple[RecordKey, Method, str, int], RecordedPlan] = {}
    columns = (*_KEY_COLUMNS, "iteration_time_s", "total_energy_j")
    for row in _rows(frontiers, columns):
        key, method, release = _key(row)
        number = row.integer("plan", at_least=0)
        identity = (key, method, release, number)
        if identity in plans:
            raise row.fail(f"plan {number} of {key} {method} repeats row {plans[identity].row}")
        stages: tuple[tuple[tuple[Direction, int], ...], ...] = ()
        if frequencies is not None and wanted(method):
            found = clocks.get(identity) or clocks.get((key, method, "", number))
            if found is None:
                raise row.fail(
                    f"plan {number} of {key} {method} has no clocks in {frequencies}: add them or "
                    "remove the plan"
                )
            stages = found
        effective = row.optional("effective_energy_j")
        plan = RecordedPlan(
            key=key,
            method=method,
            release=release,
            plan=number,
            iteration_time_s=row.positive("iteration_time_s"),
            effective_energy_j=row.positive("effective_energy_j") if effective else None,
            total_energy_j=row.positive("total_energy_j"),
            clocks_mhz=stages,
            row=row.number,
        )
        _check_power(row, plan, gpu, num_stages=len(stages) or None)
        plans[identity] = plan
    chosen = [plan for plan in plans.values() if wanted(plan.method)]
    return tuple(
        sorted(chosen, key=lambda p: (p.key, p.method.value, p.release, p.iteration_time_s, p.plan))
    )


def _check_power(row: _Row, plan: RecordedPlan, gpu: Gpu, *, num_stages: int | None) -> None:
    """Refuse a plan whose average power per GPU no GPU could draw: a unit is wrong."""
    if num_stages is None:
        return
    power = plan.total_energy_j / plan.iteration_time_s / num_stages
    low = _LOWEST_POWER_SHARE * gpu.static_power_w
    high = _HIGHEST_POWER_SHARE * gpu.power_limit_w
    if not low <= power <= high:
        raise row.fail(
            f"{plan.total_energy_j:g} J in {plan.iteration_time_s:g} s over {num_stages} stages is "
            f"{power:.3g} W per GPU, impossible for {gpu.name} ({low:.0f}..{high:.0f} W): energies "
            "must be in J, times in s"
        )


def _read_frequencies(
    path: Path, gpu: Gpu
) -> dict[tuple[RecordKey, Method, str, int], tuple[tuple[tuple[Direction, int], ...], ...]]:
    """Clocks per plan: stage -> position -> (direction, clock)."""
    found: dict[
        tuple[RecordKey, Method, str, int], dict[tuple[int, int], tuple[Direction, int]]
    ] = defaultdict(dict)
    columns = (*_KEY_COLUMNS, "stage", "position", "instruction", "frequency_mhz")
    for row in _rows(path, columns):
        key, method, release = _key(row)
        identity = (key, method, release, row.integer("plan", at_least=0))
        text = row.text("instruction").lower()
        try:
            direction = Direction(text)
        except ValueError:
            raise row.fail(f"instruction is {text!r}: forward or backward is possible") from None
        clock = row.integer("frequency_mhz", at_least=1)
        top = gpu.clocks_mhz[-1]
        if not 0.1 * top <= clock <= top:
            raise row.fail(
                f"frequency_mhz is {clock}: {gpu.name} runs at up to {top} MHz; give MHz, or name "
                "the GPU the data is from"
            )
        place = (row.integer("stage", at_least=0), row.integer("position", at_least=0))
        if place in found[identity]:
            raise row.fail(f"stage {place[0]} position {place[1]} of this plan occurs twice")
        found[identity][place] = (direction, clock)
    plans = {}
    for identity, places in found.items():
        num_stages = 1 + max(stage for stage, _ in places)
        per_stage = len(places) // num_stages
        expected = {(s, i) for s in range(num_stages) for i in range(per_stage)}
        if set(places) != expected:
            raise MeasurementError(
                f"{path}: plan {identity[3]} of {identity[0]} {identity[1]} has gaps: every stage "
                "needs the same instructions, numbered from 0"
            )
        plans[identity] = tuple(
            tuple(places[stage, position] for position in range(per_stage))
            for stage in range(num_stages)
        )
    return plans


def read_sweep(path: Path, gpu: Gpu) -> tuple[SweepPoint, ...]:
    """Read a recorded partition sweep with any number of repeats.

    Columns: overlap_start, overlap_end, comm_sm_number, comm_block_size, then per repeat
    `N:time (s)` and either `N:total energy (J)` with `N:rankK energy (J)` columns, whose count is
    the number of GPUs.

    Raises:
        MeasurementError: If the file is unreadable, or a row malformed or absurd.
    """
    points = []
    columns = ("overlap_start", "overlap_end", "comm_sm_number", "comm_block_size", "0:time (s)")
    for row in _rows(path, columns):
        times = [name for name in row.columns if name.endswith(":time (s)")]
        ranks = [name for name in row.columns if ":rank" in name and name.endswith("energy (J)")]
        if not ranks:
            raise MeasurementError(f"{path}: no energy column such as '0:rank0 energy (J)'")
        time = sum(row.positive(name) for name in times) / len(times)
        energy = sum(row.positive(name) for name in ranks) / len(ranks)
        power = energy / time
        low = _LOWEST_POWER_SHARE * gpu.static_power_w
        high = _HIGHEST_POWER_SHARE * gpu.power_limit_w
        if not low <= power <= high:
            raise row.fail(
                f"{energy:g} J in {time:g} s is {power:.3g} W per GPU, impossible for {gpu.name} "
                f"({low:.0f}..{high:.0f} W): energies must be in J, times in s"
            )
        start = row.integer("overlap_start", at_least=-1)
        end = row.integer("overlap_end", at_least=-1)
        if (start < 0) != (end < 0) or end < start:
            raise row.fail(f"overlap_start {start} and overlap_end {end} do not make a range")
        num_sms = row.integer("comm_sm_number", at_least=1)
        if num_sms >= gpu.num_sms:
            raise row.fail(f"comm_sm_number is {num_sms}: {gpu.name} has {gpu.num_sms} SMs")
        threads = row.integer("comm_block_size", at_least=1)
        if threads not in (512, 1024):
            raise row.fail(f"comm_block_size is {threads}: 512 and 1024 are known")
        points.append(
            SweepPoint(
                overlap_start=start,
                overlap_end=end,
                num_sms=num_sms,
                threads_per_block=threads,
                time_s=time,
                energy_j=energy,
            )
        )
    return tuple(points)
