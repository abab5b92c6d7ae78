"""Dominance, hypervolume and look-ups for two minimised objectives (time, energy).

Legend: points are arrays of shape (n, 2): time in seconds, energy in joules, both minimised.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pymoo.indicators.hv import HV


def non_dominated(points: ArrayLike) -> NDArray[np.intp]:
    """Return the positions of the non-dominated points, fastest first.

    Of equal points the first is kept. A sort and a scan, O(n log n): pymoo's sorting is quadratic
    in n and agrees with it (a test compares them).

    Args:
        points: Shape (n, 2), finite.

    Returns:
        Positions in ascending time (hence descending energy), shape (k,).
    """
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if len(array) == 0:
        return np.empty(0, dtype=np.intp)
    order: NDArray[np.intp] = np.lexsort((np.arange(len(array)), array[:, 1], array[:, 0]))
    energies = array[order, 1]
    best_before = np.concatenate(([np.inf], np.minimum.accumulate(energies)[:-1]))
    kept: NDArray[np.intp] = order[energies < best_before]
    return kept


def hypervolume(points: ArrayLike, reference: Sequence[float]) -> float:
    """Return the area dominated by the points up to the reference point (pymoo's indicator).

    Args:
        points: Shape (n, 2).
        reference: (time, energy); points beyond it count nothing.

    Returns:
        Area in second-joules; 0 without points.
    """
    array = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    if len(array) == 0:
        return 0.0
    return float(HV(ref_point=np.asarray(reference, dtype=np.float64))(array[non_dominated(array)]))


def least_energy_within(points: ArrayLike, deadline_s: float) -> int | None:
    """Return the position of the least-energy point not slower than the deadline; None if none."""
    return _best(np.asarray(points, dtype=np.float64).reshape(-1, 2), limited=0, limit=deadline_s)


def least_time_within(points: ArrayLike, energy_j: float) -> int | None:
    """Return the position of the fastest point not above the energy; None if there is none."""
    return _best(np.asarray(points, dtype=np.float64).reshape(-1, 2), limited=1, limit=energy_j)


def _best(points: NDArray[np.float64], *, limited: int, limit: float) -> int | None:
    """Among points whose objective `limited` is within the limit, the best in the other one."""
    allowed = np.flatnonzero(points[:, limited] <= limit)
    if len(allowed) == 0:
        return None
    return int(allowed[np.argmin(points[allowed, 1 - limited])])
