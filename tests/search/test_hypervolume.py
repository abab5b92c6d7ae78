import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymoo.indicators.hv import HV

from kareus.search.hypervolume import (
    compressed,
    far_references,
    hypervolumes,
    improvements,
    references,
    staircases,
)

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


def test_improvements_are_of_each_points_own_front():
    rng = np.random.default_rng(0)
    fronts = rng.random((2, 2, 3, 4))  # two samples of three fronts
    fronts[:, :, 1] = np.inf  # the second is empty
    points = rng.random((2, 2, 6))
    reference = np.full((2, 3, 2), 1.1)
    groups = np.array([0, 1, 2, 2, 1, 0], dtype=np.intp)
    stairs = [staircases(fronts[0, row], fronts[1, row]) for row in range(2)]
    gains = improvements(
        np.stack([first for first, _ in stairs]),
        np.stack([second for _, second in stairs]),
        reference,
        groups,
        points[0],
        points[1],
    )
    for row in range(2):
        for column, group in enumerate(groups):
            held = fronts[:, row, group].T
            before = 0.0 if group == 1 else _pymoo(held, reference[row, group])
            both = np.vstack([held[np.isfinite(held[:, 0])], points[:, row, column]])
            expected = _pymoo(both, reference[row, group]) - before
            assert gains[row, column] == pytest.approx(expected, abs=1e-12)


def test_far_reference_lies_a_tenth_beyond_all_points():
    first, second = np.array([[1.0, 2.0, 3.0, 9.0]]), np.array([[5.0, 3.0, 2.0, 8.0]])
    assert far_references(first, second) == pytest.approx(np.array([[9.8, 8.6]]))
