"""Use cases about explorations: which layout of a training step, for which trade-off."""

from collections.abc import Callable
from dataclasses import replace

from kareus.errors import ConfigError
from kareus.service import choosing
from kareus.service.base import Base
from kareus.service.views import ExplorationHandle, ExplorationView
from kareus.store import ExplorationRecord, JobRecord, Progress
from kareus.study.explore import (
    EXPLORATION,
    EXPLORATION_REQUEST,
    Exploration,
    ExplorationRequest,
    list_layouts,
)

_JOB_KIND = "exploration"


class ExplorationUseCases(Base):
    """Explorations of layouts."""

    def submit_exploration(
        self, request: ExplorationRequest, *, name: str | None = None
    ) -> ExplorationHandle:
        """Start an exploration as a background job that outlives this process.

        Raises:
            ConfigError: The request has an error; nothing is stored then.
        """
        exploration = self._create_exploration(request, name)
        job = self.manager.submit(_JOB_KIND, request={"exploration": exploration})
        return ExplorationHandle(job=job.id, exploration=exploration)

    def explore(
        self,
        request: ExplorationRequest,
        *,
        name: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> ExplorationView:
        """Explore in this process; it is listed and can be resumed like any other.

        Raises:
            ConfigError: The request has an error; nothing is stored then.
            CancelledError: It was interrupted.
        """
        exploration = self._create_exploration(request, name)
        self.manager.run_here(
            _JOB_KIND, request={"exploration": exploration}, on_progress=on_progress
        )
        return self.exploration(exploration)

    def explorations(self) -> list[ExplorationView]:
        """Return the explorations, newest first."""
        jobs = self._exploration_jobs()
        return [_view(one, jobs.get(one.id)) for one in self.store.explorations()]

    def exploration(self, exploration: str) -> ExplorationView:
        """Return one exploration.

        Raises:
            NotFoundError: There is none.
        """
        record = self.store.exploration(exploration)
        return _view(record, self._exploration_jobs().get(exploration))

    def _exploration_jobs(self) -> dict[str, JobRecord]:
        """The latest job of each exploration."""
        jobs: dict[str, JobRecord] = {}
        for job in self.manager.list_jobs():
            if job.kind == _JOB_KIND:
                jobs.setdefault(str(job.request["exploration"]), job)
        return jobs

    def _create_exploration(self, request: ExplorationRequest, name: str | None) -> str:
        """Store a new exploration, or refuse its request before anything is stored."""
        candidates = list_layouts(request)
        usable = next(one for one in candidates if one.workload is not None)
        base = choosing.assess(replace(request.base, settings=usable.settings))
        if not base.ready:
            raise ConfigError(base.findings[0].message)
        assert usable.workload is not None
        words = f"{usable.workload.model.name}-{request.num_gpus}gpus"
        record = self.store.create_exploration(
            name or words,
            request=EXPLORATION_REQUEST.dump_python(request, mode="json"),
            words=words,
        )
        return record.id


def _view(record: ExplorationRecord, job: JobRecord | None) -> ExplorationView:
    result = None
    if record.result is not None:
        result = EXPLORATION.validate_python(record.result)
    return ExplorationView(
        exploration=record.id,
        name=record.name,
        request=EXPLORATION_REQUEST.validate_python(record.request),
        created=record.created_at,
        state=job.state.value if job is not None else "interrupted",
        job=job.id if job is not None else None,
        error=job.error if job is not None else None,
        result=result if result is not None else Exploration(layouts=(), frontier=()),
    )
