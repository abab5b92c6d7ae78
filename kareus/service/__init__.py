"""The use cases: the one door for the command line and the dashboard."""

from collections.abc import Callable

from kareus.compose.limits import Constraints, Straggler
from kareus.compose.selection import Preference, select_plan
from kareus.search.convergence import Convergence
from kareus.service.exploring import ExplorationAssessment
from kareus.service.kept_files import BUILT_IN, CalibrationView, Records, RecordsKind
from kareus.service.service import Service
from kareus.service.training import TrainingRun
from kareus.service.training_files import TrainingLog
from kareus.service.trusting import RecordedPoint, Validation
from kareus.service.views import (
    Assessment,
    DoctorCheck,
    ExplorationHandle,
    ExplorationView,
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
from kareus.study.exploration import (
    Exploration,
    ExplorationRequest,
    Layout,
    LayoutPoint,
    LayoutState,
    layout_words,
)
from kareus.study.request import StudyRequest
from kareus.study.result import StudyResult
from kareus.train.deviations import (
    Cause,
    DriftAlarm,
    InstructionDeviation,
    StageDeviation,
    StepDeviation,
    TrackReport,
)
from kareus.workload.build import Finding, Severity, WorkloadSettings
from kareus.workload.memory import MemoryEstimate, StageMemory

ProgressCallback = Callable[[Progress], None]

__all__ = [
    "BUILT_IN",
    "Assessment",
    "CalibrationView",
    "Cause",
    "Constraints",
    "Convergence",
    "DoctorCheck",
    "DriftAlarm",
    "Exploration",
    "ExplorationAssessment",
    "ExplorationHandle",
    "ExplorationRequest",
    "ExplorationView",
    "Finding",
    "ImportRefusal",
    "ImportReport",
    "InstructionDeviation",
    "JobHandle",
    "JobView",
    "Layout",
    "LayoutPoint",
    "LayoutState",
    "MemoryEstimate",
    "PartitionProgress",
    "Phase",
    "PlanSummary",
    "Preference",
    "Progress",
    "ProgressCallback",
    "RecordedPoint",
    "Records",
    "RecordsKind",
    "Service",
    "Severity",
    "StageDeviation",
    "StageMemory",
    "StepDeviation",
    "Straggler",
    "StudyDetail",
    "StudyRequest",
    "StudyResult",
    "StudySummary",
    "TrackReport",
    "TrainingLog",
    "TrainingRun",
    "Uncertainty",
    "Validation",
    "WorkloadSettings",
    "layout_words",
    "select_plan",
]
