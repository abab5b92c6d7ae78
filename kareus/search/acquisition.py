"""Which configurations to measure next: expected gain in hypervolume over posterior samples.

Legend: s samples, m configurations, c clocks, k points of a front, padded; f rows of any kind.
All hypervolumes are areas of (log time, log energy) below a sample's own reference point.

A set of configurations is worth, in one sample, the share of that sample's exhaustive hypervolume
that it covers: of the front in effective energy, also with a reference beyond all configurations,
which weighs the front's ends; of that in total energy; and, as partitions are combined at equal
clock, of each clock's own front in effective energy; the share of those own fronts' points that it
matches within 1 %; and, as plans pay a price for time, how cheap its best is at each price and
clock, where that clock is competitive. The worth is the mean over samples; a
batch is filled greedily, each pick's sampled values joining the fronts. In two dimensions
hypervolume is a sort and a sum, done here for all samples and configurations at once.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kareus.search.hypervolume import (
    Stairs,
    compressed,
    far_references,
    hypervolumes,
    improvements,
    references,
    staircases,
)
from kareus.search.surrogate import PosteriorSamples

FloatArray = NDArray[np.float64]
IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

# A clock counts at a price by exp(-relative excess of its best cost over the least / this).
_CLOSE = 0.01
# Relative cost that counts as much as a whole hypervolume of the same weight.
_COST_UNIT = 0.02
_NUM_PRICES = 8
# A front's point is matched by one not worse than 1 % in either objective (in logs).
_TOLERANCE = 0.00995
# Picks after the first recompute this many configurations: gains only shrink as fronts grow.
_LAZY = 96


class _Weights(NamedTuple):
    """What each part of the worth counts.

    Attributes:
        effective: Hypervolume of the front in effective energy.
        ends: The same with the reference beyond all configurations.
        total: Hypervolume of the front in total energy.
        own: Mean hypervolume of each clock's own front.
        matched: Points of those matched.
        prices: Cost at the prices of time.
    """

    effective: float = 0.35
    ends: float = 2.0
    total: float = 0.2
    own: float = 0.2
    matched: float = 0.3
    prices: float = 0.15


_WEIGHTS = _Weights()


class _Fronts:
    """The fronts of one pair of objectives, in every sample, one per group of configurations.

    Args:
        first: First objective of all configurations, shape (s, m).
        second: Second objective, shape (s, m).
        groups: Group of each configuration, 0-based, shape (m,); all 0 for one front.
        held: Configurations whose values the fronts hold from the start, shape (m,).
        weight: Weight of these fronts' mean share.
        reference_of: What gives each row of a front its reference.
    """

    def __init__(
        self,
        first: FloatArray,
        second: FloatArray,
        *,
        groups: IndexArray,
        held: BoolArray,
        weight: float,
        reference_of: Callable[[FloatArray, FloatArray], FloatArray] = references,
    ) -> None:
        self._first, self._second, self._groups = first, second, groups
        num_groups = int(groups.max()) + 1
        rows = [
            (first[:, groups == group], second[:, groups == group], held[groups == group])
            for group in range(num_groups)
        ]
        self._reference = np.stack([reference_of(one, two) for one, two, _ in rows], axis=1)
        exhaustive = np.stack(
            [
                hypervolumes(one, two, self._reference[:, group])
                for group, (one, two, _) in enumerate(rows)
            ],
            axis=1,
        )
        self._factor = weight / num_groups / np.maximum(exhaustive, 1e-18)
        self._stairs = _padded(
            [compressed(*staircases(one[:, keep], two[:, keep])) for one, two, keep in rows]
        )

    def gains(self, columns: IndexArray) -> FloatArray:
        """Return the weighted share each configuration would add, mean over samples."""
        groups = self._groups[columns]
        gain = improvements(
            *self._stairs,
            self._reference,
            groups,
            np.ascontiguousarray(self._first[:, columns]),
            np.ascontiguousarray(self._second[:, columns]),
        )
        share: FloatArray = (gain * self._factor[:, groups]).mean(axis=0)
        return share

    def join(self, column: int) -> None:
        """Let a configuration's sampled values join its front."""
        group = self._groups[column]
        stairs = compressed(
            *staircases(
                np.hstack([self._stairs[0][:, group], self._first[:, column, None]]),
                np.hstack([self._stairs[1][:, group], self._second[:, column, None]]),
            )
        )
        width = stairs[0].shape[1]
        if width > self._stairs[0].shape[2]:
            self._stairs = tuple(  # type: ignore[assignment]
                np.concatenate([one, np.full((*one.shape[:2], 1), np.inf)], axis=2)
                for one in self._stairs
            )
        for all_groups, own in zip(self._stairs, stairs, strict=True):
            all_groups[:, group] = np.inf
            all_groups[:, group, :width] = own


