"""Sums of Pareto fronts, pruned after every merge, with back-pointers.

The options of an instruction at one clock are all sums of one option per unit. Enumerating the
product is out of the question (60^12); a partial sum that is dominated stays dominated whatever is
added to both, so each merge keeps the non-dominated partial sums only.

Legend: a front has n points, ascending in time (s) and descending in effective energy (J); `picks`
of shape (n, units) says which option of each unit a point is made of.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Fronts longer than this are thinned. An instruction has at most some 15 units and each partial sum
# is at most the whole, so merging costs at most 15 x 2e-6 = 0.003 % of an instruction's energy (and
# no time), and the union over clocks at most 0.002 % more, off the convex hull only. Without it,
# sums of long fronts grow without bound.
MAX_POINTS = 512
THINNING = 2e-6
UNION_THINNING = 2e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """Non-dominated sums of one option per unit.

    Attributes:
        times_s: Seconds, shape (n,), strictly ascending.
        energies_j: Effective joules, shape (n,), strictly descending.
        picks: Position of the option taken of each unit so far, shape (n, units).
    """

    times_s: NDArray[np.float64]
    energies_j: NDArray[np.float64]
    picks: NDArray[np.int32]


def prune(times_s: NDArray[np.float64], energies_j: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the positions of the non-dominated points, fastest first; of equal points the first.

    What `kareus.core.frontier.non_dominated` does, with one stable sort by time alone: sums come
    as runs that are already sorted, which a merging sort uses.
    """
    order = np.argsort(times_s, kind="stable")
    energies = energies_j[order]
    best_before = np.concatenate(([np.inf], np.minimum.accumulate(energies)[:-1]))
    order = order[energies < best_before]
    times = times_s[order]
    # Of several points equal in time, the scan kept a falling series: only its last is undominated.
    last_of_time = np.append(times[1:] > times[:-1], True) if len(times) else np.empty(0, bool)
    kept: NDArray[np.intp] = order[last_of_time]
    return kept


def thin(energies_j: NDArray[np.float64], *, tolerance: float = THINNING) -> NDArray[np.intp]:
    """Return the positions of a subset that is as good within a relative tolerance of energy.

    For every point left out, a kept one is faster and needs at most `tolerance` more energy. The
    most frugal point is kept.

    Args:
        energies_j: Energies of a front, shape (n,), descending.
        tolerance: Relative width of the energy classes of which the fastest point is kept.
    """
    # Classes are cut between the front's own ends, so that the sign of the energies is no matter.
    width = max(abs(float(energies_j[-1])) * tolerance, np.finfo(np.float64).tiny)
    classes = np.floor((energies_j - energies_j[-1]) / width)
    kept = np.append(True, classes[1:] != classes[:-1])
    kept[-1] = True
    return np.flatnonzero(kept)


def hull(times_s: NDArray[np.float64], energies_j: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the positions of the vertices of a front's lower convex hull, fastest first.

    Marginal savings (watts) fall strictly from vertex to vertex.

    Args:
        times_s: Times of a front, shape (n,), strictly ascending.
        energies_j: Its energies, shape (n,), strictly descending.
    """
    vertices: list[int] = []
    for i in range(len(times_s)):
        while len(vertices) >= 2:
            a, b = vertices[-2], vertices[-1]
            # b lies on or above the chord from a to i.
            if (energies_j[a] - energies_j[b]) * (times_s[i] - times_s[b]) <= (
                energies_j[b] - energies_j[i]
            ) * (times_s[b] - times_s[a]):
                vertices.pop()
            else:
                break
        vertices.append(i)
    return np.array(vertices, dtype=np.intp)


def single(times_s: NDArray[np.float64], energies_j: NDArray[np.float64]) -> Front:
    """Return the front of one unit's options."""
    kept = prune(times_s, energies_j)
    return Front(
        times_s=times_s[kept],
        energies_j=energies_j[kept],
        picks=kept.astype(np.int32).reshape(-1, 1),
    )


def add(front: Front, unit: Front) -> Front:
    """Return the pruned front of all sums of a point of each, thinned where it grew long.

    Args:
        front: Partial sums.
        unit: The front of what is added.
    """
    # Unit first: each row of the sum is then a sorted run.
    times = (unit.times_s[:, None] + front.times_s[None, :]).ravel()
    energies = (unit.energies_j[:, None] + front.energies_j[None, :]).ravel()
    kept = prune(times, energies)
    if len(kept) > MAX_POINTS:
        kept = kept[thin(energies[kept])]
    of_unit, of_front = np.divmod(kept, len(front.times_s))
    return Front(
        times_s=times[kept],
        energies_j=energies[kept],
        picks=np.concatenate((front.picks[of_front], unit.picks[of_unit]), axis=1),
    )
