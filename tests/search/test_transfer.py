from dataclasses import replace

import numpy as np
import pytest

from kareus.core.partition import MeasuringBudget
from kareus.errors import ConfigError, MeasurementError
from kareus.search.kind import SearchKind
from kareus.search.loop import make_search
from kareus.search.transfer import Donor, TransferPrior
from tests.benchmarks.search_scores import scores
from tests.benchmarks.search_spaces import BenchSpace, synthetic
from tests.search.spaces import SMALL, STATIC_POWER_W, finish, small_space


def donor_of(space: BenchSpace, *, scale: float = 1.0, num_measurements: int = 40) -> Donor:
    chosen = list(space.truth)
    chosen = chosen[:: max(len(chosen) // num_measurements, 1)][:num_measurements]
    return Donor(
        study="other",
        partition=space.partition,
        measurements=tuple(
            replace(one, time_s=one.time_s * scale, energy_j=(one.energy_j or 0.0) * scale)
            for one in (space.measure(configuration, 0) for configuration in chosen)
        ),
        static_power_w=STATIC_POWER_W,
    )


def reached(space: BenchSpace, prior: TransferPrior | None, *, total: int, seed: int = 0) -> float:
    search = make_search(
        SearchKind.KAREUS,
        space.partition,
        tuple(space.truth),
        static_power_w=STATIC_POWER_W,
        seed=seed,
        budget=MeasuringBudget(initial=12, num_batches=(total - 12) // 8, batch_size=8),
        prior=prior,
    )
    finish(search, space)
    figures = scores(space, search.options())
    return float(np.mean([figures["tight_effective_pct"], figures["tight_total_pct"]]))


def test_a_donor_of_like_shape_saves_measurements():
    gains = []
    for seed in range(4):
        space = synthetic(seed, partition=SMALL, noise_seed=seed)
        donor = synthetic(seed, partition=SMALL, noise_seed=90 + seed)
        prior = TransferPrior(SMALL, [donor_of(donor, scale=2.5, num_measurements=105)])
        gains.append(
            reached(space, prior, total=20, seed=seed) - reached(space, None, total=20, seed=seed)
        )
    assert np.mean(gains) > 0.5


def test_an_unlike_donor_does_not_hurt():
    losses = []
    for seed in range(4):
        space = small_space(seed)
        donor = donor_of(small_space(40 + seed))
        shuffled = replace(
            donor,
            measurements=tuple(
                replace(one, configuration=other.configuration)
                for one, other in zip(
                    donor.measurements,
                    np.random.default_rng(seed).permutation(np.array(donor.measurements)),
                    strict=True,
                )
            ),
        )
        prior = TransferPrior(SMALL, [shuffled])
        losses.append(
            reached(space, None, total=28, seed=seed) - reached(space, prior, total=28, seed=seed)
        )
    assert np.mean(losses) < 1.0


def test_what_cannot_be_transferred_is_refused():
    donor = donor_of(small_space())
    with pytest.raises(MeasurementError, match="study other measured 3 configurations"):
        TransferPrior(SMALL, [replace(donor, measurements=donor.measurements[:3])])
    with pytest.raises(MeasurementError, match="no other study"):
        TransferPrior(SMALL, [])
    for kind in (SearchKind.PUBLISHED, SearchKind.RANDOM):
        with pytest.raises(ConfigError, match="cannot start from other studies"):
            make_search(
                kind,
                SMALL,
                SMALL.space(),
                static_power_w=STATIC_POWER_W,
                seed=0,
                budget=MeasuringBudget(initial=12, num_batches=0, batch_size=0),
                prior=TransferPrior(SMALL, [donor]),
            )
