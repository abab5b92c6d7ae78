"""The job that explores layouts."""

from kareus.errors import JobError
from kareus.jobs.context import JobContext
from kareus.study.exploration import EXPLORATION_REQUEST, Exploration
from kareus.study.explore import Explorer


def run(context: JobContext) -> Exploration:
    """Run the exploration named in the job's request, from where it stands.

    Raises:
        JobError: The job names none.
        KareusError: The exploration failed.
    """
    exploration = context.request.get("exploration")
    if not isinstance(exploration, str):
        raise JobError(f"job {context.job} names no exploration: submit it with one")
    record = context.store.exploration(exploration)
    request = EXPLORATION_REQUEST.validate_python(record.request)
    return Explorer(context, exploration, request).run()
