"""Use cases about studies: assess, start, plan again, list, delete."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kareus.compose.limits import Constraints, check_constraints
from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.core.plan import Method
from kareus.core.workload import Gpu, Model, Workload
from kareus.errors import ConfigError, KareusError, MeasurementError, NotFoundError
from kareus.profiling.replay import read_recorded
from kareus.search.convergence import Convergence, converge
from kareus.service import choosing, doctor
from kareus.service.base import Base
from kareus.service.views import (
    Assessment,
    JobHandle,
    StudyDetail,
    StudySummary,
    constraint_words,
)
from kareus.store import JobRecord, PartitionProgress, Progress, StudyRecord
from kareus.study.documents import request_of, study_document, workload_of
from kareus.study.request import StudyRequest
from kareus.study.result import StudyResult
from kareus.study.sources import gpu_resources, make_source
from kareus.study.transfer import find_donors
from kareus.workload.build import Finding, Severity
from kareus.workload.gpus import GPUS, load_gpu
from kareus.workload.models import CATALOGUE, load_model
from kareus.workload.partitions import build_partitions

_JOB_KIND = "study"
# Under which key the comparison figures have what Kareus gains.
_OURS = Method.KAREUS.value
# Findings that are not kept with a study: said elsewhere.
_NOT_KEPT = ("budget", "transfer")


class StudyUseCases(Base):
    """Studies and what they measured."""

    def model_names(self) -> tuple[str, ...]:
        """Return the catalogue's models."""
        return tuple(CATALOGUE)

    def gpu_names(self) -> tuple[str, ...]:
        """Return the catalogue's GPUs."""
        return tuple(GPUS)

    def model(self, name: str) -> Model:
        """Return a model by catalogue name or path.

        Raises:
            ConfigError: There is none.
        """
        return load_model(name)

    def gpu(self, name: str) -> Gpu:
        """Return a GPU by catalogue name.

        Raises:
            ConfigError: There is none.
        """
        return load_gpu(name)

    def add_model(self, file_name: str, text: str) -> str:
        """Keep an uploaded Hugging Face configuration; return a name for `settings.model`.

        Raises:
            ConfigError: It is no configuration of a model that can be planned for.
        """
        return choosing.add_model(self.home / "models", file_name, text)

    def assess(self, request: StudyRequest) -> Assessment:
        """Return what a request would mean, errors included; never raises for bad values."""
        replayed = self.store.datasets() if request.source is SourceKind.REPLAY else None
        assessment = _with_records(choosing.assess(request, datasets=replayed), request)
        if not request.transfer or assessment.workload is None:
            return assessment
        donors = self._donors(request, assessment.workload)
        return _with_finding(assessment, _donor_finding(donors, request, assessment.workload))

    def submit(self, request: StudyRequest) -> JobHandle:
        """Start a study as a background job that outlives this process.

        Raises:
            ConfigError: The request has an error; nothing is stored then.
        """
        study = self._create(request)
        return self._submitted(study, self._resources(study))

    def run(
        self, request: StudyRequest, *, on_progress: Callable[[Progress], None] | None = None
    ) -> StudyResult:
        """Run a study in this process; it is listed and can be resumed like any other.

        Raises:
            ConfigError: The request has an error; nothing is stored then.
            CancelledError: It was interrupted.
        """
        study = self._create(request)
        try:
            result = self.manager.run_here(
                _JOB_KIND, study=study, resources=self._resources(study), on_progress=on_progress
            )
        except (ConfigError, MeasurementError):
            if request.source is SourceKind.REPLAY:
                # The records lack what the study needs; nothing was measured that is worth keeping.
                self.store.delete_study(study)
            raise
        assert isinstance(result, StudyResult)
        return result

    def replan(self, ref: str, constraints: Constraints, *, name: str | None = None) -> StudyResult:
        """Plan a finished study again under constraints, as a study of its own.

        Its measurements are taken over; nothing is measured.

        Raises:
            NotFoundError: There is no such study, or it is not done.
            ConfigError: A constraint is no sensible one, or there is none.
            InfeasibleError: No plan keeps to all of them; nothing is stored then.
        """
        study = self._create_constrained(ref, constraints, name)
        try:
            result = self.manager.run_here(_JOB_KIND, study=study)
        except KareusError:
            self.store.delete_study(study)
            raise
        assert isinstance(result, StudyResult)
        return result

    def submit_replan(
        self, ref: str, constraints: Constraints, *, name: str | None = None
    ) -> JobHandle:
        """Do what `replan` does as a background job.

        Where no plan keeps to all constraints the job fails with the line that names those that
        clash; the study it was for is then worth deleting.

        Raises:
            NotFoundError: There is no such study, or it is not done.
            ConfigError: A constraint is no sensible one, or there is none.
        """
        return self._submitted(self._create_constrained(ref, constraints, name))

    def _create_constrained(self, ref: str, constraints: Constraints, name: str | None) -> str:
        """A study with another's measurements and these constraints, not planned yet."""
        record = self.store.find_study(ref)
        options = self.store.load_options(record.id)
        if record.summary is None or not options:
            raise NotFoundError(
                f"study {record.id} is {record.state.value}: only a finished study can be "
                "planned again"
            )
        if constraints == Constraints():
            raise ConfigError(
                f"nothing to plan {record.id} again for: give a deadline, an energy budget, a "
                "power cap, clocks, a straggler or a number of clocks"
            )
        check_constraints(constraints, workload_of(record).parallelism.pp)
        before = request_of(record)
        if before.constraints is not None:
            raise ConfigError(
                f"study {record.id} is planned under constraints already "
                f"({constraint_words(before.constraints)}): plan the study it was made from again, "
                "with all constraints"
            )
        request = replace(before, constraints=constraints, name=name)
        words = f"{_short_words(workload_of(record))}-constrained"
        study = self.store.create_study(
            name or f"{record.name}, constrained",
            request=study_document(request, workload_of(record)),
            source=record.source,
            words=words,
            extrapolated=record.extrapolated,
            notes=[
                *record.notes,
                f"Planned again from the measurements of {record.id} under constraints: "
                f"{constraint_words(constraints)}.",
            ],
            versions=doctor.versions(),
        ).id
        try:
            self.store.add_measurements(
                study, self.store.measurements(record.id), seed=request.seed
            )
            for search in self.store.searches(record.id):
                self.store.save_search(study, search)
            self.store.save_options(study, options)
        except KareusError:
            self.store.delete_study(study)
            raise
        return study

    def studies(self) -> list[StudySummary]:
        """Return the studies, newest first."""
        jobs: dict[str, JobRecord] = {}
        for job in self.manager.list_jobs():
            if job.study is not None:
                jobs.setdefault(job.study, job)
        return [_summary(record, jobs.get(record.id)) for record in self.store.studies()]

    def study(self, ref: str) -> StudyDetail:
        """Return one study by id, unambiguous beginning of an id, or name.

        Raises:
            NotFoundError: None or several match.
        """
        record = self.store.find_study(ref)
        jobs = self.manager.list_jobs(study=record.id)
        request, workload = request_of(record), workload_of(record)
        uncertainty = None
        if record.extrapolated:
            _, uncertainty = choosing.trust(request, workload)
        return StudyDetail(
            summary=_summary(self.store.study(record.id), jobs[0] if jobs else None),
            request=request,
            workload=workload,
            notes=record.notes,
            measurements=sum(self.store.count_measurements(record.id).values()),
            versions=record.versions,
            uncertainty=uncertainty,
            compare=dict(record.summary) if record.summary is not None else None,
        )

    def delete_study(self, ref: str) -> None:
        """Delete a study with its measurements and plans.

        One that starts from it and is not finished can no longer be resumed.

        Raises:
            NotFoundError: There is none.
            JobError: A job is working on it.
        """
        self.store.delete_study(self.store.find_study(ref).id)

    def measurements(self, ref: str, partition: str | None = None) -> list[Measurement]:
        """Return a study's measurements, or those of one partition, in the order they came."""
        results = self.store.measurements(self.store.find_study(ref).id, partition)
        return [result for result in results if isinstance(result, Measurement)]

    def failures(self, ref: str) -> list[FailedMeasurement]:
        """Return what could not be measured, with the reasons."""
        results = self.store.measurements(self.store.find_study(ref).id)
        return [result for result in results if isinstance(result, FailedMeasurement)]

    def partitions(self, ref: str) -> list[PartitionProgress]:
        """Return every searched partition with its measurements and the search's convergence."""
        record = self.store.find_study(ref)
        return [
            PartitionProgress(
                name=search.partition,
                done=search.done,
                planned=search.planned,
                hypervolume=search.hypervolume,
            )
            for search in self.store.searches(record.id)
        ]

    def convergence(self, ref: str, partition: str) -> Convergence | None:
        """Return how the search of a partition converged, beside random picks.

        None where it is not searched, hardly anything of it is measured yet, or its records are
        gone.

        Raises:
            NotFoundError: There is no such study or partition.
        """
        record = self.store.find_study(ref)
        request, workload = request_of(record), workload_of(record)
        partitions = build_partitions(workload)
        if partition not in partitions:
            raise NotFoundError(
                f"study {record.id} has no partition {partition!r}: choose one of "
                f"{', '.join(partitions)}"
            )
        one = partitions[partition]
        if not one.searched:
            return None
        candidates: Iterable[Configuration] = one.space()
        if request.source is SourceKind.REPLAY:
            try:
                candidates = make_source(request, workload, partitions, self.store).space(one)
            except KareusError:
                return None
        measured = self.measurements(record.id, partition)
        return converge(
            one,
            candidates,
            [result for result in measured if result.energy_j is not None],
            static_power_w=workload.gpu.static_power_w,
        )

    def _create(self, request: StudyRequest) -> str:
        """Store a new study, or refuse its request before anything is stored."""
        assessment = self.assess(request)
        if not assessment.ready or assessment.workload is None:
            raise ConfigError(assessment.findings[0].message)
        workload = assessment.workload
        request = _with_absolute_paths(request)
        notes = [one.message for one in assessment.findings if one.field not in _NOT_KEPT]
        if request.transfer:
            request = replace(request, donors=self._donors(request, workload))
            notes.append(_donor_finding(request.donors, request, workload).message)
        words = _short_words(workload)
        record = self.store.create_study(
            request.name or words,
            request=study_document(request, workload),
            source=request.source,
            words=words,
            extrapolated=assessment.extrapolated,
            notes=notes,
            versions=doctor.versions(),
        )
        return record.id

    def _submitted(self, study: str, resources: tuple[str, ...] = ()) -> JobHandle:
        """Start a new study's job; without one the study is not kept."""
        try:
            job = self.manager.submit(_JOB_KIND, study=study, resources=resources)
        except KareusError:
            self.store.delete_study(study)
            raise
        return JobHandle(job=job.id, study=study)

    def _donors(self, request: StudyRequest, workload: Workload) -> tuple[str, ...]:
        """The studies that one of this request would start from."""
        return find_donors(self.store.studies(archived=None), request, workload)

    def _resources(self, study: str) -> tuple[str, ...]:
        """The GPUs a study measures on: two studies on one would spoil each other's energy."""
        record = self.store.study(study)
        return gpu_resources(request_of(record), workload_of(record))


