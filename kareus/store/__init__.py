"""The database: studies, measurements, frontiers, plans, data sets and jobs. No other place."""

from kareus.store.records import (
    DatasetRecord,
    ExplorationRecord,
    JobRecord,
    JobState,
    PartitionProgress,
    Phase,
    PlanSummary,
    Progress,
    SearchRecord,
    StudyRecord,
    StudyState,
)
from kareus.store.store import Store, default_home, default_path

__all__ = [
    "DatasetRecord",
    "ExplorationRecord",
    "JobRecord",
    "JobState",
    "PartitionProgress",
    "Phase",
    "PlanSummary",
    "Progress",
    "SearchRecord",
    "Store",
    "StudyRecord",
    "StudyState",
    "default_home",
    "default_path",
]
