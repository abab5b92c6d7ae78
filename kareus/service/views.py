"""What the service gives back: values made for reading, by people and as JSON."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from kareus.compose.limits import Constraints
from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.core.workload import Workload
from kareus.store import PartitionProgress
from kareus.study.exploration import Exploration, ExplorationRequest
from kareus.study.request import StudyRequest
from kareus.workload.build import Finding, Severity
from kareus.workload.memory import MemoryEstimate


def document_of(view: object) -> dict[str, Any]:
    """Return a view as JSON values."""
    document: dict[str, Any] = TypeAdapter(type(view)).dump_python(view, mode="json")
    return document


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Assumed relative error of an extrapolated simulator."""

    time: float
    energy: float


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """What a request would mean, before it is started.

    Attributes:
        workload: None where there is an error.
        findings: Errors first, then warnings, then notes, each with the field it belongs beside.
        memory: Estimate per stage; None without a workload.
        num_partitions: Units that would be measured.
        num_measurements: Measurements the search would spend.
        num_baseline_measurements: Measurements beside them, for the baselines.
        estimated_s: About how long the study takes; None without a workload.
        extrapolated: Whether the simulator was not calibrated on this GPU.
        uncertainty: Its assumed relative error, where extrapolated.
    """

    workload: Workload | None
    findings: tuple[Finding, ...]
    memory: MemoryEstimate | None = None
    num_partitions: int | None = None
    num_measurements: int | None = None
    num_baseline_measurements: int | None = None
    estimated_s: float | None = None
    extrapolated: bool = False
    uncertainty: Uncertainty | None = None

    @property
    def ready(self) -> bool:
        """Whether a study can be started."""
        return self.workload is not None and not any(
            finding.severity is Severity.ERROR for finding in self.findings
        )

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that are warnings."""
        return tuple(f for f in self.findings if f.severity is Severity.WARNING)


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study in one line.

    Attributes:
        id: Its id.
        name: Its name.
        workload_line: Model, GPU, parallelism and batch in words.
        source: Where its measurements come from.
        extrapolated: Whether the simulator was not calibrated on the GPU.
        state: queued, running, done, failed, cancelled or interrupted.
        created: UTC.
        iso_time_energy_reduction_pct: Against Perseus' fastest plan; None if unknown.
        iso_energy_time_reduction_pct: Against Perseus' most frugal plan; likewise.
        job: The job that works or worked on it last; None if none.
        error: Why it failed; None otherwise.
    """

    id: str
    name: str
    workload_line: str
    source: SourceKind
    extrapolated: bool
    state: str
    created: dt.datetime
    iso_time_energy_reduction_pct: float | None
    iso_energy_time_reduction_pct: float | None
    job: str | None
    error: str | None

    @property
    def source_words(self) -> str:
        """The source, with a word for an extrapolated simulator."""
        return f"{self.source.value}, extrapolated" if self.extrapolated else self.source.value

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values; the id under the name every document gives it."""
        document = document_of(self)
        return {"study": document.pop("id"), **document}


@dataclass(frozen=True, kw_only=True)
class StudyDetail:
    """A study, whole but for its measurements and plans.

    Attributes:
        summary: The study in one line.
        request: What was asked for.
        workload: What it was resolved to.
        notes: Assumptions and omissions, in words.
        measurements: Results stored.
        versions: Of the software that ran it.
        uncertainty: Assumed relative error, where extrapolated.
        compare: The comparison figures; None before it is done.
    """

    summary: StudySummary
    request: StudyRequest
    workload: Workload
    notes: tuple[str, ...]
    measurements: int
    versions: Mapping[str, object]
    uncertainty: Uncertainty | None
    compare: dict[str, Any] | None

    @property
    def id(self) -> str:
        """Its id."""
        return self.summary.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.summary.name

    @property
    def state(self) -> str:
        """Its state."""
        return self.summary.state

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        document = document_of(self)
        del document["summary"]
        return {**self.summary.as_document(), **document}

    def as_lines(self) -> list[tuple[str, str]]:
        """Return (word, value) pairs for the command line."""
        summary = self.summary
        lines = [
            ("study", summary.id),
            ("name", summary.name),
            ("workload", summary.workload_line),
            ("stage layers", ", ".join(map(str, self.workload.stage_layers))),
            ("source", summary.source_words),
            ("budget", self.request.budget),
            ("seed", str(self.request.seed)),
            ("state", summary.state),
            ("created", summary.created.isoformat(timespec="seconds")),
            ("measurements", str(self.measurements)),
        ]
        if summary.error is not None:
            lines.append(("error", summary.error))
        return lines + [("note", note) for note in self.notes]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """A plan's figures.

    Attributes:
        method: The method that made it.
        plan: Its number.
        iteration_time_s: Seconds.
        effective_energy_j: Dynamic energy, one GPU per stage.
        pipeline_energy_j: With the static energy, one GPU per stage.
        job_energy_j: All GPUs of the job.
        average_power_w: Of all GPUs of the job.
        static_energy_j: Static part of the pipeline energy.
        bound_j: Lower bound on the pipeline energy; None without one.
        gap: Relative distance above it; None without one.
    """

    method: Method
    plan: int
    iteration_time_s: float
    effective_energy_j: float
    pipeline_energy_j: float
    job_energy_j: float
    average_power_w: float
    static_energy_j: float
    bound_j: float | None
    gap: float | None

    @property
    def number(self) -> int:
        """Its number, under the name comparisons use."""
        return self.plan

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return document_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobHandle:
    """A job that was submitted and the study it works on."""

    job: str
    study: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationHandle:
    """A job that was submitted and the exploration it works on."""

    job: str
    exploration: str


@dataclass(frozen=True, kw_only=True)
class ExplorationView:
    """An exploration of layouts.

    Attributes:
        exploration: Its id.
        name: Its name.
        request: What was asked for.
        created: UTC.
        state: Of its latest job.
        job: Its latest job; None if there is none.
        error: Why it failed; None otherwise.
        result: Layouts and joint frontier so far.
    """

    exploration: str
    name: str
    request: ExplorationRequest
    created: dt.datetime
    state: str
    job: str | None
    error: str | None
    result: Exploration

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return document_of(self)


@dataclass(frozen=True, kw_only=True)
class JobView:
    """A background job.

    Attributes:
        job: Its id.
        study: The study it works on; None if it has none.
        exploration: The exploration it works on; None if it has none.
        name: Of the study or exploration; None if that is gone.
        state: queued, running, cancelling, cancelled, done, failed or interrupted.
        pid: Its worker's process; None before it started.
        phase: What it does; None before the first report.
        partitions: Progress per partition.
        measurements: Results stored.
        planned: Results planned; None before the first report. Of an exploration: steps, two for
            each layout.
        seconds_left: Estimate; None while unknown.
        message: What it waits for, if anything.
        started: UTC; None before it started.
        error: Why it failed; None otherwise.
        finished: Whether it will not go on by itself.
        resumable: Whether it can be resumed.
    """

    job: str
    study: str | None
    state: str
    pid: int | None
    phase: str | None
    partitions: tuple[PartitionProgress, ...]
    measurements: int
    planned: int | None
    seconds_left: float | None
    message: str
    started: dt.datetime | None
    error: str | None
    finished: bool
    resumable: bool
    exploration: str | None = None
    name: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return document_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRefusal:
    """Rows that could not be taken; `line` is None where a whole file was refused."""

    file: str
    line: int | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportReport:
    """What became of imported measurements.

    Attributes:
        dataset: Id under which they can be replayed.
        taken: Rows taken.
        repeated: Rows that repeat a configuration already there (kept as repeats).
        refused: Rows refused.
        refusals: Each with file, line and reason.
        notes: What else there is to know, in words.
    """

    dataset: str
    taken: int
    repeated: int
    refused: int
    refusals: tuple[ImportRefusal, ...]
    notes: tuple[str, ...] = ()

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return document_of(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetView:
    """Imported measurements that can be replayed.

    Attributes:
        dataset: Their id.
        name: What they are called.
        origin: Where they were read from.
        workload: What they were recorded for.
        rows: How many there are.
        created: UTC.
    """

    dataset: str
    name: str
    origin: str
    workload: Workload
    rows: int
    created: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorCheck:
    """One thing this machine can or cannot do.

    Attributes:
        name: What was looked at.
        state: `ok`, `warning` or `missing`.
        found: What was found.
        remedy: What to do about it; None where nothing need be done.
    """

    name: str
    state: str
    found: str
    remedy: str | None = None

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return document_of(self)


def constraint_words(constraints: Constraints) -> str:
    """Return what plans are kept to, in words."""
    words = [
        f"{name} {value:g} {unit}"
        for name, value, unit in (
            ("deadline", constraints.deadline_s, "s"),
            ("energy budget of the job", constraints.energy_budget_j, "J"),
            ("power cap of the job", constraints.power_cap_w, "W"),
        )
        if value is not None
    ]
    for name, clocks in (
        ("no clock below", constraints.clock_floor_mhz),
        ("no clock above", constraints.clock_ceiling_mhz),
    ):
        words += [f"{name} {clock} MHz on stage {stage}" for stage, clock in clocks.items()]
    words += [
        f"clocks {', '.join(map(str, clocks))} MHz on stage {stage}"
        for stage, clocks in constraints.stage_clocks_mhz.items()
    ]
    if constraints.straggler is not None:
        words.append(
            f"stage {constraints.straggler.stage} slower by "
            f"{constraints.straggler.slowdown_pct:g} %"
        )
    if constraints.max_clocks_per_stage is not None:
        words.append(f"at most {constraints.max_clocks_per_stage} clocks per stage")
    return "; ".join(words)
