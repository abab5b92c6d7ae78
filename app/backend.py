"""The dashboard's only way to the service, and the few reads worth keeping.

Every cached value is the same for all users, keyed by the study and its state, and bounded; nothing
that belongs to one user is in here.
"""

import contextlib
from collections.abc import Sequence

import streamlit as st

from kareus.core.measurement import Measurement
from kareus.core.plan import Method, Plan
from kareus.core.timeline import TimelineRow
from kareus.errors import NotFoundError
from kareus.service import (
    CalibrationView,
    Convergence,
    DoctorCheck,
    ExplorationAssessment,
    ExplorationRequest,
    PartitionProgress,
    PlanSummary,
    Service,
    StudyDetail,
    StudySummary,
    TrainingRun,
    Validation,
    WorkloadSettings,
)


def service() -> Service:
    """Return a service; cheap, and never shared between threads."""
    return Service()


def study_summaries(named: str | None = None) -> list[StudySummary]:
    """Return the studies, newest first; last the one of that id, if it is kept out of the list.

    Layouts of an exploration are such studies.
    """
    studies = service().studies()
    if named is not None and all(study.id != named for study in studies):
        with contextlib.suppress(NotFoundError):
            found = service().study(named).summary
            studies += [found] if found.id == named else []
    return studies


@st.cache_data(max_entries=64, show_spinner=False)
def study_detail(study: str, state: str) -> StudyDetail:  # noqa: ARG001 the state is part of the key
    """Return everything about a study in that state."""
    return service().study(study)


@st.cache_data(max_entries=32, show_spinner=False)
def plan_summaries(study: str, state: str) -> dict[Method, Sequence[PlanSummary]]:  # noqa: ARG001
    """Return every method's frontier, fastest plan first; methods without plans are left out."""
    frontiers: dict[Method, list[PlanSummary]] = {}
    for summary in service().plan_summaries(study):
        frontiers.setdefault(summary.method, []).append(summary)
    return {method: frontiers[method] for method in Method if method in frontiers}


@st.cache_data(max_entries=64, show_spinner=False)
def plan(study: str, state: str, method: Method, number: int) -> Plan:  # noqa: ARG001
    """Return a plan with its choices."""
    return service().plan(study, method, number)


@st.cache_data(max_entries=64, show_spinner=False)
def timeline(study: str, state: str, method: Method, number: int) -> tuple[TimelineRow, ...]:  # noqa: ARG001
    """Return a plan's timeline."""
    return service().timeline(study, method, number)


@st.cache_data(max_entries=32, show_spinner=False)
def measurements(study: str, partition: str, count: int) -> list[Measurement]:  # noqa: ARG001
    """Return a partition's measurements; `count`, how many there are, is part of the key."""
    return service().measurements(study, partition)


def partitions(study: str) -> list[PartitionProgress]:
    """Return the searched partitions of a study: not kept, as a running one moves."""
    return service().partitions(study)


@st.cache_data(max_entries=32, show_spinner=False)
def convergence(study: str, partition: str, count: int) -> Convergence | None:  # noqa: ARG001
    """Return how a partition's search converged; `count` of measurements is part of the key."""
    return service().convergence(study, partition)


@st.cache_data(max_entries=1, ttl="30s", show_spinner=False)
def doctor() -> list[DoctorCheck]:
    """Return what this machine can do, at most half a minute old."""
    return service().doctor()


@st.cache_data(max_entries=8, ttl="30s", show_spinner=False)
def preflight(settings: WorkloadSettings) -> list[DoctorCheck]:
    """Return whether this machine can measure a workload, at most half a minute old."""
    return service().preflight(settings)


@st.cache_data(max_entries=64, show_spinner=False)
def exploration_assessment(request: ExplorationRequest) -> ExplorationAssessment:
    """Return what an exploration would mean."""
    return service().assess_exploration(request)


@st.cache_data(max_entries=16, show_spinner=False)
def built_in_calibration(gpu: str) -> CalibrationView:
    """Return the calibration a GPU comes with."""
    return service().built_in_calibration(gpu)


@st.cache_data(max_entries=16, show_spinner=False)
def validation(records: str, calibration: str | None, written_s: float) -> Validation:  # noqa: ARG001
    """Hold a calibration against kept records; when its file was written is part of the key."""
    return service().validate_records(records, calibration=calibration)


@st.cache_data(max_entries=8, show_spinner=False)
def training_run(bundle: str, log: str, threshold: float, changed_s: float) -> TrainingRun:  # noqa: ARG001
    """Hold a training log against its bundle; when either last changed is part of the key."""
    return service().training_run(bundle, log, threshold=threshold)
