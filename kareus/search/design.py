"""The first configurations of a partition: corners, then the emptiest places, evenly spread."""

import itertools
from collections.abc import Collection, Sequence

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.partition import Partition
from kareus.search.space import Encoding, FloatArray, searchable

# Distance between two launch points, against 1 between the lowest and the highest clock.
_SLOT_DISTANCE = 0.5


def corners(partition: Partition) -> tuple[Configuration, ...]:
    """Return {lowest, highest clock} x {fewest, most SMs} for each launch point, once each.

    Their number is the least an initial design may have.
    """
    clocks = sorted({partition.clocks_mhz[0], partition.clocks_mhz[-1]})
    if not partition.searched:
        return tuple(Configuration(clock_mhz=clock) for clock in clocks)
    sms = sorted({partition.sm_allocations[0], partition.sm_allocations[-1]})
    return tuple(
        Configuration(clock_mhz=clock, sm_allocation=count, launch_point=point)
        for clock, point, count in itertools.product(clocks, partition.launch_points, sms)
    )


def initial_design(
    partition: Partition,
    candidates: Sequence[Configuration],
    num_configurations: int,
    *,
    rng: np.random.Generator,
    known: Collection[Configuration] = (),
) -> tuple[Configuration, ...]:
    """Return a spread-out set: the corners, then greedy maximin, balanced over clocks and slots.

    Each further configuration is the one farthest from all chosen ones among those of the least
    used launch points and clocks; ties are broken by the generator.

    Args:
        partition: The partition.
        candidates: What may be proposed.
        num_configurations: How many; all candidates if there are fewer.
        rng: Source of the tie-breaks: the same state gives the same design.
        known: Configurations measured already; kept away from, never proposed.
    """
    pool = [one for one in searchable(partition, candidates) if one not in set(known)]
    num_configurations = min(num_configurations, len(pool))
    if num_configurations == 0:
        return ()
    points = _metric(partition, pool)
    at_corner = set(corners(partition))
    chosen = [place for place, one in enumerate(pool) if one in at_corner][:num_configurations]
    nearest = np.full(len(pool), np.inf)
    for anchor in _metric(partition, list(known)):
        nearest = np.minimum(nearest, np.linalg.norm(points - anchor, axis=1))
    for place in chosen:
        nearest = np.minimum(nearest, np.linalg.norm(points - points[place], axis=1))
    nearest[chosen] = -1.0
    noise = rng.random(len(pool)) * 1e-3
    while len(chosen) < num_configurations:
        distance = np.where(np.isinf(nearest), 1.0, nearest)
        crowding = _crowding(pool, [pool[place] for place in chosen])
        score = np.where(nearest < 0, -np.inf, distance * (1.0 + noise) - 0.2 * crowding)
        place = int(np.argmax(score))
        chosen.append(place)
        nearest = np.minimum(nearest, np.linalg.norm(points - points[place], axis=1))
        nearest[place] = -1.0
    return tuple(pool[place] for place in chosen)


def _metric(partition: Partition, configurations: Sequence[Configuration]) -> FloatArray:
    """Points in which plain distance means unlikeness, shape (m, 2 + slots)."""
    encoding = Encoding.of(partition)
    encoded = encoding.encode(configurations)
    slots = (encoded[:, 2:3] == np.arange(len(encoding.slots))).astype(np.float64)
    return np.hstack([encoded[:, :2], slots * (_SLOT_DISTANCE / np.sqrt(2.0))])


def _crowding(pool: Sequence[Configuration], chosen: Sequence[Configuration]) -> FloatArray:
    """How often each one's clock and launch point were chosen above the least chosen ones."""
    crowding = np.zeros(len(pool))
    for attribute in ("clock_mhz", "launch_point", "sm_allocation"):
        counts = {getattr(one, attribute): 0 for one in pool}
        for one in chosen:
            value = getattr(one, attribute)
            if value in counts:
                counts[value] += 1
        least = min(counts.values())
        crowding += np.array([counts[getattr(one, attribute)] - least for one in pool])
    return crowding