def _with_records(assessment: Assessment, request: StudyRequest) -> Assessment:
    """The assessment with what is wrong with the files of measurements to be replayed."""
    workload, named = assessment.workload, request.measurements
    if request.source is not SourceKind.REPLAY or named is None or not assessment.ready:
        return assessment
    assert workload is not None, "what is ready has a workload"
    if not _exists(named):
        return assessment  # an imported data set
    path = Path(named)
    try:
        recorded = read_recorded(path, build_partitions(workload), workload=workload)
    except KareusError as error:
        severity, message = Severity.ERROR, str(error)
    else:
        if not recorded.refusals:
            return assessment
        severity = Severity.WARNING
        message = (
            f"{recorded.num_refused} rows of {path} are refused, the first: {recorded.refusals[0]}"
        )
    return _with_finding(
        assessment, Finding(field="measurements", severity=severity, message=message)
    )


def _donor_finding(donors: tuple[str, ...], request: StudyRequest, workload: Workload) -> Finding:
    """Where a study that is to start from others starts from."""
    if not donors:
        return Finding(
            field="transfer",
            severity=Severity.ERROR,
            message=f"no finished {request.source.value} study on {workload.gpu.name} to start "
            "from: finish one first",
        )
    return Finding(
        field="transfer",
        severity=Severity.NOTE,
        message=f"Searches start from what {', '.join(donors)} measured.",
    )


