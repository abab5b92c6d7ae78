"""A small partition with a smooth trade-off, measured with or without noise, for the tests."""

from collections.abc import Sequence

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import FailedMeasurement, Measurement
from kareus.core.partition import MeasuringBudget, Partition
from kareus.search.kind import SearchKind
from kareus.search.loop import PartitionSearch, make_search
from tests.benchmarks.search_spaces import BenchSpace, make_partition, synthetic

STATIC_POWER_W = 85.0

SMALL = make_partition(
    clocks_mhz=tuple(range(900, 1411, 85)),
    sm_allocations=(3, 9, 15, 21, 30),
    launch_points=(LaunchPoint.NORM_0, LaunchPoint.LINEAR_0, LaunchPoint.ATTN_0),
)


def small_space(seed: int = 3, *, noise: bool = True) -> BenchSpace:
    """7 clocks x 5 allocations x 3 launch points."""
    return synthetic(
        seed,
        partition=SMALL,
        time_noise=0.005 if noise else 0.0,
        energy_noise=0.01 if noise else 0.0,
    )


def search_of(
    space: BenchSpace,
    kind: SearchKind = SearchKind.KAREUS,
    *,
    seed: int = 0,
    initial: int = 16,
    num_batches: int = 2,
    batch_size: int = 8,
    candidates: Sequence[Configuration] | None = None,
    partition: Partition | None = None,
) -> PartitionSearch:
    return make_search(
        kind,
        partition or space.partition,
        tuple(space.truth) if candidates is None else candidates,
        static_power_w=STATIC_POWER_W,
        seed=seed,
        budget=MeasuringBudget(initial=initial, num_batches=num_batches, batch_size=batch_size),
    )


def measured(
    search: PartitionSearch, space: BenchSpace, batch: Sequence[Configuration]
) -> list[Measurement]:
    return [space.measure(one, search.next_repeat(one)) for one in batch]


def finish(search: PartitionSearch, space: BenchSpace) -> list[tuple[Configuration, ...]]:
    """Run to the end; return the batches asked for."""
    batches = []
    while batch := search.ask():
        batches.append(batch)
        search.tell(measured(search, space, batch))
    return batches


def failure(space: BenchSpace, configuration: Configuration) -> FailedMeasurement:
    return FailedMeasurement(
        partition=space.partition.name, configuration=configuration, reason="clock not reached"
    )
