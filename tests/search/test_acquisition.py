import numpy as np
import pytest
from hypothesis import strategies as st

from kareus.search.acquisition import Acquisition, expected_regret
from kareus.search.surrogate import PosteriorSamples

_SEEDS = st.integers(min_value=0, max_value=10_000)


def _samples(rng: np.random.Generator, count: int) -> PosteriorSamples:
    time = np.log(rng.uniform(1.0, 2.0, (4, count)))
    effective = np.log(rng.uniform(1.0, 2.0, (4, count)))
    return PosteriorSamples(
        log_time=time,
        log_effective=effective,
        log_total=np.log(np.exp(effective) + 0.5 * np.exp(time)),
    )


@pytest.mark.parametrize("seed", range(5))
def test_greedy_choice_equals_recomputing_every_gain_after_every_pick(seed: int):
    rng = np.random.default_rng(seed)
    count = 300
    samples = _samples(rng, count)
    clocks = np.repeat(np.arange(6), 50)
    measured = rng.random(count) < 0.05
    picks = Acquisition(
        samples, clocks_mhz=clocks, held=measured, factor=(~measured).astype(float)
    ).choose(5)
    held = measured.copy()
    for gain, column in picks:
        (best,) = Acquisition(
            samples, clocks_mhz=clocks, held=held, factor=(~held).astype(float)
        ).choose(1)
        assert best == (pytest.approx(gain), column)
        held[column] = True


def test_nothing_is_chosen_from_nothing():
    samples = _samples(np.random.default_rng(0), 3)
    acquisition = Acquisition(
        samples, clocks_mhz=np.zeros(3, dtype=int), held=np.ones(3, dtype=bool), factor=np.zeros(3)
    )
    assert acquisition.choose(4) == ()


def test_expected_regret_is_zero_where_the_best_is_measured_and_positive_elsewhere():
    samples = _samples(np.random.default_rng(1), 8)
    clocks = np.array([900] * 4 + [1410] * 4)
    everything = np.ones(8, dtype=bool)
    assert expected_regret(samples, clocks_mhz=clocks, measured=everything) == 0.0
    one = np.arange(8) == 0
    assert expected_regret(samples, clocks_mhz=clocks, measured=one) > 0.1