def _with_finding(assessment: Assessment, finding: Finding) -> Assessment:
    return replace(assessment, findings=choosing.in_order([*assessment.findings, finding]))


def _with_absolute_paths(request: StudyRequest) -> StudyRequest:
    """The request with its files named so that a worker elsewhere finds them, too."""
    measurements, calibration = request.measurements, request.calibration
    if measurements is not None and _exists(measurements):
        measurements = str(Path(measurements).resolve())
    if calibration is not None and _exists(calibration):
        calibration = str(Path(calibration).resolve())
    return replace(request, measurements=measurements, calibration=calibration)


def _exists(named: str) -> bool:
    """Whether a text is the path of something; what cannot be a path is not."""
    try:
        return Path(named).exists()
    except (OSError, ValueError):
        return False


def _summary(record: StudyRecord, job: JobRecord | None) -> StudySummary:
    figures: Any = record.summary or {}
    return StudySummary(
        id=record.id,
        name=record.name,
        workload_line=workload_line(workload_of(record)),
        source=record.source,
        extrapolated=record.extrapolated,
        state=record.state.value,
        created=record.created_at,
        iso_time_energy_reduction_pct=figures.get("iso_time_energy_reduction_pct", {}).get(_OURS),
        iso_energy_time_reduction_pct=figures.get("iso_energy_time_reduction_pct", {}).get(_OURS),
        job=job.id if job is not None else None,
        error=record.error,
    )


def _degrees(workload: Workload) -> list[str]:
    """The parallelism in words, such as `tp8`; degrees of 1 go without saying, but tp and pp."""
    parallelism = workload.parallelism
    return [
        f"{name}{degree}"
        for name, degree in (
            ("tp", parallelism.tp),
            ("cp", parallelism.cp),
            ("pp", parallelism.pp),
            ("dp", parallelism.dp),
        )
        if degree > 1 or name in ("tp", "pp")
    ]


def _short_words(workload: Workload) -> str:
    """Model and parallelism, for names and ids."""
    return "-".join([workload.model.name, *_degrees(workload)])


def workload_line(workload: Workload) -> str:
    """Return a workload in one line of words."""
    return (
        f"{workload.model.name}, {workload.parallelism.num_gpus} x {workload.gpu.name}, "
        f"{' '.join(_degrees(workload))}, {workload.num_microbatches} microbatches of "
        f"{workload.microbatch_size} x {workload.seq_len}"
    )
