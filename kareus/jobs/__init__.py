"""Background jobs: detached workers, whose state is kept in the store and nowhere else."""

from kareus.jobs.context import JobContext, JobFunction
from kareus.jobs.manager import JobManager

__all__ = ["JobContext", "JobFunction", "JobManager"]
