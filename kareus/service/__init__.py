"""The use cases: the one door for the command line and the dashboard."""

from collections.abc import Callable

from kareus.service.service import Service
from kareus.service.views import (
    Assessment,
    DoctorCheck,
    ImportRefusal,
    ImportReport,
    JobHandle,
    JobView,
    PlanSummary,
    StudyDetail,
    StudySummary,
    Uncertainty,
)
from kareus.store import PartitionProgress, Phase, Progress
from kareus.study.request import StudyRequest
from kareus.study.runner import StudyResult
from kareus.workload.build import Finding, Severity, WorkloadSettings
from kareus.workload.memory import MemoryEstimate, StageMemory

ProgressCallback = Callable[[Progress], None]

__all__ = [
    "Assessment",
    "DoctorCheck",
    "Finding",
    "ImportRefusal",
    "ImportReport",
    "JobHandle",
    "JobView",
    "MemoryEstimate",
    "PartitionProgress",
    "Phase",
    "PlanSummary",
    "Progress",
    "ProgressCallback",
    "Service",
    "Severity",
    "StageMemory",
    "StudyDetail",
    "StudyRequest",
    "StudyResult",
    "StudySummary",
    "Uncertainty",
    "WorkloadSettings",
]
