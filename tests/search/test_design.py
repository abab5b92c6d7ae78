from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.configuration import LaunchPoint
from kareus.search.design import corners, initial_design
from tests.benchmarks.search_spaces import make_partition
from tests.search.spaces import SMALL


def test_corners_are_the_extremes_per_launch_point_once_each():
    found = corners(make_partition())
    assert len(found) == len(set(found)) == 16
    assert {one.clock_mhz for one in found} == {900, 1410}
    assert {one.sm_allocation for one in found} == {3, 30}
    one_clock = make_partition(clocks_mhz=(900,), sm_allocations=(3,))
    assert len(corners(one_clock)) == 4


def test_design_holds_the_corners_and_spreads_the_rest():
    partition = make_partition()
    design = initial_design(partition, partition.space(), 24, rng=np.random.default_rng(0))
    assert len(set(design)) == 24
    assert set(corners(partition)) <= set(design)
    launches = Counter(one.launch_point for one in design)
    assert max(launches.values()) - min(launches.values()) <= 1
    inner = [one for one in design if one not in set(corners(partition))]
    assert len({one.clock_mhz for one in inner}) == len(inner)


@given(number=st.integers(0, 120), known=st.integers(0, 30), seed=st.integers(0, 50))
@settings(max_examples=25, deadline=None)
def test_design_has_the_size_asked_for_and_avoids_what_is_known(number, known, seed):
    space = SMALL.space()
    told = space[::3][:known]
    design = initial_design(SMALL, space, number, rng=np.random.default_rng(seed), known=told)
    assert len(design) == len(set(design)) == min(number, len(space) - len(told))
    assert not set(design) & set(told)


def test_design_of_no_launch_points_spreads_over_clocks():
    partition = make_partition(sm_allocations=(), launch_points=())
    design = initial_design(partition, partition.space(), 3, rng=np.random.default_rng(0))
    clocks = sorted(one.clock_mhz for one in design)
    assert clocks[0] == 900
    assert clocks[-1] == 1410
    assert clocks[1] == pytest.approx(1125, abs=60)
    assert all(one.launch_point in (None, LaunchPoint.NONE) for one in design)
