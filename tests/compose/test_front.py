import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kareus.compose.front import MAX_POINTS, add, hull, prune, single, thin
from kareus.core.frontier import non_dominated

cloud = st.lists(
    st.tuples(st.integers(1, 12).map(float), st.integers(-5, 12).map(float)),
    min_size=1,
    max_size=12,
)


@given(cloud)
def test_prune_agrees_with_core(points) -> None:
    array = np.array(points)
    kept = prune(array[:, 0], array[:, 1])
    expected = non_dominated(array)
    assert array[kept].tolist() == array[expected].tolist()


@given(st.lists(cloud, min_size=1, max_size=3))
def test_sums_are_the_front_of_the_product(units) -> None:
    fronts = [single(np.array(u)[:, 0], np.array(u)[:, 1]) for u in units]
    total = fronts[0]
    for front in fronts[1:]:
        total = add(total, front)
    product = np.array([np.sum(chosen, axis=0) for chosen in itertools.product(*units)])
    expected = product[non_dominated(product)]
    assert np.column_stack((total.times_s, total.energies_j)).tolist() == expected.tolist()
    for k, picks in enumerate(total.picks):
        chosen = np.sum([units[u][pick] for u, pick in enumerate(picks)], axis=0)
        assert chosen.tolist() == [total.times_s[k], total.energies_j[k]]


@given(cloud)
def test_hull_is_convex_and_below(points) -> None:
    array = np.array(points)
    front = array[prune(array[:, 0], array[:, 1])]
    vertices = hull(front[:, 0], front[:, 1])
    corner = front[vertices]
    assert vertices[0] == 0
    assert vertices[-1] == len(front) - 1
    slopes = np.diff(corner[:, 1]) / np.diff(corner[:, 0])
    assert np.all(np.diff(slopes) > 0)
    assert np.all(np.interp(front[:, 0], corner[:, 0], corner[:, 1]) <= front[:, 1] + 1e-9)


def test_long_fronts_are_thinned_within_the_tolerance() -> None:
    rng = np.random.default_rng(0)
    units = [
        single(np.sort(rng.uniform(1, 1.5, 60)), -np.sort(-rng.uniform(10, 12, 60)))
        for _ in range(4)
    ]
    total = units[0]
    exact_times, exact_energies = units[0].times_s, units[0].energies_j
    for unit in units[1:]:
        total = add(total, unit)
        times = (unit.times_s[:, None] + exact_times).ravel()
        energies = (unit.energies_j[:, None] + exact_energies).ravel()
        kept = prune(times, energies)
        exact_times, exact_energies = times[kept], energies[kept]
    assert len(exact_times) > MAX_POINTS
    assert len(total.times_s) < len(exact_times)
    position = np.searchsorted(total.times_s, exact_times, side="right") - 1
    excess = total.energies_j[position] / exact_energies - 1.0
    assert position.min() >= 0
    assert excess.max() < 1e-5
    assert total.times_s[0] == exact_times[0]
    assert total.energies_j[-1] == exact_energies[-1]


def test_thinning_keeps_the_fastest_of_each_class() -> None:
    energies = np.array([110.9, 110.1, 105.2, 105.1, 100.5, 100.0])
    assert thin(energies, tolerance=0.01).tolist() == [0, 2, 4, 5]
