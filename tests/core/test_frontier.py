import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting

from kareus.core.frontier import (
    hypervolume,
    least_energy_within,
    least_time_within,
    non_dominated,
)

# Few distinct values, so that equal times, equal energies and equal points are common.
points = st.lists(
    st.tuples(st.integers(1, 12).map(float), st.integers(1, 12).map(float)), max_size=40
)


@given(points)
def test_non_dominated_agrees_with_pymoo(cloud) -> None:
    kept = non_dominated(cloud)
    assert len({cloud[k] for k in kept}) == len(kept)
    if not cloud:
        return
    fronts = NonDominatedSorting().do(np.array(cloud), only_non_dominated_front=True)
    assert {cloud[k] for k in kept} == {cloud[k] for k in fronts}


@given(points)
def test_non_dominated_is_ordered_and_takes_the_first_of_equals(cloud) -> None:
    kept = [int(k) for k in non_dominated(cloud)]
    times = [cloud[k][0] for k in kept]
    energies = [cloud[k][1] for k in kept]
    assert times == sorted(set(times))
    assert energies == sorted(set(energies), reverse=True)
    assert all(cloud.index(cloud[k]) == k for k in kept)


@given(points)
def test_hypervolume_is_the_area_counted_in_unit_squares(cloud) -> None:
    counted = sum(
        any(t <= x and e <= y for t, e in cloud) for x in range(1, 14) for y in range(1, 14)
    )
    assert hypervolume(cloud, (14.0, 14.0)) == pytest.approx(counted)


def test_hypervolume_ignores_points_beyond_the_reference() -> None:
    assert hypervolume([(1.0, 1.0), (5.0, 0.5)], (2.0, 3.0)) == pytest.approx(2.0)
    assert hypervolume([], (1.0, 1.0)) == 0.0


@given(points, st.integers(0, 13).map(float))
def test_lookups_agree_with_a_scan(cloud, limit) -> None:
    in_time = [p for p in cloud if p[0] <= limit]
    found = least_energy_within(cloud, limit)
    assert (found is None) == (not in_time)
    if found is not None:
        assert cloud[found][1] == min(e for _, e in in_time)
    in_budget = [p for p in cloud if p[1] <= limit]
    found = least_time_within(cloud, limit)
    assert (found is None) == (not in_budget)
    if found is not None:
        assert cloud[found][0] == min(t for t, _ in in_budget)
