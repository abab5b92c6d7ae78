"""One Gaussian process on a partition's space: fit, posterior mean, joint posterior samples.

Legend: n training points x, targets y standardised to mean 0 and deviation 1, r_i the relative
noise level of point i. The covariance is that of `kernel`; of its terms a2 and a3 are there where
SMs or slots differ, a4 and a5 where there is a guide too. Hyperparameters maximise the posterior
density under log-normal priors (L-BFGS, analytic gradient, fixed start: the same data give the same
fit).
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from kareus.search.kernel import PARAMETERS, covariance, slopes

FloatArray = NDArray[np.float64]

# Points the hyperparameters are fitted on; more would change them little and cost n^3 each step.
_MAX_FIT_POINTS = 224
_MAX_STEPS = 40
_JITTER = 1e-8

# Log-normal priors, (median, deviation of the log): amplitudes a and lengths l per term.
_PRIORS: dict[str, tuple[float, float]] = {
    "a1": (0.3, 1.2),
    "l1_clock": (1.0, 0.7),
    "a2": (0.5, 1.2),
    "l2_sms": (0.6, 0.7),
    "l2_slot": (1.5, 0.8),
    "a3": (0.2, 1.2),
    "l3_clock": (1.5, 0.7),
    "l3_sms": (0.6, 0.7),
    "l3_slot": (1.5, 0.8),
    "a4": (0.5, 1.2),
    "l4_clock": (1.0, 0.7),
    "l4_guide": (0.7, 0.7),
    "a5": (0.002, 1.5),
}
_CLOCK_ONLY: tuple[str, ...] = ("a1", "l1_clock")
_SHAPED = ("a2", "l2_sms", "l2_slot", "a3", "l3_clock", "l3_sms", "l3_slot")
_GUIDED = ("a4", "l4_clock", "l4_guide", "a5")
_NOISE_DEVIATION = 0.8


class GaussianProcess:
    """A Gaussian process fitted to one quantity of one partition.

    Args:
        inputs: Shape (n, 4).
        targets: Shape (n,).
        noise_levels: Relative noise of each point, shape (n,): its noise deviation is the fitted
            one times this.
        noise_median: Prior median of the noise deviation, in units of the targets.
        medians: Prior medians of hyperparameters by name, in place of the general ones.
    """

    def __init__(
        self,
        inputs: FloatArray,
        targets: FloatArray,
        *,
        noise_levels: FloatArray,
        noise_median: float,
        medians: Mapping[str, float] | None = None,
    ) -> None:
        self._inputs = inputs
        self._centre = float(targets.mean())
        deviation = float(targets.std())
        self._scale = deviation if deviation > 1e-12 else 1.0
        self._levels = noise_levels
        shaped = bool(np.ptp(inputs[:, 1]) > 0 or np.ptp(inputs[:, 2]) > 0)
        names = _CLOCK_ONLY
        if shaped:
            names += _SHAPED
            names += _GUIDED if np.ptp(inputs[:, 3]) > 0 else ()
        self._names = names
        self._places = np.array([PARAMETERS.index(name) for name in names])
        medians = medians or {}
        priors = [(medians.get(name, _PRIORS[name][0]), _PRIORS[name][1]) for name in names]
        priors.append((noise_median / self._scale, _NOISE_DEVIATION))
        self._prior_mean = np.log([median for median, _ in priors])
        self._prior_deviation = np.array([spread for _, spread in priors])
        standardised = (targets - self._centre) / self._scale
        self._theta = self._fit(standardised)
        self._kernel = self._values(self._theta)
        matrix: FloatArray = covariance(inputs, inputs, self._kernel)
        matrix[np.diag_indices_from(matrix)] += _noise_variance(self._theta, self._levels)
        self._factor = cholesky(matrix, lower=True, check_finite=False)
        self._weights = cho_solve((self._factor, True), standardised, check_finite=False)

    @property
    def noise_deviation(self) -> float:
        """Noise deviation of a point of level 1, in units of the targets."""
        return float(np.exp(self._theta[-1])) * self._scale

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Fitted amplitudes and lengths by name, of the standardised targets; without noise."""
        return {
            name: float(value)
            for name, value in zip(self._names, np.exp(self._theta[:-1]), strict=True)
        }

    def mean(self, points: FloatArray) -> FloatArray:
        """Return the posterior mean without noise at the points, shape (m,)."""
        cross: FloatArray = covariance(points, self._inputs, self._kernel)
        return self._centre + self._scale * (cross @ self._weights)

    def sample(self, points: FloatArray, num_samples: int, rng: np.random.Generator) -> FloatArray:
        """Return joint posterior samples without noise, shape (num_samples, m)."""
        cross: FloatArray = covariance(points, self._inputs, self._kernel)
        mean = cross @ self._weights
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        matrix: FloatArray = covariance(points, points, self._kernel)
        matrix -= half.T @ half
        factor = _robust_cholesky(matrix)
        draws = rng.standard_normal((num_samples, len(points)))
        samples: FloatArray = self._centre + self._scale * (mean + draws @ factor.T)
        return samples

    def _values(self, theta: FloatArray) -> FloatArray:
        """The kernel's values, amplitude 0 for terms that are not there."""
        values = np.array([0.0 if name.startswith("a") else 1.0 for name in PARAMETERS])
        values[self._places] = np.exp(theta[:-1])
        return values

    def _fit(self, standardised: FloatArray) -> FloatArray:
        """Maximise the posterior density of the hyperparameters."""
        chosen = np.arange(len(standardised))
        if len(chosen) > _MAX_FIT_POINTS:
            chosen = np.linspace(0, len(chosen) - 1, _MAX_FIT_POINTS).round().astype(np.intp)
        inputs = self._inputs[chosen]
        targets, levels = standardised[chosen], self._levels[chosen]

        def objective(theta: FloatArray) -> tuple[float, FloatArray]:
            return self._negative_log_posterior(theta, inputs, targets, levels)

        start = self._prior_mean.copy()
        result = minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[
                (centre - 4.0 * spread, centre + 4.0 * spread)
                for centre, spread in zip(self._prior_mean, self._prior_deviation, strict=True)
            ],
            options={"maxiter": _MAX_STEPS},
        )
        fitted: FloatArray = np.asarray(result.x, dtype=np.float64)
        return fitted

    def _negative_log_posterior(
        self, theta: FloatArray, inputs: FloatArray, targets: FloatArray, levels: FloatArray
    ) -> tuple[float, FloatArray]:
        """Negative log posterior density and its gradient with respect to log parameters."""
        values = self._values(theta)
        matrix: FloatArray = covariance(inputs, inputs, values)
        noise = _noise_variance(theta, levels)
        matrix[np.diag_indices_from(matrix)] += noise
        try:
            factor = cholesky(matrix, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros_like(theta)
        weights = cho_solve((factor, True), targets, check_finite=False)
        inverse = cho_solve((factor, True), np.eye(len(targets)), check_finite=False)
        outer = inverse - np.outer(weights, weights)

        # d/d log of each parameter of 0.5 (y' K^-1 y + log det K) = 0.5 sum(outer * dK).
        gradient = np.append(
            0.5 * slopes(inputs, values, outer)[self._places],
            np.dot(np.diag(outer), noise - _JITTER),
        )
        offset = (theta - self._prior_mean) / self._prior_deviation
        density = (
            0.5 * float(targets @ weights)
            + float(np.log(np.diag(factor)).sum())
            + 0.5 * float(offset @ offset)
        )
        return density, gradient + offset / self._prior_deviation


def _noise_variance(theta: FloatArray, levels: FloatArray) -> FloatArray:
    variance: FloatArray = np.exp(2.0 * theta[-1]) * levels**2 + _JITTER
    return variance


def _robust_cholesky(matrix: FloatArray) -> FloatArray:
    """Cholesky factor of a covariance that may be singular to rounding; grows the jitter."""
    scale = max(float(np.abs(np.diag(matrix)).max()), 1e-12)
    jitter = 1e-9 * scale
    while True:
        shifted = matrix.copy()
        shifted[np.diag_indices_from(shifted)] += jitter
        try:
            factor: FloatArray = cholesky(shifted, lower=True, check_finite=False, overwrite_a=True)
        except np.linalg.LinAlgError:
            jitter *= 10.0
            if jitter > scale:
                raise
        else:
            return factor
