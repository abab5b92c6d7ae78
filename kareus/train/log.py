"""The training log: JSON lines, one file per rank, and its reader.

    <log>/rank-00000.jsonl     start, one line per step, end or failed
    <log>/clocks-00000.jsonl   what was done to the rank's GPU clock, and what the GPU read

Times of instructions are seconds from their step's beginning, which is given on the host's
monotonic clock, so that both files fit together. What was not measured is null.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kareus.errors import NotFoundError

_RANK_FILE = re.compile(r"rank-(\d+)\.jsonl")

DEFAULT_FOLDER = Path("kareus-logs")
"""Where runs put their logs unless told otherwise, in the folder they are started in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedUnit:
    """What was seen of the executions of one partition within an instruction.

    Attributes:
        unit: The partition's name.
        launches: (launch point, SM allocation asked for) seen, each once.
        count: Executions.
        mean_s: Mean time of one; None where unknown.
        spread_s: Standard deviation.
    """

    unit: str
    launches: tuple[tuple[str, int | None], ...]
    count: int
    mean_s: float | None = None
    spread_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InstructionRecord:
    """One instruction of one step.

    Attributes:
        name: `forward` or `backward`.
        microbatch: Which microbatch.
        clock_mhz: The clock asked for.
        begin_s: Seconds from the step's beginning.
        duration_s: Seconds.
        units: What was traced; None in steps that were not.
    """

    name: str
    microbatch: int
    clock_mhz: int
    begin_s: float
    duration_s: float
    units: tuple[ObservedUnit, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """One step of one rank.

    Attributes:
        step: From 1.
        loss: Mean over the whole global batch, the same on all ranks.
        time_s: The whole step, optimizer included.
        pipeline_s: From its beginning to the end of this rank's last instruction.
        tokens_per_s: Tokens of the whole job per second.
        energy_j: Energy of this rank's GPU over the step; None where it was not measured.
        gradient_norm: Global norm before clipping.
        learning_rate: What was used.
        begin_ns: Its beginning on the host's monotonic clock.
        instructions: In order of execution.
    """

    step: int
    loss: float
    time_s: float
    pipeline_s: float
    tokens_per_s: float
    energy_j: float | None
    gradient_norm: float
    learning_rate: float
    begin_ns: int
    instructions: tuple[InstructionRecord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockEvent:
    """A line of a clock file.

    Attributes:
        time_ns: Host's monotonic clock.
        event: `set`, `kept` (it was that already), `superseded` (a newer one came first),
            `sample` or `released`.
        clock_mhz: Asked for; in a sample what the GPU ran at.
        took_s: How long setting took.
        power_w: Power of a sample.
        temperature_c: Temperature of a sample.
        throttle_reasons: What held the clock down at a sample.
    """

    time_ns: int
    event: str
    clock_mhz: float | None = None
    took_s: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankInfo:
    """Who a rank is.

    Attributes:
        rank: Global rank.
        stage: Pipeline stage.
        dp_rank: Data-parallel rank.
        cp_rank: Context-parallel rank.
        tp_rank: Tensor-parallel rank.
        device: `cpu` or `cuda`.
        clocks: `applied` or `logged`.
        clocks_mhz: The clock of every instruction of a step, in order.
        host: Name of its machine.
        schedule: Checksum of the schedule.
        details: Settings, versions, commit, GPU, driver, ...
    """

    rank: int
    stage: int
    dp_rank: int
    cp_rank: int
    tp_rank: int
    device: str
    clocks: str
    clocks_mhz: tuple[int, ...]
    host: str
    schedule: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankLog:
    """What one rank wrote.

    Attributes:
        info: Who it is.
        steps: Its steps in order; of a step trained twice (after a resume) the later.
        ended: Whether it ended well.
        failure: Why it failed, in its own words; None if it did not say.
        lost_peer: Whether that was because another rank had ended.
        clock_events: Its clock file.
        num_damaged: Lines that could not be read (cut off by a crash).
    """

    info: RankInfo
    steps: tuple[StepRecord, ...]
    ended: bool
    failure: str | None
    clock_events: tuple[ClockEvent, ...] = ()
    num_damaged: int = 0
    lost_peer: bool = False


_STEP = TypeAdapter(StepRecord)
_INFO = TypeAdapter(RankInfo)
_EVENT = TypeAdapter(ClockEvent)


def rank_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank:05d}.jsonl"


def clock_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank's clock."""
    return folder / f"clocks-{rank:05d}.jsonl"


class LogWriter:
    """Appends to a rank's file, each line at once and whole.

    Args:
        folder: The log's folder; made if it is not there.
        rank: The rank.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = rank_file(folder, rank)
        cut_off = path.exists() and path.stat().st_size > 0 and not _ends_line(path)
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if cut_off:
            self._file.write("\n")

    def start(self, info: RankInfo) -> None:
        """Write who this is."""
        self._write("start", _INFO.dump_python(info, mode="json"))

    def step(self, record: StepRecord) -> None:
        """Write a step."""
        self._write("step", _STEP.dump_python(record, mode="json"))

    def end(self) -> None:
        """Write that training ended as it should."""
        self._write("end", {})

    def failed(self, reason: str, *, peer: bool) -> None:
        """Write why training failed.

        Args:
            reason: In one line.
            peer: Whether another rank's end was the cause.
        """
        self._write("failed", {"reason": reason, "peer": peer})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, event: str, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"event": event, **values}) + "\n")


def rank_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the rank files of a log with their ranks, in order."""
    found = []
    for path in folder.glob("rank-*.jsonl"):
        match = _RANK_FILE.fullmatch(path.name)
        if match is not None:
            found.append((int(match[1]), path))
    return sorted(found)


def read_log(folder: Path) -> tuple[RankLog, ...]:
    """Read a log, rank by rank.

    Raises:
        NotFoundError: There is no log in the folder.
    """
    logs = []
    for rank, path in rank_files(folder):
        log = _read_rank(path, clock_file(folder, rank))
        if log is not None:
            logs.append(log)
    if not logs:
        raise NotFoundError(
            f"{folder}: holds no training log (rank-00000.jsonl, ...); give the folder that "
            "'kareus launch' named"
        )
    return tuple(logs)


def _read_rank(path: Path, clocks: Path) -> RankLog | None:
    """Read a rank's files; None if it did not get to say who it is."""
    info: RankInfo | None = None
    steps: dict[int, StepRecord] = {}
    ended, failure, lost_peer, num_damaged = False, None, False, 0
    for values in _lines(path):
        try:
            event = values.pop("event") if values is not None else None
            if event == "start":
                info = _INFO.validate_python(values)
                ended, failure, lost_peer = False, None, False
            elif event == "step":
                record = _STEP.validate_python(values)
                steps[record.step] = record
            elif event == "end":
                ended = True
            elif event == "failed":
                assert values is not None
                failure, lost_peer = str(values["reason"]), bool(values["peer"])
            else:
                num_damaged += 1
        except (ValidationError, KeyError):
            num_damaged += 1
    if info is None:
        return None
    events = []
    for values in _lines(clocks) if clocks.exists() else ():
        try:
            events.append(_EVENT.validate_python(values))
        except ValidationError:
            num_damaged += 1
    return RankLog(
        info=info,
        steps=tuple(steps[number] for number in sorted(steps)),
        ended=ended,
        failure=failure,
        clock_events=tuple(events),
        num_damaged=num_damaged,
        lost_peer=lost_peer,
    )


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield a file's lines; None for one that cannot be read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError:
                yield None
                continue
            yield values if isinstance(values, dict) else None


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