def _padded(stairs: list[Stairs]) -> Stairs:
    """Stack the staircases of the groups, shape (s, groups, k)."""
    width = max(first.shape[1] for first, _ in stairs)
    first, second = (
        np.stack(
            [
                np.pad(
                    one[objective],
                    ((0, 0), (0, width - one[objective].shape[1])),
                    constant_values=np.inf,
                )
                for one in stairs
            ],
            axis=1,
        )
        for objective in (0, 1)
    )
    return first, second


class _Matches:
    """Points of each clock's own front that are matched within the tolerance, in every sample.

    Args:
        first: First objective of all configurations, shape (s, m), log.
        second: Second objective, shape (s, m), log.
        groups: Group of each configuration, 0-based, shape (m,).
        held: Configurations that match from the start, shape (m,).
        weight: Weight of the mean share matched.
    """

    def __init__(
        self,
        first: FloatArray,
        second: FloatArray,
        *,
        groups: IndexArray,
        held: BoolArray,
        weight: float,
    ) -> None:
        self._groups = groups
        self._place = np.zeros(len(groups), dtype=np.intp)
        self._matching: list[NDArray[np.float32]] = []
        self._open: list[NDArray[np.float32]] = []
        self._gains: FloatArray = np.zeros(len(groups))
        num_points = 0
        for group in range(int(groups.max()) + 1):
            members = np.flatnonzero(groups == group)
            self._place[members] = np.arange(len(members))
            one, two = first[:, members], second[:, members]
            better = (one[:, :, None] <= one[:, None, :]) & (two[:, :, None] <= two[:, None, :])
            front = better.sum(axis=1) == 1
            near = (one[:, :, None] <= one[:, None, :] + _TOLERANCE) & (
                two[:, :, None] <= two[:, None, :] + _TOLERANCE
            )
            still = front & ~near[:, held[members]].any(axis=1)
            num_points += int(front.sum())
            self._matching.append(near.astype(np.float32))
            self._open.append(still.astype(np.float32))
        self._factor = weight / max(num_points, 1)
        for group in range(len(self._open)):
            self._update(group)

    def gains(self, columns: IndexArray) -> FloatArray:
        """Return the weighted share each configuration would add."""
        gains: FloatArray = self._gains[columns]
        return gains

    def join(self, column: int) -> None:
        """Let a configuration's sampled values match."""
        group = int(self._groups[column])
        self._open[group] *= 1.0 - self._matching[group][:, self._place[column]]
        self._update(group)

    def _update(self, group: int) -> None:
        counts = np.einsum("sij,sj->i", self._matching[group], self._open[group], optimize=True)
        self._gains[self._groups == group] = counts * self._factor


