import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement
from kareus.errors import MeasurementError
from kareus.search.gaussian import GaussianProcess
from kareus.search.history import average, measured_options
from kareus.search.smoothing import posterior_means
from kareus.search.surrogate import Surrogate
from tests.benchmarks.search_spaces import make_partition, with_noise
from tests.search.spaces import STATIC_POWER_W, small_space


def _measure_every(space, step: int) -> list[Measurement]:
    return [space.measure(one, 0) for one in list(space.truth)[::step]]


@pytest.mark.parametrize("terms", ["all", "unguided", "clock only"])
def test_gradient_of_the_fit_is_that_of_its_objective(terms: str):
    rng = np.random.default_rng(0)
    # Few SM allocations, so that points share them.
    inputs = np.column_stack(
        [rng.random(20), rng.integers(0, 3, 20) / 2, rng.integers(0, 3, 20), rng.random(20)]
    )
    if terms != "all":
        inputs[:, 3] = 0.0
    if terms == "clock only":
        inputs[:, 1:3] = 0.0
    process = GaussianProcess(
        inputs, rng.standard_normal(20), noise_levels=rng.uniform(0.5, 2, 20), noise_median=0.1
    )
    targets, levels = rng.standard_normal(20), rng.uniform(0.5, 2, 20)
    theta = process._prior_mean + 0.3 * rng.standard_normal(len(process._prior_mean))

    def value(at: np.ndarray) -> float:
        return process._negative_log_posterior(at, inputs, targets, levels)[0]

    gradient = process._negative_log_posterior(theta, inputs, targets, levels)[1]
    assert gradient == pytest.approx(approx_fprime(theta, value, 1e-6), rel=1e-3, abs=1e-3)


def test_unmeasured_configurations_are_predicted_within_two_per_cent():
    space = small_space(noise=False)
    surrogate = Surrogate(
        space.partition,
        average(space.partition, _measure_every(space, 2)),
        static_power_w=STATIC_POWER_W,
    )
    others = [one for place, one in enumerate(space.truth) if place % 2]
    time = np.array([space.truth[one][0] for one in others])
    energy = np.array([space.truth[one][1] for one in others])
    options = surrogate.options(others)
    assert np.std(np.log([one.time_s for one in options] / time)) < 0.02
    assert np.std(np.log([one.energy_j for one in options] / energy)) < 0.02


def test_posterior_means_are_nearer_to_the_truth_than_what_was_measured():
    space = small_space(noise=True)
    measurements = _measure_every(space, 1)
    truth = np.array([space.truth[one.configuration] for one in measurements])

    def error(options) -> np.ndarray:
        values = {one.configuration: (one.time_s, one.energy_j) for one in options}
        return np.std(np.log([values[one.configuration] for one in measurements] / truth), axis=0)

    means = posterior_means(space.partition, measurements, static_power_w=STATIC_POWER_W)
    raw = measured_options(space.partition, measurements)
    assert (error(means) < 0.8 * error(raw)).all()


def test_samples_scatter_around_the_mean_and_less_where_measured():
    space = small_space()
    averaged = average(space.partition, _measure_every(space, 4))
    surrogate = Surrogate(space.partition, averaged, static_power_w=STATIC_POWER_W)
    points = list(space.truth)
    samples = surrogate.sample(points, 400, np.random.default_rng(0))
    mean = surrogate.means(points).log_time[0]
    deviation = samples.log_time.std(axis=0)
    assert np.abs(samples.log_time.mean(axis=0) - mean).max() < 0.3 * deviation.max()
    known = {one.configuration for one in averaged}
    at_known = np.array([one in known for one in points])
    assert deviation[at_known].mean() < 0.7 * deviation[~at_known].mean()


@pytest.mark.parametrize("share", [-0.3, 0.0, 0.001])
def test_effective_energies_around_zero_are_modelled_and_given_back(share: float):
    """Effective energy about `share` of static, so noise pushes measured ones below zero."""
    base = small_space(noise=False)
    truth = {
        one: (time, STATIC_POWER_W * time * (1.0 + share)) for one, (time, _) in base.truth.items()
    }
    space = with_noise("tiny", base.partition, truth, seed=1)
    measurements = _measure_every(space, 2)
    options = posterior_means(space.partition, measurements, static_power_w=STATIC_POWER_W)
    for one in options:
        assert math.isfinite(one.energy_j)
        assert one.energy_j == pytest.approx(truth[one.configuration][1], rel=0.05)


def test_clock_only_units_are_smoothed_and_few_points_left_alone():
    partition = make_partition(sm_allocations=(), launch_points=())
    truth = {
        one: (1e-3 * 1410 / one.clock_mhz, 0.3 + 0.2 * (one.clock_mhz / 1410) ** 3)
        for one in partition.space()
    }
    space = with_noise("clocks", partition, truth, seed=0)
    measurements = [space.measure(one, 0) for one in truth]
    options = posterior_means(partition, measurements, static_power_w=STATIC_POWER_W)
    assert [one.configuration for one in options] == list(partition.space())
    errors = [np.log(one.time_s / truth[one.configuration][0]) for one in options]
    assert np.std(errors) < 0.004
    two = posterior_means(partition, measurements[:2], static_power_w=STATIC_POWER_W)
    assert two == measured_options(partition, measurements[:2])


def test_repeats_are_averaged():
    space = small_space()
    one = next(iter(space.truth))
    first, second = space.measure(one, 0), space.measure(one, 1)
    (option,) = measured_options(space.partition, [first, second])
    assert option.time_s == pytest.approx((first.time_s + second.time_s) / 2)
    assert first.time_s != second.time_s


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"time_s": math.nan}, "time nan"),
        ({"energy_j": math.inf}, "energy inf"),
        ({"energy_j": 0.0}, "energy 0.0"),
        ({"energy_j": None}, "energy was not measured"),
        ({"partition": "bwd_mlp"}, "belongs to partition bwd_mlp"),
    ],
)
def test_unusable_measurements_are_refused_with_place_and_reason(change, words):
    space = small_space()
    measurements = _measure_every(space, 5)
    measurements[3] = replace(measurements[3], **change)
    with pytest.raises(MeasurementError, match=words) as caught:
        posterior_means(space.partition, measurements, static_power_w=STATIC_POWER_W)
    assert space.partition.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_measurements_and_a_senseless_static_power_are_refused():
    space = small_space()
    with pytest.raises(MeasurementError, match="nothing was measured"):
        posterior_means(space.partition, [], static_power_w=STATIC_POWER_W)
    with pytest.raises(MeasurementError, match="static power nan"):
        posterior_means(space.partition, _measure_every(space, 5), static_power_w=math.nan)


def test_one_clock_only_can_be_modelled():
    space = small_space()
    measurements = [space.measure(one, 0) for one in space.truth if one.clock_mhz == 900]
    options = posterior_means(space.partition, measurements, static_power_w=STATIC_POWER_W)
    assert len(options) == 15
    surrogate = Surrogate(
        space.partition,
        average(space.partition, measurements),
        static_power_w=STATIC_POWER_W,
    )
    (elsewhere,) = surrogate.options(
        [Configuration(clock_mhz=1410, sm_allocation=9, launch_point=SMALL_LAUNCH)]
    )
    assert math.isfinite(elsewhere.time_s)


SMALL_LAUNCH = small_space().partition.launch_points[0]
