"""Starting, stopping, resuming and watching jobs: what the service and the command line use."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kareus.errors import JobError
from kareus.jobs import kinds, logs, states
from kareus.jobs.heartbeat import STALE_S
from kareus.jobs.processes import (
    JOB_VARIABLE,
    creation_time_s,
    end_job_processes,
    this_host,
    worker_alive,
)
from kareus.jobs.reaper import reap
from kareus.jobs.runner import run_job
from kareus.store import JobRecord, JobState, Progress, Store, StudyState
from kareus.store.records import now

_POLL_S = 0.1


class JobManager:
    """Handles the jobs of one store. Holds no state of its own: any number may exist at once.

    Args:
        store: Where the jobs are kept.
        kinds_module: Module with the table `KINDS` (see `kareus.jobs.kinds`).
        stale_s: Seconds without a sign of life before a worker elsewhere counts as gone.
    """

    def __init__(
        self, store: Store, *, kinds_module: str = kinds.__name__, stale_s: float = STALE_S
    ) -> None:
        self._store = store
        self._kinds_module = kinds_module
        self._stale_s = stale_s

    def submit(
        self,
        kind: str,
        *,
        study: str | None = None,
        request: Mapping[str, object] | None = None,
        resources: Sequence[str] = (),
    ) -> JobRecord:
        """Start a job in the background, in a process that outlives this one.

        It waits in the queue until it holds all its resources alone.

        Args:
            kind: Which registered function it runs.
            study: The study it works on.
            request: Arguments of the function; JSON values only.
            resources: Names it must hold alone, such as `gpu:0`; none for the simulator.

        Returns:
            The job, queued.

        Raises:
            JobError: The store is in memory, the kind is unknown, or a job works on the study.
            NotFoundError: There is no such study.
        """
        path = self._database()
        self._check_kind(kind)
        job = self._store.create_job(
            kind,
            study=study,
            request=request,
            resources=resources,
            log_path=str(path.parent / "logs" / "{job}.log"),
        )
        return self._start(job)

    def run_here(
        self,
        kind: str,
        *,
        study: str | None = None,
        request: Mapping[str, object] | None = None,
        resources: Sequence[str] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> object:
        """Run a job in this process and wait for it; it is listed and can be resumed like others.

        SIGINT and SIGTERM cancel it (a second one ends the process as usual).

        Args:
            kind: Which registered function it runs.
            study: The study it works on.
            request: Arguments of the function; JSON values only.
            resources: Names it must hold alone.
            on_progress: Is told how far the job is; for progress bars.

        Returns:
            What the function returns.

        Raises:
            CancelledError: It was cancelled.
            Exception: What the function raised.
        """
        function = kinds.resolve(kind, self._kinds_module)
        job = self._store.create_job(kind, study=study, request=request, resources=resources)
        return run_job(self._store, job.id, function, on_progress=on_progress)

    def cancel(self, job: str) -> JobRecord:
        """Ask a job to stop, its child processes too; return at once, without waiting for it.

        A job on another machine notices within a second. Cancelling a cancelled job is no error.

        Raises:
            JobError: It is finished.
            NotFoundError: There is no such job.
        """
        reap(self._store, stale_s=self._stale_s)
        record = self._store.job(job)
        if record.state in (JobState.CANCELLING, JobState.CANCELLED):
            return record
        if record.state is JobState.INTERRUPTED or record.state in states.FINAL:
            raise JobError(f"job {job} is {record.state}: there is nothing to cancel")
        if record.pid is None:
            # Not started yet: its worker will find it cancelled and leave.
            with self._store.transaction():
                changed = self._store.change_job(
                    job,
                    expected=[JobState.QUEUED],
                    attempt=record.attempt,
                    state=JobState.CANCELLED,
                    finished_at=now(),
                )
                if changed:
                    self._set_study(record, StudyState.CANCELLED)
            if changed:
                return self._store.job(job)
        record = states.change(self._store, job, JobState.CANCELLING, attempt=record.attempt)
        if worker_alive(record) and record.pid not in (None, os.getpid()):
            assert record.pid is not None
            try:
                os.kill(record.pid, signal.SIGTERM)
            except ProcessLookupError:
                reap(self._store, stale_s=self._stale_s)
        return self._store.job(job)

    def resume(self, job: str) -> JobRecord:
        """Start an interrupted, failed or cancelled job again, in the background.

        What it stored is kept, and its function goes on from there.

        Raises:
            JobError: It is done, or still going.
            NotFoundError: There is no such job.
        """
        path = self._database()
        reap(self._store, stale_s=self._stale_s)
        record = self._store.job(job)
        if record.state not in states.RESUMABLE:
            hint = "it is finished" if record.state is JobState.DONE else "cancel it first"
            raise JobError(f"job {job} is {record.state} and cannot be resumed: {hint}")
        self._check_kind(record.kind)
        # Nothing of the earlier attempt may still measure beside the new one.
        end_job_processes(job, grace_s=1.0)
        with self._store.transaction():
            busy = [other.id for other in self._store.jobs(study=record.study, active=True)]
            if record.study is not None and busy:
                raise JobError(
                    f"study {record.study} is being worked on by job {busy[0]}: wait for it, or "
                    f"cancel it with `kareus jobs cancel {busy[0]}`"
                )
            record = states.change(
                self._store,
                job,
                JobState.QUEUED,
                attempt=record.attempt,
                new_attempt=record.attempt + 1,
                pid=None,
                process_created_s=None,
                host=None,
                heartbeat_s=None,
                error=None,
                traceback=None,
                started_at=None,
                finished_at=None,
                log_path=record.log_path or str(path.parent / "logs" / f"{job}.log"),
            )
            self._set_study(record, StudyState.QUEUED)
        return self._start(record)

    def list_jobs(self, *, study: str | None = None, active: bool = False) -> tuple[JobRecord, ...]:
        """Return the jobs, newest first, after marking those whose worker is gone."""
        reap(self._store, stale_s=self._stale_s)
        return self._store.jobs(study=study, active=active)

    def get(self, job: str) -> JobRecord:
        """Return one job, after marking those whose worker is gone.

        Raises:
            NotFoundError: There is no such job.
        """
        reap(self._store, stale_s=self._stale_s)
        return self._store.job(job)

    def wait(
        self,
        job: str,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JobRecord], None] | None = None,
    ) -> JobRecord:
        """Wait until a job is finished and return it.

        Args:
            job: The job's id.
            timeout_s: How long at most; None for ever.
            on_progress: Is given the job at every look.

        Raises:
            JobError: It is not finished in time; it goes on.
            NotFoundError: There is no such job.
        """
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        while True:
            record = self.get(job)
            if on_progress is not None:
                on_progress(record)
            if record.state in states.FINAL:
                return record
            if deadline is not None and time.monotonic() > deadline:
                raise JobError(f"job {job} is still {record.state} after {timeout_s:g} s")
            time.sleep(_POLL_S)

    def logs(self, job: str, *, num_lines: int = 200) -> list[str]:
        """Return the last lines of a job's log, readable, oldest first.

        Raises:
            NotFoundError: There is no such job.
        """
        return logs.tail_of(self._store.job(job), num_lines=num_lines)

    def _start(self, job: JobRecord) -> JobRecord:
        """Start the worker of a queued job and enter its process."""
        path = self._database()
        assert job.log_path is not None
        log_path = Path(job.log_path)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "kareus.jobs.worker", job.id, "--db", str(path)]
        command += ["--attempt", str(job.attempt), "--kinds", self._kinds_module]
        try:
            with log_path.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, JOB_VARIABLE: job.id},
                )
        except OSError as error:
            self._store.change_job(
                job.id,
                expected=[JobState.QUEUED],
                attempt=job.attempt,
                state=JobState.FAILED,
                error=f"its worker cannot be started: {error}",
                finished_at=now(),
            )
            raise JobError(f"the worker of job {job.id} cannot be started: {error}") from error
        # Somebody must collect the exit status, or the process stays as a zombie.
        threading.Thread(target=process.wait, daemon=True).start()
        self._store.change_job(
            job.id,
            expected=[JobState.QUEUED],
            attempt=job.attempt,
            pid=process.pid,
            process_created_s=creation_time_s(process.pid),
            host=this_host(),
        )
        return self._store.job(job.id)

    def _database(self) -> Path:
        if self._store.path is None:
            raise JobError("background jobs need a database file, this one is in memory")
        return self._store.path

    def _check_kind(self, kind: str) -> None:
        """Refuse an unknown kind before anything is stored."""
        kinds.check(kind, self._kinds_module)

    def _set_study(self, record: JobRecord, state: StudyState) -> None:
        if record.study is not None:
            self._store.set_study_state(record.study, state)
