import numpy as np
import pytest

from kareus.search.convergence import converge
from tests.search.spaces import STATIC_POWER_W, measured, search_of, small_space


def _measured(num_measurements: int):
    space = small_space()
    search = search_of(space, initial=num_measurements, num_batches=0, batch_size=1)
    found = []
    while batch := search.ask():
        results = measured(search, space, batch)
        search.tell(results)
        found += results
    return space, found


def test_both_shares_rise_and_the_search_is_ahead_of_random_picks():
    space, found = _measured(48)
    result = converge(space.partition, space.truth, found, static_power_w=STATIC_POWER_W)
    assert result is not None
    assert result.size == len(space.truth)
    assert result.num_configurations == len({one.configuration for one in found})
    for trace in (result.search, result.random):
        assert [count for count, _ in trace] == sorted({count for count, _ in trace})
        assert trace[-1][0] == len(found)
        shares = [share for _, share in trace]
        assert (np.diff(shares) >= -1e-12).all()
        assert 0.0 <= shares[0] <= shares[-1] <= 1.0 + 1e-12
    assert result.search[-1][1] > result.random[-1][1]
    assert result.search[-1][1] > 0.97


def test_everything_measured_is_the_whole_for_both():
    space = small_space()
    found = [space.measure(one, 0) for one in space.truth]
    result = converge(space.partition, space.truth, found, static_power_w=STATIC_POWER_W)
    assert result is not None
    assert result.search[-1][1] == pytest.approx(1.0)
    assert result.random[-1][1] == pytest.approx(1.0)


def test_too_little_measured_is_no_convergence():
    space, found = _measured(24)
    assert converge(space.partition, space.truth, found[:3], static_power_w=STATIC_POWER_W) is None
