"""What a job's function is given."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kareus.errors import CancelledError
from kareus.jobs import states
from kareus.store import Progress, Store


@dataclass(frozen=True, kw_only=True)
class JobContext:
    """Everything a job's function needs.

    Attributes:
        store: Where it keeps its results; usable from any thread.
        job: The job's id.
        study: The study it works on; None if it has none.
        attempt: 1 for the first run, 2 after a resume, ...
        request: The arguments it was submitted with.
        should_cancel: Whether it should stop: cheap, ask after every measurement.
        progress: Takes how far the job is; cheap, written to the store about twice a second.
        logger: Writes to the job's log.
    """

    store: Store
    job: str
    study: str | None
    attempt: int
    request: Mapping[str, object]
    should_cancel: Callable[[], bool]
    progress: Callable[[Progress], None]
    logger: logging.Logger

    def check(self) -> None:
        """Do nothing, unless the job should stop.

        Raises:
            CancelledError: It should; a function that lets this pass ends as cancelled.
        """
        if self.should_cancel():
            raise CancelledError(states.stopped_words(self.job))


class JobFunction(Protocol):
    """A job's function; what it returns counts only where the job runs in the foreground.

    It ends normally when its work is done, raises `CancelledError` where it stopped because it
    was asked to, and anything else where it failed.
    """

    def __call__(self, context: JobContext) -> object:
        """Do the work."""
