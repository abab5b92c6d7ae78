"""The job that runs a study."""

from kareus.errors import JobError
from kareus.jobs.context import JobContext
from kareus.study.documents import request_of, workload_of
from kareus.study.result import StudyResult
from kareus.study.runner import run_study


def run(context: JobContext) -> StudyResult:
    """Run the study this job works on, from where it stands.

    Raises:
        JobError: The job has no study.
        KareusError: The study failed.
    """
    if context.study is None:
        raise JobError(f"job {context.job} names no study: submit it with one")
    record = context.store.study(context.study)
    return run_study(context, context.study, request_of(record), workload_of(record))