class _Prices:
    """Cost of the best configuration at each clock, in every sample, at several prices of time.

    Plans choose, at the clock of an instruction, what is cheapest at the price that a second costs
    there. The prices are those at which the fastest configurations of neighbouring clocks cost the
    same, so that they span what plans between the fastest and the slowest pay. A clock counts by
    how near its best comes to that of all clocks at the price.

    Args:
        samples: Joint posterior samples of all configurations.
        groups: Group (clock) of each configuration, 0-based, shape (m,).
        held: Configurations that are there from the start, shape (m,).
        weight: Weight of a mean relative cost of `_COST_UNIT`.
    """

    def __init__(
        self, samples: PosteriorSamples, *, groups: IndexArray, held: BoolArray, weight: float
    ) -> None:
        time, effective = np.exp(samples.log_time), np.exp(samples.log_effective)
        prices = _prices_of_time(time.mean(axis=0), effective.mean(axis=0), groups)
        num_groups = int(groups.max()) + 1
        total = np.exp(samples.log_total)
        costs = effective[:, :, None] + time[:, :, None] * prices
        best = np.stack(
            [costs[:, groups == group].min(axis=1) for group in range(num_groups)], axis=1
        )
        least = best.min(axis=1)
        closeness = np.exp((1.0 - best / least[:, None]) / _CLOSE)
        closeness /= closeness.sum(axis=1, keepdims=True)
        scale = np.stack(
            [total[:, groups == group].min(axis=1) for group in range(num_groups)], axis=1
        )
        factor = weight / _COST_UNIT / len(prices) * closeness / scale[:, :, None]
        self._groups = groups
        # Weighted by clock and price, so that gains are plain sums over prices.
        self._members = [np.flatnonzero(groups == group) for group in range(num_groups)]
        self._costs = costs * factor[:, groups]
        worst = [self._costs[:, members].max(axis=1) for members in self._members]
        self._reached = [
            self._costs[:, members[held[members]]].min(axis=1) if held[members].any() else bound
            for members, bound in zip(self._members, worst, strict=True)
        ]
        self._gains: FloatArray = np.zeros(len(groups))
        for group in range(num_groups):
            self._update(group)

    def gains(self, columns: IndexArray) -> FloatArray:
        """Return the weighted share of cost each configuration would save."""
        gains: FloatArray = self._gains[columns]
        return gains

    def join(self, column: int) -> None:
        """Let a configuration's sampled values be there."""
        group = int(self._groups[column])
        self._reached[group] = np.minimum(self._reached[group], self._costs[:, column])
        self._update(group)

    def _update(self, group: int) -> None:
        members = self._members[group]
        saved = np.maximum(self._reached[group][:, None] - self._costs[:, members], 0.0)
        self._gains[members] = saved.sum(axis=2).mean(axis=0)


def _prices_of_time(time: FloatArray, effective: FloatArray, groups: IndexArray) -> FloatArray:
    """Return prices of time in watts, at least one, ascending."""
    fastest = np.array(
        [
            np.flatnonzero(groups == group)[np.argmin(time[groups == group])]
            for group in range(int(groups.max()) + 1)
        ]
    )
    fastest = fastest[np.argsort(time[fastest], kind="stable")]
    lower: list[int] = []
    for place in fastest:
        if lower and effective[place] >= effective[lower[-1]]:
            continue
        while len(lower) > 1 and _slope(time, effective, lower[-2], lower[-1]) <= _slope(
            time, effective, lower[-1], place
        ):
            lower.pop()
        lower.append(int(place))
    if len(lower) < 2:
        return np.array([float(effective[lower[0]] / time[lower[0]])])
    slopes = np.array([_slope(time, effective, one, two) for one, two in itertools.pairwise(lower)])
    low, high = 0.5 * slopes[-1], 2.0 * slopes[0]
    middles = np.linspace(time[lower[0]], time[lower[-1]], _NUM_PRICES)[1:-1]
    inner = slopes[np.searchsorted(time[lower[1:-1]], middles, side="right")]
    return np.unique(np.concatenate([[low], inner, [high]]))


def _slope(time: FloatArray, effective: FloatArray, one: int, two: int) -> float:
    """Energy saved per second from one configuration to a slower one."""
    return float((effective[one] - effective[two]) / max(time[two] - time[one], 1e-300))


