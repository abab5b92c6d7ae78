import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymoo.indicators.hv import HV

from kareus.search.acquisition import (
    Acquisition,
    compressed,
    expected_regret,
    hypervolumes,
    improvements,
    references,
    staircases,
)
from kareus.search.surrogate import PosteriorSamples

_SEEDS = st.integers(min_value=0, max_value=10_000)


def _pymoo(points: np.ndarray, reference: np.ndarray) -> float:
    return float(HV(ref_point=reference)(points))


@given(seed=_SEEDS, rows=st.integers(1, 4), points=st.integers(1, 12), ties=st.booleans())
@settings(max_examples=60, deadline=None)
def test_hypervolumes_of_many_rows_equal_pymoo(seed: int, rows: int, points: int, ties: bool):
    rng = np.random.default_rng(seed)
    values = rng.random((2, rows, points))
    if ties:
        values = values.round(1)
    reference = rng.uniform(0.5, 1.2, (rows, 2))
    areas = hypervolumes(values[0], values[1], reference)
    for row in range(rows):
        expected = _pymoo(values[:, row].T, reference[row])
        assert areas[row] == pytest.approx(expected, abs=1e-12)


@given(seed=_SEEDS, held=st.integers(0, 10), ties=st.booleans())
@settings(max_examples=60, deadline=None)
def test_improvements_equal_the_difference_of_pymoos_hypervolumes(seed: int, held: int, ties: bool):
    rng = np.random.default_rng(seed)
    front, points = rng.random((2, 3, held)), rng.random((2, 3, 6))
    if ties:
        front, points = front.round(1), points.round(1)
    reference = rng.uniform(0.5, 1.2, (3, 2))
    stairs = compressed(*staircases(front[0], front[1]))
    gains = improvements(
        stairs[0][:, None, :],
        stairs[1][:, None, :],
        reference[:, None, :],
        np.zeros(6, dtype=np.intp),
        points[0],
        points[1],
    )
    for row in range(3):
        before = front[:, row].T
        start = _pymoo(before, reference[row]) if held else 0.0
        for column in range(6):
            after = np.vstack([before, points[:, row, column]])
            expected = _pymoo(after, reference[row]) - start
            assert gains[row, column] == pytest.approx(expected, abs=1e-12)


def test_reference_lies_beyond_the_nadir_of_the_front_not_of_all_points():
    first, second = np.array([[1.0, 2.0, 3.0, 9.0]]), np.array([[5.0, 3.0, 2.0, 8.0]])
    assert references(first, second) == pytest.approx(np.array([[3.2, 5.3]]))


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
