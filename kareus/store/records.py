"""What the store gives back: one frozen record per kind of row, and the words of its columns."""

import datetime as dt
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.errors import StoreError

# Without letters and digits that are mistaken for one another when read aloud.
_ID_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


class StudyState(StrEnum):
    """How far a study is."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class JobState(StrEnum):
    """How far a job is; which changes are legal stands in `kareus.jobs.states`."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Phase(StrEnum):
    """What a running study is doing."""

    WAITING = "waiting"
    MEASURING = "measuring"
    COMPOSING = "composing"
    SOLVING = "solving"
    FINISHED = "finished"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRecord:
    """A study without its measurements and plans.

    Attributes:
        id: Short, readable, without spaces.
        name: As given by the user.
        state: How far it is.
        source: Where its measurements come from.
        extrapolated: Whether the simulator had no calibration for the GPU.
        archived: Hidden from the usual list.
        request: The document it was asked for with.
        notes: Assumptions and warnings, in words.
        versions: Of the package, Python, driver, ... as recorded.
        summary: Headline figures, for lists; None before it is done.
        error: Why it failed; None otherwise.
        created_at: UTC.
        finished_at: UTC; None while it is not.
    """

    id: str
    name: str
    state: StudyState
    source: SourceKind
    extrapolated: bool
    archived: bool
    request: Mapping[str, object]
    notes: tuple[str, ...]
    versions: Mapping[str, object]
    summary: Mapping[str, object] | None
    error: str | None
    created_at: dt.datetime
    finished_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchRecord:
    """The search of one partition of a study.

    Attributes:
        partition: Its name.
        state: `running`, `done` or what else the study says.
        planned: Measurements planned.
        done: Measurements there.
        hypervolume: The search's figure of merit after each batch.
    """

    partition: str
    state: str
    planned: int
    done: int
    hypervolume: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """A plan's figures without its choices.

    Attributes:
        method: The method that made it.
        number: Index within its method's frontier, fastest first.
        iteration_time_s: Seconds.
        effective_energy_j: Dynamic energy, one GPU per stage.
        pipeline_energy_j: With the static energy, one GPU per stage.
        bound_j: Lower bound on the pipeline energy; None without one.
    """

    method: Method
    number: int
    iteration_time_s: float
    effective_energy_j: float
    pipeline_energy_j: float
    bound_j: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionProgress:
    """How far one partition's search is.

    Attributes:
        name: The partition.
        done: Measurements there.
        planned: Measurements planned.
        hypervolume: The search's figure of merit so far, after each batch.
        seconds_left: Estimate; None while unknown.
    """

    name: str
    done: int
    planned: int
    hypervolume: tuple[float, ...] = ()
    seconds_left: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job is.

    Attributes:
        phase: What it does now.
        done: Measurements there, over all partitions.
        planned: Measurements planned.
        partitions: Per partition.
        seconds_left: Estimate for the whole job; None while unknown.
        message: A short remark, such as what is waited for.
    """

    phase: Phase
    done: int = 0
    planned: int = 0
    partitions: tuple[PartitionProgress, ...] = ()
    seconds_left: float | None = None
    message: str = ""


PROGRESS: TypeAdapter[Progress] = TypeAdapter(Progress)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """A background job.

    Attributes:
        id: Short, without spaces.
        study: The study it works on; None if it has none.
        kind: Which registered function it runs.
        state: How far it is.
        attempt: 1 for the first run, 2 after a resume, ...; a worker of an earlier attempt has
            lost its right to write.
        request: Arguments of the function.
        resources: Names it must hold alone, such as `gpu:0`.
        pid: Process of the worker; None before it was started.
        process_created_s: When that process was created (seconds since the epoch), which tells
            it from a later process with the same number.
        host: Machine of the worker.
        heartbeat_s: Last sign of life, seconds since the epoch.
        progress: How far it is; None before the first report.
        error: Why it failed, in one line.
        traceback: Where it failed.
        log_path: Its log file.
        created_at: UTC.
        started_at: UTC, of the latest attempt.
        finished_at: UTC.
    """

    id: str
    study: str | None
    kind: str
    state: JobState
    attempt: int
    request: Mapping[str, object]
    resources: tuple[str, ...]
    pid: int | None
    process_created_s: float | None
    host: str | None
    heartbeat_s: float | None
    progress: Progress | None
    error: str | None
    traceback: str | None
    log_path: str | None
    created_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetRecord:
    """Imported recorded measurements, without their rows.

    Attributes:
        id: Short, without spaces.
        name: As given by the user.
        origin: Where they were read from.
        workload: The workload's document.
        report: What was taken, repeated and refused.
        created_at: UTC.
        num_rows: Measurements in it.
    """

    id: str
    name: str
    origin: str
    workload: Mapping[str, object]
    report: Mapping[str, object]
    created_at: dt.datetime
    num_rows: int = field(default=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationRecord:
    """An exploration of layouts.

    Attributes:
        id: Short, without spaces.
        name: As given by the user.
        request: The document it was asked for with.
        result: Its candidates and joint frontier so far; None before the first.
        created_at: UTC.
    """

    id: str
    name: str
    request: Mapping[str, object]
    result: Mapping[str, object] | None
    created_at: dt.datetime


def now() -> str:
    """Return the present moment as UTC ISO 8601 text."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")


def moment(text: str) -> dt.datetime:
    """Return the moment a stored text names."""
    return dt.datetime.fromisoformat(text)


def optional_moment(text: str | None) -> dt.datetime | None:
    """Return the moment a stored text names; None for None."""
    return moment(text) if text is not None else None


def new_id(words: str, *, num_random: int = 4) -> str:
    """Return an id made of readable words and a few random characters.

    Lower-case letters, digits, dots and hyphens only: fit for URLs, file names and shells.
    """
    slug = re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")[:48].strip("-.")
    tail = "".join(secrets.choice(_ID_ALPHABET) for _ in range(num_random))
    return f"{slug}-{tail}" if slug else tail


def to_json(document: Mapping[str, object] | Sequence[object]) -> str:
    """Return a document as compact JSON.

    Raises:
        StoreError: It holds something that is no JSON value, such as NaN.
    """
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise StoreError(f"a document cannot be stored as JSON: {error}") from error