class Acquisition:
    """Greedy choice by expected gain.

    Args:
        samples: Joint posterior samples of all configurations.
        clocks_mhz: Clock of each configuration, shape (m,).
        held: Which the fronts hold from the start, shape (m,).
        factor: Share of each configuration's gain that counts, shape (m,); 0 bars it.
    """

    def __init__(
        self,
        samples: PosteriorSamples,
        *,
        clocks_mhz: IndexArray,
        held: BoolArray,
        factor: FloatArray,
    ) -> None:
        self._columns: IndexArray = np.flatnonzero(factor > 0)
        self._factor = factor
        single = np.zeros(len(held), dtype=np.intp)
        by_clock = np.unique(clocks_mhz, return_inverse=True)[1].astype(np.intp)
        self._fronts: list[_Fronts | _Matches | _Prices] = [
            _Fronts(samples.log_time, energy, groups=groups, held=held, weight=weight)
            for energy, groups, weight in (
                (samples.log_effective, single, _WEIGHTS.effective),
                (samples.log_total, single, _WEIGHTS.total),
                (samples.log_effective, by_clock, _WEIGHTS.own),
            )
        ]
        self._fronts.append(
            _Fronts(
                samples.log_time,
                samples.log_effective,
                groups=single,
                held=held,
                weight=_WEIGHTS.ends,
                reference_of=far_references,
            )
        )
        self._fronts.append(
            _Matches(
                samples.log_time,
                samples.log_effective,
                groups=by_clock,
                held=held,
                weight=_WEIGHTS.matched,
            )
        )
        self._fronts.append(_Prices(samples, groups=by_clock, held=held, weight=_WEIGHTS.prices))

    def choose(self, num_configurations: int) -> tuple[tuple[float, int], ...]:
        """Return (expected gain in weighted shares, position), best first. Call it once."""
        columns = self._columns
        if len(columns) == 0:
            return ()
        bounds = self._gains(columns)
        picks: list[tuple[float, int]] = []
        while len(picks) < min(num_configurations, len(columns)):
            if picks:
                bounds = self._refreshed(columns, bounds)
            best = int(np.argmax(bounds))
            column = int(columns[best])
            picks.append((float(bounds[best]), column))
            for fronts in self._fronts:
                fronts.join(column)
            bounds[best] = -np.inf
        return tuple(picks)

    def _refreshed(self, columns: IndexArray, bounds: FloatArray) -> FloatArray:
        """Recompute the highest bounds until one that is fresh is the highest."""
        order = np.argsort(-bounds, kind="stable")
        bounds = bounds.copy()
        for start in range(0, len(order), _LAZY):
            block = order[start : start + _LAZY]
            block = block[np.isfinite(bounds[block])]
            if len(block) == 0:
                break
            bounds[block] = self._gains(columns[block])
            rest = order[start + _LAZY :]
            if len(rest) == 0 or bounds[order[: start + _LAZY]].max() >= bounds[rest].max():
                break
        return bounds

    def _gains(self, columns: IndexArray) -> FloatArray:
        """Expected gain of each configuration alone, shape (len(columns),)."""
        total = np.zeros(len(columns))
        for fronts in self._fronts:
            total += fronts.gains(columns)
        return total * self._factor[columns]


def expected_regret(
    samples: PosteriorSamples, *, clocks_mhz: IndexArray, measured: BoolArray
) -> float:
    """Return the relative cost that not knowing the rest is expected to have, per execution.

    Mean over samples, clocks and weights between time and energy of: log cost of the best measured
    configuration of that clock - that of the best of all. 0.01 means about 1 % of the
    partition's time and effective energy; clocks with nothing measured count against the worst.
    """
    total = 0.0
    clocks = np.unique(clocks_mhz)
    for clock in clocks:
        at_clock = clocks_mhz == clock
        known = measured[at_clock]
        for share in (0.0, 0.5, 1.0):
            cost = (1.0 - share) * samples.log_time[:, at_clock]
            cost = cost + share * samples.log_effective[:, at_clock]
            reached = cost[:, known].min(axis=1) if known.any() else cost.max(axis=1)
            total += float((reached - cost.min(axis=1)).mean())
    return total / (3 * len(clocks))
