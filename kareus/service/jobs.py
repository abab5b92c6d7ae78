"""Use cases about background jobs."""

import contextlib

from kareus.errors import NotFoundError
from kareus.jobs.states import FINAL, RESUMABLE
from kareus.service.base import Base
from kareus.service.views import JobView
from kareus.store import JobRecord, JobState


class JobUseCases(Base):
    """Background jobs."""

    def jobs(self) -> list[JobView]:
        """Return the jobs, newest first."""
        return [self._job_view(record) for record in self.manager.list_jobs()]

    def job(self, job: str) -> JobView:
        """Return one job.

        Raises:
            NotFoundError: There is none.
        """
        return self._job_view(self.manager.get(job))

    def cancel_job(self, job: str) -> JobView:
        """Ask a job to stop, its children too; what it measured is kept.

        Raises:
            NotFoundError: There is none.
            JobError: It is finished.
        """
        return self._job_view(self.manager.cancel(job))

    def resume_job(self, job: str) -> JobView:
        """Start a cancelled, failed or interrupted job again; nothing is measured twice.

        Raises:
            NotFoundError: There is none.
            JobError: It is done, or still going.
        """
        return self._job_view(self.manager.resume(job))

    def wait_for_job(self, job: str, *, timeout_s: float | None = None) -> JobView:
        """Wait until a job is finished.

        Raises:
            NotFoundError: There is none.
            JobError: It did not finish in time, or failed.
        """
        return self._job_view(self.manager.wait(job, timeout_s=timeout_s))

    def job_log(self, job: str, *, last: int = 200) -> str:
        """Return the last lines of a job's log."""
        return "".join(f"{line}\n" for line in self.manager.logs(job, num_lines=last))

    def _job_view(self, record: JobRecord) -> JobView:
        progress = record.progress
        stored = 0
        if record.study is not None:
            stored = sum(self.store.count_measurements(record.study).values())
        named = record.request.get("exploration")
        exploration = named if isinstance(named, str) else None
        return JobView(
            job=record.id,
            study=record.study,
            state=record.state.value,
            pid=record.pid,
            phase=progress.phase.value if progress is not None else None,
            partitions=progress.partitions if progress is not None else (),
            measurements=stored,
            planned=progress.planned if progress is not None else None,
            seconds_left=progress.seconds_left if progress is not None else None,
            message=progress.message if progress is not None else "",
            started=record.started_at,
            error=record.error,
            finished=record.state in FINAL or record.state is JobState.INTERRUPTED,
            resumable=record.state in RESUMABLE,
            exploration=exploration,
            name=self._name_of(record.study, exploration),
        )

    def _name_of(self, study: str | None, exploration: str | None) -> str | None:
        """What a job works on, by name; None if it is gone."""
        with contextlib.suppress(NotFoundError):
            if study is not None:
                return self.store.study(study).name
            if exploration is not None:
                return self.store.exploration(exploration).name
        return None
