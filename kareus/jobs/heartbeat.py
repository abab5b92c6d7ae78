"""A worker's sign of life: a thread that tells the store, and hears from it when to stop."""

import logging
import os
import threading
import time
from collections.abc import Callable

from kareus.errors import StoreError
from kareus.jobs.processes import end_job_processes
from kareus.store import JobState, Progress, Store

BEAT_S = 0.5
# How long without a sign of life before a worker counts as dead (where its process cannot be
# looked at), and how long the function of a cancelled job may take to stop by itself.
STALE_S = 30.0
GRACE_S = 10.0

_LOGGER = logging.getLogger(__name__)


class Heartbeat(threading.Thread):
    """Beats twice a second for one attempt of a job; a daemon thread, stopped with `stop`.

    Each beat writes the time and the latest progress. When the store says that the job is to be
    cancelled, or another attempt took over, `should_cancel` becomes true and the processes the
    job started are ended; if the function does not stop within the grace time, `on_overdue` is
    called once.

    Args:
        store: Where the job is kept.
        job: The job's id.
        attempt: The attempt that beats.
        on_overdue: What to do when the function does not stop; None to wait for ever.
        grace_s: How long it may take, in seconds.
        beat_s: Time between beats, in seconds.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        *,
        attempt: int,
        on_overdue: Callable[[], None] | None = None,
        grace_s: float = GRACE_S,
        beat_s: float = BEAT_S,
    ) -> None:
        super().__init__(name=f"heartbeat of {job}", daemon=True)
        self._store = store
        self._job = job
        self._attempt = attempt
        self._on_overdue = on_overdue
        self._grace_s = grace_s
        self._beat_s = beat_s
        self._cancel = threading.Event()
        self._wake = threading.Event()
        self._stopping = False
        self._progress: Progress | None = None
        self.taken_over = False

    def should_cancel(self) -> bool:
        """Return whether the job should stop."""
        return self._cancel.is_set()

    def wait_cancel(self, timeout_s: float) -> bool:
        """Wait until the job should stop, at most so long; return whether it should."""
        return self._cancel.wait(timeout_s)

    def cancel(self) -> None:
        """Ask the job to stop; safe in a signal handler."""
        self._cancel.set()
        self._wake.set()

    def progress(self, progress: Progress) -> None:
        """Take how far the job is; written with the next beat."""
        self._progress = progress

    def stop(self) -> None:
        """Write the latest progress and stop beating; call it before the final state is set."""
        self._stopping = True
        self._wake.set()
        if self.is_alive():
            self.join()
        self._beat()

    def run(self) -> None:
        """Beat until stopped."""
        cancelled_at: float | None = None
        while not self._stopping:
            self._beat()
            if self._cancel.is_set():
                if cancelled_at is None:
                    cancelled_at = time.monotonic()
                    end_job_processes(
                        self._job, grace_s=self._grace_s / 2, keep=(os.getppid(), os.getpid())
                    )
                elif time.monotonic() - cancelled_at > self._grace_s and not self._stopping:
                    end_job_processes(self._job, grace_s=0.0, keep=(os.getppid(), os.getpid()))
                    if self._on_overdue is not None:
                        self._on_overdue()
                        return
            self._wake.wait(self._beat_s)
            self._wake.clear()

    def _beat(self) -> None:
        progress, self._progress = self._progress, None
        try:
            state = self._store.beat(
                self._job, attempt=self._attempt, heartbeat_s=time.time(), progress=progress
            )
        except StoreError as error:
            # A busy database must not end an hour of measuring; the next beat tries again.
            self._progress = self._progress or progress
            _LOGGER.warning("heartbeat of job %s: %s", self._job, error)
            return
        if state is None and not self._stopping:
            self.taken_over = True
        if state is None or state is JobState.CANCELLING:
            self._cancel.set()
