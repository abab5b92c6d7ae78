"""Everything a user can do, as methods of one object."""

from kareus.service.data import DataUseCases
from kareus.service.exploring import ExplorationUseCases
from kareus.service.jobs import JobUseCases
from kareus.service.plans import PlanUseCases
from kareus.service.studies import StudyUseCases
from kareus.service.training import TrainingUseCases
from kareus.service.trusting import TrustUseCases


class Service(
    StudyUseCases,
    PlanUseCases,
    JobUseCases,
    ExplorationUseCases,
    DataUseCases,
    TrustUseCases,
    TrainingUseCases,
):
    """Studies, plans, jobs, explorations and data of one database.

    Cheap to make; the database is opened at the first use.
    """
