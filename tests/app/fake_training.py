"""The stand-in's training runs."""

from abc import abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kareus.errors import NotFoundError, ScheduleError
from kareus.service import JobHandle, JobView, StudySummary, TrainingLog, TrainingRun

_CREATED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


@dataclass
class FakeTraining:
    """Holds training runs in memory."""

    training_logs_by_path: dict[str, TrainingLog] = field(default_factory=dict)
    training_runs: dict[tuple[str, str], TrainingRun] = field(default_factory=dict)
    thresholds: list[float] = field(default_factory=list)
    replanned_runs: list[tuple[str, str]] = field(default_factory=list)

    def add_training_run(
        self, run: TrainingRun, log: str = "/logs/run-1", *, bundle: str | None = "/bundles/b.zip"
    ) -> None:
        """Add a run; its log says which bundle it was launched with, or not."""
        self.training_logs_by_path[log] = TrainingLog(
            path=log,
            updated=_CREATED + timedelta(hours=len(self.training_logs_by_path)),
            num_ranks=run.report.ranks,
            device=run.report.device,
            bundle=bundle,
        )
        self.training_runs["/bundles/b.zip", log] = run

    def training_logs(self) -> list[TrainingLog]:
        return list(self.training_logs_by_path.values())[::-1]

    def training_log(self, log: str) -> TrainingLog:
        if log not in self.training_logs_by_path:
            raise NotFoundError(f"{log}: holds no training log (rank-00000.jsonl, ...)")
        return self.training_logs_by_path[log]

    def training_changed_s(self, bundle: str, log: str) -> float:
        return 0.0

    def training_run(self, bundle: str, log: str, *, threshold: float = 0.1) -> TrainingRun:
        self.thresholds.append(threshold)
        if (bundle, log) not in self.training_runs:
            raise ScheduleError(f"the log of rank 0 was not written under {bundle}")
        return self.training_runs[bundle, log]

    def training_trace(self, bundle: str, log: str) -> tuple[str, bytes]:
        return "run-timeline.json", b"{}"

    def add_bundle(self, name: str, content: bytes) -> str:
        if not content.startswith(b"PK"):
            raise ScheduleError(f"{name}: not a readable .zip")
        return f"/bundles/{name}"

    def add_training_log(self, files: list[tuple[str, bytes]]) -> TrainingLog:
        return self.training_log("/logs/" + "+".join(name for name, _ in files))

    def replan_with_measurements(self, bundle: str, log: str) -> JobHandle:
        self.replanned_runs.append((bundle, log))
        self.add_study("s-replanned", state="running", job="j-replanned")
        self.add_job("j-replanned", study="s-replanned")
        return JobHandle(job="j-replanned", study="s-replanned")

    @abstractmethod
    def add_study(self, study: str = "s1", **changes: Any) -> StudySummary:
        """Add a study."""

    @abstractmethod
    def add_job(self, job: str = "j-s1", **changes: Any) -> JobView:
        """Add a job."""
