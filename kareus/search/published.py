"""The published method: multi-pass multi-objective optimisation on boosted trees.

A random initial set; then per batch, gradient-boosted trees for time and for effective energy are
fitted, total energy follows as effective + P_static x time, every unmeasured configuration is
scored and the batch is filled in passes: 40 % by hypervolume improvement in (time, total energy),
20 % in (time, effective energy), 20 % with the lowest predicted time, 20 % where a bootstrap
ensemble disagrees most. Objectives are scaled to [0, 1], the reference is 1.1 x the worst
(arXiv 2601.17654). It is kept to compare with and returns measured values, as published.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor

from kareus.core.configuration import Configuration
from kareus.search.base import BaseSearch, drawn
from kareus.search.history import average
from kareus.search.hypervolume import improvements, staircases
from kareus.search.space import Encoding

FloatArray = NDArray[np.float64]

_SHARES = (0.4, 0.2, 0.2, 0.2)
_ENSEMBLE_SIZE = 5
_REFERENCE = 1.1
_LEAST_POINTS = 4


class PublishedSearch(BaseSearch):
    """Boosted trees, a batch filled in four passes; initial and batch size as budgeted."""

    def _propose(self, room: int) -> tuple[Configuration, ...]:
        pool, rng = self._open(), self._rng()
        if self.num_counted < self._budget.initial or len(self._history.measured()) < _LEAST_POINTS:
            size = max(self._budget.initial - self.num_counted, _LEAST_POINTS)
            return drawn(pool, min(size, room), rng)
        size = min(self._budget.batch_size or room, room, len(pool))
        if size == len(pool):
            return tuple(pool)
        return self._passes(pool, size, rng)

    def _passes(
        self, pool: Sequence[Configuration], size: int, rng: np.random.Generator
    ) -> tuple[Configuration, ...]:
        """Fill one batch."""
        static_power_w = self._history.static_power_w
        averaged = average(self.partition, self._history.measurements)
        encoding = Encoding.of(self.partition)
        known = encoding.encode([one.configuration for one in averaged])
        points = encoding.encode(pool)
        time = np.array([one.time_s for one in averaged])
        total = np.array([one.energy_j for one in averaged])
        effective = total - static_power_w * time
        seed = int(rng.integers(2**31))
        predicted_time = _trees(known, time, seed).predict(points)
        predicted_effective = _trees(known, effective, seed).predict(points)
        scores = (
            _improvement(
                (time, total),
                (predicted_time, predicted_effective + static_power_w * predicted_time),
            ),
            _improvement((time, effective), (predicted_time, predicted_effective)),
            -predicted_time,
            _disagreement(known, points, (time, effective), rng),
        )
        taken = np.zeros(len(pool), dtype=bool)
        picks: list[int] = []
        for score, end in zip(scores, np.cumsum(_SHARES), strict=True):
            order = np.argsort(-np.where(taken, -np.inf, score), kind="stable")
            fresh = order[: max(round(float(end) * size) - len(picks), 0)]
            picks.extend(int(one) for one in fresh)
            taken[fresh] = True
        return tuple(pool[place] for place in picks)


def _trees(inputs: FloatArray, targets: FloatArray, seed: int) -> GradientBoostingRegressor:
    return GradientBoostingRegressor(random_state=seed).fit(inputs, targets)


def _improvement(
    measured: tuple[FloatArray, FloatArray], predicted: tuple[FloatArray, FloatArray]
) -> FloatArray:
    """Hypervolume each predicted point would add to the measured front, one by one."""
    scaled: list[tuple[FloatArray, FloatArray]] = []
    for known, guess in zip(measured, predicted, strict=True):
        low = float(min(known.min(), guess.min()))
        extent = max(float(max(known.max(), guess.max())) - low, 1e-12)
        scaled.append(((known - low) / extent, (guess - low) / extent))
    first, second = staircases(scaled[0][0][None, :], scaled[1][0][None, :])
    gains: FloatArray = improvements(
        first[:, None, :],
        second[:, None, :],
        np.full((1, 1, 2), _REFERENCE),
        np.zeros(scaled[0][1].shape, dtype=np.intp),
        scaled[0][1][None, :],
        scaled[1][1][None, :],
    )[0]
    return gains


def _disagreement(
    known: FloatArray,
    points: FloatArray,
    measured: tuple[FloatArray, FloatArray],
    rng: np.random.Generator,
) -> FloatArray:
    """Deviation of a bootstrap ensemble's predictions, relative to the measured extents, summed."""
    total = np.zeros(len(points))
    draws = rng.integers(len(known), size=(_ENSEMBLE_SIZE, len(known)))
    for targets in measured:
        predictions = [
            _trees(known[draw], targets[draw], int(rng.integers(2**31))).predict(points)
            for draw in draws
        ]
        total += np.std(predictions, axis=0) / max(float(np.ptp(targets)), 1e-12)
    return total
