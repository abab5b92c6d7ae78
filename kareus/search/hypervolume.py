"""Hypervolume in two dimensions for many fronts at once: a sort and a sum.

Legend: f rows (fronts) of any kind, k points of a front, padded; s samples, g fronts of a sample,
m points. Both objectives are minimised; what they are, and on which scale, is the caller's.
"""

import numpy as np
from numpy.typing import NDArray

from kareus.compiled import compiled

FloatArray = NDArray[np.float64]
Stairs = tuple[FloatArray, FloatArray]

# The reference lies this share of the front's extent beyond its worst point, and at least
# `_LEAST_MARGIN` (in logs): the extents of a clock's own front may be a few per cent only.
_MARGIN = 0.1
_LEAST_MARGIN = 0.01


def staircases(first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return each row's points in ascending first objective with the least second one so far.

    Args:
        first: First objective, shape (f, k); +inf pads.
        second: Second objective, shape (f, k); +inf pads.
    """
    order = np.argsort(first, axis=1, kind="stable")
    ascending = np.take_along_axis(first, order, axis=1)
    least = np.minimum.accumulate(np.take_along_axis(second, order, axis=1), axis=1)
    return ascending, least


def references(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return each row's nadir of the non-dominated points plus the margin, shape (f, 2)."""
    best_first, best_second = first.min(axis=1), second.min(axis=1)
    # Of several points equally good in one objective, the front holds the best in the other.
    nadir_second = np.where(first <= best_first[:, None], second, np.inf).min(axis=1)
    nadir_first = np.where(second <= best_second[:, None], first, np.inf).min(axis=1)
    margin_first = np.maximum(_MARGIN * (nadir_first - best_first), _LEAST_MARGIN)
    margin_second = np.maximum(_MARGIN * (nadir_second - best_second), _LEAST_MARGIN)
    return np.stack([nadir_first + margin_first, nadir_second + margin_second], axis=1)


def far_references(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return each row's worst values plus the margin of the extent, shape (f, 2)."""
    least, most = (
        np.stack([edge(first, axis=1), edge(second, axis=1)], axis=1) for edge in (np.min, np.max)
    )
    reference: FloatArray = most + _MARGIN * (most - least)
    return reference


def hypervolumes(first: FloatArray, second: FloatArray, reference: FloatArray) -> FloatArray:
    """Return each row's hypervolume, shape (f,): a sort and a sum.

    Args:
        first: First objective, shape (f, k); +inf pads.
        second: Second objective, shape (f, k).
        reference: Shape (f, 2).
    """
    if first.shape[1] == 0:
        return np.zeros(len(first))
    limit_first, limit_second = reference[:, :1], reference[:, 1:]
    ascending, least = staircases(first, second)
    edges = np.minimum(np.hstack([ascending, limit_first]), limit_first)
    height = np.maximum(limit_second - least, 0.0)
    area: FloatArray = (np.diff(edges, axis=1) * height).sum(axis=1)
    return area


@compiled
def improvements(stairs_first, stairs_second, reference, groups, first, second):  # type: ignore[no-untyped-def]
    """Return by how much each single point would raise the hypervolume of its front.

    The area between the point and the staircase to its right: the sum over steps of (the step's
    level - the point's second objective) where positive, times the step's width right of the point.

    Args:
        stairs_first: First objective of the fronts as `staircases` returns, shape (s, g, k); +inf
            pads.
        stairs_second: The least second objective so far, shape (s, g, k); +inf pads.
        reference: Shape (s, g, 2).
        groups: Front of each point, intp, shape (m,).
        first: First objective of the points, shape (s, m).
        second: Second objective of the points, shape (s, m).

    Returns:
        Shape (s, m).
    """
    num_steps = stairs_first.shape[2]
    gains = np.zeros(first.shape)
    for row in range(first.shape[0]):
        for column in range(first.shape[1]):
            group = groups[column]
            limit, level = reference[row, group, 0], reference[row, group, 1]
            start, own = first[row, column], second[row, column]
            for step in range(num_steps + 1):
                # Up to this step the level is that of the one before, at first the reference's.
                end = limit
                if step < num_steps:
                    end = min(stairs_first[row, group, step], limit)
                if level <= own:
                    break
                if end > start:
                    gains[row, column] += (end - start) * (level - own)
                    start = end
                if step < num_steps:
                    level = min(level, stairs_second[row, group, step])
    return gains


def compressed(first: FloatArray, second: FloatArray) -> Stairs:
    """Return staircases without the points that do not lower them, padded with +inf at the end."""
    if first.shape[1] == 0:
        return first, second
    lowers = np.ones(second.shape, dtype=bool)
    lowers[:, 1:] = second[:, 1:] < second[:, :-1]
    lowers &= np.isfinite(first)
    width = int(lowers.sum(axis=1).max())
    order = np.argsort(~lowers, axis=1, kind="stable")[:, :width]
    kept = np.take_along_axis(lowers, order, axis=1)
    return (
        np.where(kept, np.take_along_axis(first, order, axis=1), np.inf),
        np.where(kept, np.take_along_axis(second, order, axis=1), np.inf),
    )
