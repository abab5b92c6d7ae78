"""Use cases about explorations: which layout of a training step, for which trade-off."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kareus.errors import ConfigError, KareusError
from kareus.service import choosing
from kareus.service.base import Base
from kareus.service.views import Assessment, ExplorationHandle, ExplorationView
from kareus.store import ExplorationRecord, JobRecord, Progress
from kareus.study.exploration import (
    EXPLORATION,
    EXPLORATION_REQUEST,
    Exploration,
    ExplorationRequest,
    list_layouts,
)
from kareus.workload.layouts import Candidate
from kareus.workload.partitions import build_partitions

_JOB_KIND = "exploration"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationAssessment:
    """What an exploration would mean, before it is started.

    Attributes:
        error: Why it cannot be started; None if it can. The other figures are None with it.
        num_layouts: Ways to lay the step on the GPUs.
        num_possible: Those that can be built and fit the memory.
        num_measurements: At most so many, if none of them is beaten by its baselines.
        estimated_s: About how long that takes.
        extrapolated: Whether the simulator was not calibrated on the GPU.
    """

    error: str | None = None
    num_layouts: int | None = None
    num_possible: int | None = None
    num_measurements: int | None = None
    estimated_s: float | None = None
    extrapolated: bool = False


class ExplorationUseCases(Base):
    """Explorations of layouts."""

    def assess_exploration(self, request: ExplorationRequest) -> ExplorationAssessment:
        """Return what an exploration would mean; never raises for what a person can enter."""
        try:
            candidates = list_layouts(request)
            base = _assess_base(request, candidates)
        except KareusError as error:
            return ExplorationAssessment(error=str(error))
        possible = [one.workload for one in candidates if one.workload is not None]
        counts = [
            choosing.count_measurements(build_partitions(workload), request.base.budget)
            for workload in possible
        ]
        num_measurements = sum((searched or 0) + beside for searched, beside in counts)
        assert base.estimated_s is not None, "a request that is ready has an estimate"
        of_one = (base.num_measurements or 0) + (base.num_baseline_measurements or 0)
        return ExplorationAssessment(
            num_layouts=len(candidates),
            num_possible=len(possible),
            num_measurements=num_measurements,
            estimated_s=base.estimated_s * num_measurements / max(1, of_one),
            extrapolated=base.extrapolated,
        )

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
        base = _assess_base(request, candidates)
        assert base.workload is not None
        words = f"{base.workload.model.name}-{request.num_gpus}gpus"
        record = self.store.create_exploration(
            name or words,
            request=EXPLORATION_REQUEST.dump_python(request, mode="json"),
            words=words,
        )
        return record.id


def _assess_base(request: ExplorationRequest, candidates: Sequence[Candidate]) -> Assessment:
    """Assess every layout that can be used; refuse the exploration with the first error.

    A budget of so many measurements may do for one layout and not for another with more partitions.
    """
    assessed = [
        choosing.assess(replace(request.base, settings=one.settings))
        for one in candidates
        if one.workload is not None
    ]
    for one in assessed:
        if not one.ready:
            raise ConfigError(one.findings[0].message)
    return assessed[0]


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
