"""What one study-wide budget and starting from another study are worth, on the simulator.

Figures are the regret of a study: mean over partitions, weighted by executions x time, over clocks
and over goals (time, both, energy) of the relative excess of the best option found over the best
there is, in per cent, judged on values without noise. Baselines are measured beside, as in a study.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from kareus.core.configuration import LaunchPoint
from kareus.core.measurement import Measurement
from kareus.core.partition import MeasuringBudget
from kareus.search.allocation import StudyAllocator
from kareus.search.budget import Budget, BudgetKind, minimum_measurements, partition_budget
from kareus.search.kind import SearchKind
from kareus.search.loop import PartitionSearch, make_search
from kareus.search.transfer import Donor, TransferPrior
from tests.benchmarks.search_scores import scores
from tests.benchmarks.search_spaces import BenchSpace, simulated

# Executions per layer and microbatch: two nanobatches, forward again in the recompute.
_EXECUTIONS = {"fwd_attn": 4.0, "fwd_mlp": 4.0, "bwd_attn": 2.0, "bwd_mlp": 2.0}
_GOALS = (0.0, 0.5, 1.0)


def _search(
    space: BenchSpace, seed: int, budget: MeasuringBudget, prior: TransferPrior | None = None
) -> PartitionSearch:
    """A search told the baselines' measurements that lie in the known space."""
    partition = space.partition
    search = make_search(
        SearchKind.KAREUS,
        partition,
        tuple(space.truth),
        static_power_w=space.static_power_w,
        seed=seed,
        budget=budget,
        prior=prior,
    )
    nearest = min(partition.sm_allocations, key=lambda sms: abs(sms - 20))
    search.tell(
        [
            space.measure(one, 0)
            for one in space.truth
            if one.sm_allocation == nearest and one.launch_point is partition.launch_points[0]
        ]
    )
    return search


def regret_pct(space: BenchSpace, search: PartitionSearch) -> float:
    """Relative excess of what would be chosen over the best, mean over clocks and goals, in %."""
    total: list[float] = []
    power_w = space.static_power_w
    options = search.options()
    for clock in space.partition.clocks_mhz:
        at_clock = {one: value for one, value in space.truth.items() if one.clock_mhz == clock}
        offered = [one for one in options if one.configuration.clock_mhz == clock]
        for share in _GOALS:

            def cost(time_s: float, energy_j: float, share: float = share) -> float:
                effective = max(energy_j - power_w * time_s, 1e-3 * energy_j)
                return float((1 - share) * np.log(time_s) + share * np.log(effective))

            chosen = min(offered, key=lambda one: cost(one.time_s, one.energy_j))
            best = min(cost(*value) for value in at_clock.values())
            total.append(cost(*space.truth[chosen.configuration]) - best)
    return 100.0 * float(np.mean(total))


def allocation(
    seeds: Sequence[int], counts: Sequence[int], model: str = "llama3.2-3b"
) -> dict[str, dict[str, float]]:
    """Return study regret in % with one budget and with equal shares, per number."""
    result: dict[str, dict[str, float]] = {}
    for count in counts:
        ours, equal = [], []
        for seed in seeds:
            spaces = {name: simulated(name, seed, model) for name in _EXECUTIONS}
            weights = {name: _weight(spaces[name]) for name in spaces}
            least = minimum_measurements(space.partition for space in spaces.values())
            number = max(count, least)
            budget = Budget(kind=BudgetKind.NUMBER, num_measurements=number)
            searches = {
                name: _search(space, seed, partition_budget(space.partition, budget))
                for name, space in spaces.items()
            }
            allocator = StudyAllocator(searches, weights=weights, num_measurements=number)
            while request := allocator.ask():
                name, batch = request
                allocator.tell(name, _measured(spaces[name], searches[name], batch))
            ours.append(_study_regret(spaces, searches, weights))
            shares = {
                name: _search(space, seed, partition_budget(space.partition, budget))
                for name, space in spaces.items()
            }
            for name, search in shares.items():
                while (left := number // len(shares) - search.num_counted) > 0:
                    search.tell(_measured(spaces[name], search, search.ask(limit=left)))
            equal.append(_study_regret(spaces, shares, weights))
        result[str(count)] = {
            "allocated_regret_pct": round(float(np.mean(ours)), 4),
            "equal_shares_regret_pct": round(float(np.mean(equal)), 4),
        }
    return result


def _weight(space: BenchSpace) -> float:
    fastest = min(time for time, _ in space.truth.values())
    return _EXECUTIONS[space.partition.name] * fastest


def _measured(space: BenchSpace, search: PartitionSearch, batch: Sequence) -> list[Measurement]:
    return [space.measure(one, search.next_repeat(one)) for one in batch]


def _study_regret(
    spaces: Mapping[str, BenchSpace],
    searches: Mapping[str, PartitionSearch],
    weights: Mapping[str, float],
) -> float:
    total = sum(weights.values())
    return sum(weights[name] * regret_pct(spaces[name], searches[name]) for name in spaces) / total


def transfer(
    seeds: Sequence[int], counts: Sequence[int] = (24, 40, 72)
) -> dict[str, dict[str, dict[str, float]]]:
    """Return regret and hypervolume with and without donors: another model, and an unlike one.

    The donor is the partition of Qwen3 1.7B (72 measured); `unlike` is the same with its values
    dealt out to configurations at random.
    """
    result: dict[str, dict[str, dict[str, float]]] = {}
    for kind in ("none", "donor", "unlike"):
        result[kind] = {}
        for count in counts:
            rows = []
            for seed in seeds:
                space = simulated("fwd_attn", seed)
                prior = None
                if kind != "none":
                    donor = simulated("fwd_attn", seed + 50, "qwen3-1.7b")
                    prior = TransferPrior(space.partition, [_donor(donor, seed, kind)])
                initial = 16
                batches = max((count - initial) // 8, 0)
                search = _search(
                    space,
                    seed,
                    MeasuringBudget(initial=count - 8 * batches, num_batches=batches, batch_size=8),
                    prior,
                )
                while batch := search.ask():
                    search.tell(_measured(space, search, batch))
                figures = scores(space, search.options())
                rows.append(
                    (
                        regret_pct(space, search),
                        figures["hv_effective_pct"],
                        figures["hv_total_pct"],
                        figures["tight_effective_pct"],
                        figures["tight_total_pct"],
                    )
                )
            means = np.mean(rows, axis=0).round(3)
            names = (
                "regret_pct",
                "hv_effective_pct",
                "hv_total_pct",
                "tight_effective_pct",
                "tight_total_pct",
            )
            result[kind][str(count)] = dict(zip(names, means.tolist(), strict=True))
    return result


def _donor(space: BenchSpace, seed: int, kind: str) -> Donor:
    """72 measurements of another study, spread over its space."""
    rng = np.random.default_rng(seed)
    known = [one for one in space.truth if one.launch_point is not LaunchPoint.NONE]
    chosen = [known[place] for place in rng.choice(len(known), size=72, replace=False)]
    measurements = [space.measure(one, 0) for one in chosen]
    if kind == "unlike":
        places = rng.permutation(len(measurements))
        measurements = [
            Measurement(
                partition=one.partition,
                configuration=one.configuration,
                time_s=measurements[place].time_s,
                energy_j=measurements[place].energy_j,
                source=one.source,
            )
            for one, place in zip(measurements, places, strict=True)
        ]
    return Donor(
        study="other",
        partition=space.partition,
        measurements=tuple(measurements),
        static_power_w=space.static_power_w,
    )
