"""Use cases about training runs: planned against actual, and planning again with what they saw."""

from dataclasses import dataclass, replace
from pathlib import Path

from kareus.core.measurement import Measurement, SourceKind
from kareus.core.plan import Method
from kareus.core.workload import Workload
from kareus.errors import ConfigError, KareusError, NotFoundError
from kareus.schedule.bundle import read_bundle
from kareus.schedule.document import Schedule
from kareus.service import doctor, training_files
from kareus.service.base import Base
from kareus.service.training_files import TrainingLog
from kareus.service.views import JobHandle, document_of
from kareus.store import StudyRecord
from kareus.study.carry_over import CarriedOver, carry_over
from kareus.study.documents import request_of, study_document, workload_of
from kareus.train.deviations import TrackReport
from kareus.train.log import DEFAULT_FOLDER, read_log
from kareus.train.perfetto import combined_trace
from kareus.train.track import DEFAULT_THRESHOLD, track, track_logs

_JOB_KIND = "study"


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A training run against the plan it trained under.

    Attributes:
        report: The comparison.
        workload: What was trained.
        method: The plan's method.
        source: Where the plan's numbers come from.
        extrapolated: Whether a simulator was not calibrated for the plan's GPU.
        ended: Whether every rank whose log is there has ended well.
        failure: Why training failed, in a rank's words; None if it did not, or goes on.
        obstacle: Why it cannot be planned again with the run's measurements; None if it can.
    """

    report: TrackReport
    workload: Workload
    method: Method
    source: SourceKind
    extrapolated: bool
    ended: bool
    failure: str | None
    obstacle: str | None


class TrainingUseCases(Base):
    """Training runs under exported schedules."""

    def training_logs(self) -> list[TrainingLog]:
        """Return the newest logs of this home and of the folder the process runs in."""
        return training_files.list_logs((self._log_folder, DEFAULT_FOLDER))

    def training_log(self, log: str | Path) -> TrainingLog:
        """Return one log by its folder.

        Raises:
            NotFoundError: There is none.
        """
        return training_files.describe_log(Path(log).expanduser())

    def training_changed_s(self, bundle: str | Path, log: str | Path) -> float:
        """Return when a bundle or log last changed: reading them again before that is in vain."""
        path = Path(bundle).expanduser()
        written_s = path.stat().st_mtime if path.exists() else 0.0
        return max(written_s, training_files.newest_s(Path(log).expanduser()))

    def add_training_log(self, files: list[tuple[str, bytes]]) -> TrainingLog:
        """Keep uploaded log files (name, content) as one log.

        Raises:
            ConfigError: A file is none of a log.
            NotFoundError: No rank says who it is.
        """
        return self.training_log(training_files.keep_log(self._log_folder, files))

    def add_bundle(self, name: str, content: bytes) -> str:
        """Keep an uploaded bundle and return its path.

        Raises:
            ScheduleError: It is no bundle, or was altered.
        """
        return training_files.keep_bundle(self.home / "bundles", name, content)

    def training_run(
        self, bundle: str | Path, log: str | Path, *, threshold: float = DEFAULT_THRESHOLD
    ) -> TrainingRun:
        """Hold a training log against the bundle it trained under.

        Raises:
            ConfigError: The threshold is not positive.
            NotFoundError: There is no log.
            ScheduleError: The log is that of another bundle, or holds no complete step.
        """
        schedule = read_bundle(Path(bundle).expanduser())
        logs = read_log(Path(log).expanduser())
        report = track_logs(schedule, logs, threshold=threshold)
        failures = [one.failure for one in logs if one.failure is not None and not one.lost_peer]
        return TrainingRun(
            report=report,
            workload=schedule.workload,
            method=schedule.method,
            source=schedule.provenance.source,
            extrapolated=schedule.provenance.extrapolated,
            ended=all(one.ended for one in logs),
            failure=next(iter(failures), None),
            obstacle=self._obstacle(schedule, report),
        )

    def training_trace(
        self, bundle: str | Path, log: str | Path, *, step: int | None = None
    ) -> tuple[str, bytes]:
        """Return planned and actual timeline of a step (the last) for Perfetto: name and content.

        Raises:
            NotFoundError: There is no log.
            ScheduleError: The bundle cannot be read.
        """
        folder = Path(log).expanduser()
        trace = combined_trace(read_bundle(Path(bundle).expanduser()), read_log(folder), step=step)
        return f"{folder.resolve().name}-timeline.json", trace.encode()

    def replan_with_measurements(
        self, bundle: str | Path, log: str | Path, *, name: str | None = None
    ) -> JobHandle:
        """Plan a run's study again with what the run measured, as a background job.

        The run's measurements take the place of the study's own of the same configurations; all
        others are carried over by the ratios the run shows (`kareus.study.carry_over`). Both
        become a data set that a study of its own replays.

        Raises:
            ConfigError: The run measured nothing to plan with.
            NotFoundError: The bundle's study is not in this database, or there is no log.
            ScheduleError: The log is that of another bundle.
        """
        path, folder = Path(bundle).expanduser(), Path(log).expanduser()
        schedule = read_bundle(path)
        report = track(path, folder)
        if not report.measurements:
            raise ConfigError(_nothing_measured(report))
        record = self._study_of(schedule)
        carried = carry_over(
            (m for m in self.store.measurements(record.id) if isinstance(m, Measurement)),
            report.measurements,
            static_power_w=schedule.provenance.static_power_w,
        )
        dataset = self.store.add_dataset(
            f"{schedule.workload.model.name}-training",
            origin=str(folder),
            workload=document_of(schedule.workload),
            report={"taken": carried.num_run, "carried_over": _num_carried(carried)},
            measurements=carried.measurements,
        )
        request = replace(
            request_of(record),
            source=SourceKind.REPLAY,
            measurements=dataset.id,
            budget="exhaustive",
            transfer=False,
            donors=(),
            name=name,
        )
        study = self.store.create_study(
            name or f"{record.name}, replanned",
            request=study_document(request, workload_of(record)),
            source=SourceKind.REPLAY,
            words=f"{record.name}-replanned",
            extrapolated=record.extrapolated,
            notes=[*record.notes, _words(carried, record, folder)],
            versions=doctor.versions(),
        ).id
        try:
            return JobHandle(job=self.manager.submit(_JOB_KIND, study=study).id, study=study)
        except KareusError:
            self.store.delete_study(study)
            raise

    def _obstacle(self, schedule: Schedule, report: TrackReport) -> str | None:
        """Why a run's study cannot be planned again with the run's measurements."""
        if not report.measurements:
            return _nothing_measured(report)
        try:
            self._study_of(schedule)
        except NotFoundError as error:
            return str(error)
        return None

    def _study_of(self, schedule: Schedule) -> StudyRecord:
        """The study a schedule was planned in.

        Raises:
            NotFoundError: It is not here, or is another one of that name.
        """
        study = schedule.provenance.study
        try:
            record = self.store.find_study(study)
        except NotFoundError:
            record = None
        if record is None or record.id != study or workload_of(record) != schedule.workload:
            raise NotFoundError(
                f"the bundle's study {study!r} is not in this database: use the one it was "
                "planned in, as its measurements are needed beside the run's"
            )
        return record

    @property
    def _log_folder(self) -> Path:
        return self.home / DEFAULT_FOLDER.name


def _nothing_measured(report: TrackReport) -> str:
    if report.device == "cpu":
        return (
            "the run trained on a CPU, whose times are not those of the plan's GPU: train on "
            "that GPU to plan again with the run"
        )
    return (
        "the run traced no step after its first: train for longer, or with a smaller --trace-every "
        "(0 traces none)"
    )


def _num_carried(carried: CarriedOver) -> int:
    return len(carried.measurements) - carried.num_run


def _words(carried: CarriedOver, record: StudyRecord, log: Path) -> str:
    energies = (
        "their dynamic energies are kept"
        if carried.dynamic_ratio is None
        else f"dynamic energies by {carried.dynamic_ratio:.3f}"
    )
    return (
        f"{carried.num_run} measurements are those of the training run {log.name}; "
        f"{_num_carried(carried)} are carried over from study {record.id}, times by "
        f"{carried.time_ratio:.3f}, {energies} (medians of what both measured)."
    )
