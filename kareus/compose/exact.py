"""The true frontier of tiny iterations, by enumeration.

Rounding is near the optimum where many instructions share the slack; with a handful of instructions
and options a single misfit shows. There every combination is cheap to look at.
"""

import numpy as np

from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.problem import Ints, Problem
from kareus.core.frontier import non_dominated

# Combinations x instructions looked at, at most (8 bytes each).
MAX_ENTRIES = 1_000_000


def enumerate_frontier(problem: Problem, held_power_w: float) -> Ints | None:
    """Return the choices of every non-dominated plan, fastest first; None where there are too many.

    Args:
        problem: The iteration.
        held_power_w: Static power of all stages together.

    Returns:
        Per plan and node a position in the option arrays, shape (p, N).
    """
    counts = np.diff(problem.option_ptr)[problem.kind]
    if np.log(counts).sum() + np.log(len(counts)) > np.log(MAX_ENTRIES):
        return None
    grids = np.meshgrid(*(np.arange(count) for count in counts), indexing="ij", sparse=False)
    chosen = np.stack([grid.ravel() for grid in grids], axis=1).astype(np.int64)
    chosen += problem.option_ptr[problem.kind]
    times_s = _makespans(problem, chosen) * TIME_GRID_S
    energies_j = problem.option_energy_j[chosen].sum(axis=1) + held_power_w * times_s
    return np.asarray(chosen[non_dominated(np.column_stack((times_s, energies_j)))])


def at_deadlines(problem: Problem, frontier: Ints, deadlines: Ints) -> list[Ints]:
    """Return the most frugal plan of a frontier within each deadline that one meets.

    Args:
        problem: The iteration.
        frontier: Choices of non-dominated plans, fastest first, shape (p, N).
        deadlines: In grid units.
    """
    times = _makespans(problem, frontier)
    last = np.unique(np.searchsorted(times, deadlines, side="right") - 1)
    return [frontier[k] for k in last if k >= 0]


def _makespans(problem: Problem, chosen: Ints) -> Ints:
    """Longest paths of several plans at once, grid units, shape (p,)."""
    durations = problem.option_time[chosen]
    ends = np.zeros_like(durations)
    for node in range(problem.num_nodes):
        before = problem.pred[problem.pred_ptr[node] : problem.pred_ptr[node + 1]]
        ends[:, node] = durations[:, node] + ends[:, before].max(axis=1, initial=0)
    return np.asarray(ends.max(axis=1))
