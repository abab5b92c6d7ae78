"""How good a recommended set is: true values of its members against the exhaustive truth."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration
from kareus.core.frontier import hypervolume, non_dominated
from kareus.core.measurement import PartitionOption
from tests.benchmarks.search_spaces import BenchSpace

FloatArray = NDArray[np.float64]


def _points(
    values: Sequence[tuple[float, float]], static_power_w: float, *, effective: bool
) -> FloatArray:
    points = np.array(values, dtype=np.float64).reshape(-1, 2)
    if effective:
        points[:, 1] -= static_power_w * points[:, 0]
    return points


def recommended(
    options: Sequence[PartitionOption], static_power_w: float, *, effective: bool
) -> list[Configuration]:
    """Return the configurations a user would pick from: non-dominated as reported."""
    points = _points(
        [(one.time_s, one.energy_j) for one in options], static_power_w, effective=effective
    )
    return [options[place].configuration for place in non_dominated(points)]


def scores(space: BenchSpace, options: Sequence[PartitionOption]) -> dict[str, float]:
    """Return the five figures of merit, in per cent.

    `hv_*`: hypervolume of the recommended set's true values as a share of the exhaustive front's,
    objectives scaled to [0, 1] over the space, reference 1.1; `tight_*`: reference = nadir of the
    true front + 10 % of its extent; `per_clock_pct`: share of the points of all clocks' true
    (time, effective energy) fronts for which that clock's recommended set has a member within 1 %
    in both.
    """
    result: dict[str, float] = {}
    configurations = list(space.truth)
    for notion, effective in (("effective", True), ("total", False)):
        truth = _points(list(space.truth.values()), space.static_power_w, effective=effective)
        members = recommended(options, space.static_power_w, effective=effective)
        chosen = _points(
            [space.truth[one] for one in members], space.static_power_w, effective=effective
        )
        low, high = truth.min(axis=0), truth.max(axis=0)
        front = truth[non_dominated(truth)]
        extent = np.maximum(front.max(axis=0) - front.min(axis=0), 1e-3 * front.min(axis=0))
        tight = front.max(axis=0) + 0.1 * extent
        for key, reference in (("hv", low + 1.1 * (high - low)), ("tight", tight)):
            size = high - low
            share = hypervolume((chosen - low) / size, tuple((reference - low) / size))
            whole = hypervolume((front - low) / size, tuple((reference - low) / size))
            result[f"{key}_{notion}_pct"] = 100.0 * share / whole
    result["per_clock_pct"] = 100.0 * _per_clock(space, configurations, options)
    return result


def _per_clock(
    space: BenchSpace,
    configurations: Collection[Configuration],
    options: Sequence[PartitionOption],
) -> float:
    hits: list[bool] = []
    for clock in sorted({one.clock_mhz for one in configurations}):
        at_clock = [one for one in configurations if one.clock_mhz == clock]
        truth = _points(
            [space.truth[one] for one in at_clock], space.static_power_w, effective=True
        )
        members = recommended(
            [one for one in options if one.configuration.clock_mhz == clock],
            space.static_power_w,
            effective=True,
        )
        chosen = _points(
            [space.truth[one] for one in members], space.static_power_w, effective=True
        )
        for point in truth[non_dominated(truth)]:
            hits.append(bool((chosen <= 1.01 * point).all(axis=1).any()))
    return float(np.mean(hits))
