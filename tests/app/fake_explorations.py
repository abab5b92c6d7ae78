"""The stand-in's explorations."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from kareus.core.plan import Method
from kareus.service import (
    Exploration,
    ExplorationAssessment,
    ExplorationHandle,
    ExplorationRequest,
    ExplorationView,
    JobView,
    Layout,
    LayoutPoint,
    LayoutState,
    StudyRequest,
    WorkloadSettings,
)

_CREATED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def layout(number: int, tp: int, dp: int, state: LayoutState, **changes: Any) -> Layout:
    """A layout of eight GPUs."""
    values: dict[str, Any] = {
        "number": number,
        "tp": tp,
        "cp": 1,
        "pp": 8 // (tp * dp),
        "dp": dp,
        "microbatch_size": 4,
        "num_microbatches": 4,
        "state": state,
        "study": f"layout-{number}" if state is LayoutState.SEARCHED else None,
        "peak_memory_bytes": 30.0 * 2**30,
        "baseline": ((4.9, 5600.0), (5.6, 5100.0)),
    }
    return Layout(**(values | changes))


EXPLORATION = Exploration(
    layouts=(
        layout(0, 2, 4, LayoutState.SEARCHED),
        layout(1, 4, 1, LayoutState.SEARCHED),
        layout(2, 8, 1, LayoutState.BEATEN, reason="even 25% faster it would be beaten"),
        layout(3, 1, 8, LayoutState.IMPOSSIBLE, reason="needs about 61 GiB per GPU", baseline=()),
        layout(4, 1, 1, LayoutState.FAILED, reason="nothing could be measured", baseline=()),
    ),
    frontier=tuple(
        LayoutPoint(
            layout=number // 3,
            method=Method.KAREUS,
            plan=number % 3,
            iteration_time_s=4.4 + 0.2 * number,
            job_energy_j=5200.0 - 150.0 * number,
        )
        for number in range(6)
    ),
)
EXPLORATION_REQUEST = ExplorationRequest(
    base=StudyRequest(
        settings=WorkloadSettings(model="llama3.2-3b", gpu="A100-SXM4-40GB"), budget="fast"
    ),
    num_gpus=8,
    global_batch_size=16,
)


@dataclass
class FakeExplorations:
    """Holds explorations in memory."""

    explorations_by_id: dict[str, ExplorationView] = field(default_factory=dict)
    exploration_assessment: ExplorationAssessment = field(
        default_factory=lambda: ExplorationAssessment(
            num_layouts=5, num_possible=3, num_measurements=1800, estimated_s=36.0
        )
    )
    explored: list[ExplorationRequest] = field(default_factory=list)

    def add_job(self, job: str, **changes: Any) -> JobView:
        raise NotImplementedError

    def add_exploration(self, exploration: str = "e1", **changes: Any) -> ExplorationView:
        """Add an exploration, finished unless told otherwise."""
        values: dict[str, Any] = {
            "exploration": exploration,
            "name": f"llama3.2-3b-8gpus ({exploration})",
            "request": EXPLORATION_REQUEST,
            "created": _CREATED + timedelta(hours=len(self.explorations_by_id)),
            "state": "done",
            "job": f"j-{exploration}",
            "error": None,
            "result": EXPLORATION,
        }
        view = ExplorationView(**(values | changes))
        self.explorations_by_id[exploration] = view
        self.add_job(
            f"j-{exploration}",
            study=None,
            state=view.state,
            finished=view.state not in ("queued", "running", "cancelling"),
            message="searching: tp8 cp1 pp1 dp1, 4 x 4",
        )
        return view

    def explorations(self) -> list[ExplorationView]:
        return sorted(self.explorations_by_id.values(), key=lambda one: one.created, reverse=True)

    def exploration(self, exploration: str) -> ExplorationView:
        return self.explorations_by_id[exploration]

    def assess_exploration(self, request: ExplorationRequest) -> ExplorationAssessment:
        if not isinstance(request.num_gpus, int):
            return ExplorationAssessment(error=f"GPUs = {request.num_gpus!r} is no whole number")
        return self.exploration_assessment

    def submit_exploration(
        self, request: ExplorationRequest, *, name: str | None = None
    ) -> ExplorationHandle:
        self.explored.append(request)
        self.add_exploration("e-new", state="running", result=Exploration(layouts=(), frontier=()))
        return ExplorationHandle(job="j-e-new", exploration="e-new")
