"""How a search got there, beside what random picks would have been expected to do.

Both are judged by the same values: the surrogate's means over the whole space, fitted to everything
that was measured. So nothing more is measured, and the comparison holds as far as the surrogate.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement
from kareus.core.partition import Partition
from kareus.search.history import average
from kareus.search.space import searchable
from kareus.search.threads import one_thread

_LEAST_POINTS = 4
_NUM_ORDERS = 32
_NUM_COUNTS = 32

FloatArray = NDArray[np.float64]
Trace = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """Shares of the hypervolume that the whole space is predicted to have.

    Hypervolumes are of time and effective energy, up to the worst predicted values and a tenth.

    Attributes:
        search: (measurements so far, share) of the search, the baselines' measurements included and
            every repeat counted.
        random: The same, expected of random picks without repeats beside the same baselines; mean
            of 32 orders.
        num_configurations: Configurations measured.
        size: Configurations there are.
    """

    search: Trace
    random: Trace
    num_configurations: int
    size: int


def converge(
    partition: Partition,
    candidates: Iterable[Configuration],
    measurements: Sequence[Measurement],
    *,
    static_power_w: float,
    seed: int = 0,
) -> Convergence | None:
    """Return how the search of a partition converged; None with fewer than four configurations.

    The surrogate is fitted to the measurements alone, without what other studies tell.

    Args:
        partition: The partition.
        candidates: What the study's source can measure of it.
        measurements: Its measurements with an energy in the order they came, those of the baselines
            included.
        static_power_w: Static power in watts.
        seed: Of the random orders.

    Raises:
        MeasurementError: A measurement cannot be used.
    """
    # SciPy and Numba load where they are used.
    from kareus.search.hypervolume import far_references, hypervolumes
    from kareus.search.surrogate import Surrogate

    averaged = average(partition, measurements)
    if len(averaged) < _LEAST_POINTS:
        return None
    order = [one.configuration for one in measurements]
    points = list(dict.fromkeys([*order, *searchable(partition, candidates)]))
    with one_thread():
        options = Surrogate(partition, averaged, static_power_w=static_power_w).options(points)
    time = np.array([one.time_s for one in options])
    effective = np.array([one.effective_energy_j(static_power_w) for one in options])
    reference = far_references(time[None, :], effective[None, :])
    whole = max(float(hypervolumes(time[None, :], effective[None, :], reference)[0]), 1e-300)

    place = {one: number for number, one in enumerate(points)}
    asked = np.array([place[one] for one in order])
    baselines = set(partition.baseline_configurations())
    first = np.array([place[one] for one in dict.fromkeys(order) if one in baselines], dtype=int)
    rest = np.setdiff1d(np.arange(len(points)), first)
    rng = np.random.default_rng(seed)
    orders = np.stack([np.concatenate([first, rng.permutation(rest)]) for _ in range(_NUM_ORDERS)])
    counts = np.unique(np.linspace(max(len(first), 1), len(order), _NUM_COUNTS).round().astype(int))

    def share(rows: NDArray[np.intp]) -> float:
        limits = np.broadcast_to(reference, (len(rows), 2))
        return float(hypervolumes(time[rows], effective[rows], limits).mean() / whole)

    return Convergence(
        search=tuple((int(count), share(asked[None, :count])) for count in counts),
        random=tuple((int(count), share(orders[:, :count])) for count in counts),
        num_configurations=len(averaged),
        size=len(points),
    )
