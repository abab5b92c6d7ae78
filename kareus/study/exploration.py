"""An exploration's values: what it is asked, the layouts of a training step, what it found."""

from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from kareus.core.plan import Method
from kareus.errors import ConfigError
from kareus.study.request import StudyRequest
from kareus.workload.layouts import (
    DEFAULT_CPS,
    DEFAULT_MICROBATCH_SIZES,
    Candidate,
    enumerate_candidates,
)


class LayoutState(StrEnum):
    """What became of a layout."""

    IMPOSSIBLE = "impossible"
    BEATEN = "beaten"
    WAITING = "waiting"
    SEARCHED = "searched"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplorationRequest:
    """What an exploration is asked to do.

    Attributes:
        base: Model, GPU, sequence length, recompute, source, budget, seed; its degrees and batch
            are replaced.
        num_gpus: GPUs of the job; all are used.
        global_batch_size: Sequences per iteration over all replicas.
        cps: Context-parallel degrees tried.
        microbatch_sizes: Microbatch sizes tried.
        margin: Share by which a layout's baselines are made better before it is left out.
    """

    base: StudyRequest
    num_gpus: int
    global_batch_size: int
    cps: tuple[int, ...] = DEFAULT_CPS
    microbatch_sizes: tuple[int, ...] = DEFAULT_MICROBATCH_SIZES
    margin: float = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPoint:
    """A plan of a layout: iteration time, and the energy of all GPUs of the job."""

    layout: int
    method: Method
    plan: int
    iteration_time_s: float
    job_energy_j: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One layout and what became of it.

    Attributes:
        number: Its index.
        tp, cp, pp, dp: Degrees.
        microbatch_size: Sequences per microbatch.
        num_microbatches: Microbatches per iteration and replica.
        state: What became of it.
        reason: Why it was left out or failed; None otherwise.
        study: Its study, for the plans; None if it was not measured.
        peak_memory_bytes: Memory estimate of its fullest stage; None if it cannot be built.
        baseline: (iteration time in s, job energy in J) of its baselines' plans.
    """

    number: int
    tp: int
    cp: int
    pp: int
    dp: int
    microbatch_size: int
    num_microbatches: int
    state: LayoutState
    reason: str | None = None
    study: str | None = None
    peak_memory_bytes: float | None = None
    baseline: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """What an exploration found: its layouts, and the joint frontier, fastest first."""

    layouts: tuple[Layout, ...]
    frontier: tuple[LayoutPoint, ...]


EXPLORATION_REQUEST: TypeAdapter[ExplorationRequest] = TypeAdapter(ExplorationRequest)
EXPLORATION: TypeAdapter[Exploration] = TypeAdapter(Exploration)


def list_layouts(request: ExplorationRequest) -> tuple[Candidate, ...]:
    """Return every layout, those that cannot be built or do not fit with the reason.

    Raises:
        ConfigError: A number is out of range, or there is no layout at all, or none that fits.
    """
    if not 0 <= request.margin < 1:
        raise ConfigError(f"margin {request.margin} is not a share: give at least 0, below 1")
    candidates = enumerate_candidates(
        request.base.settings,
        num_gpus=request.num_gpus,
        global_batch_size=request.global_batch_size,
        cps=request.cps,
        microbatch_sizes=request.microbatch_sizes,
    )
    if all(candidate.workload is None for candidate in candidates):
        raise ConfigError(
            f"none of {len(candidates)} layouts on {request.num_gpus} GPUs can be used; the first: "
            f"{candidates[0].pruned}"
        )
    return candidates


def layout_words(layout: Layout) -> str:
    """Return a layout in words."""
    return (
        f"tp{layout.tp} cp{layout.cp} pp{layout.pp} dp{layout.dp}, "
        f"{layout.num_microbatches} x {layout.microbatch_size}"
    )
