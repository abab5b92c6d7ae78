"""One Gaussian process on a partition's space: fit, posterior mean, joint posterior samples.

Legend: n training points x (columns: clock, SMs, slot, guide), targets y
standardised to mean 0 and deviation 1, r_i the relative noise level of point i.

    k(x, x') = b0 + b1 c c' + a1 M(clock) + a2 M(SMs, slot) + a3 M(clock, SMs, slot)
               + a4 M(clock, guide) + a5 [SMs, slot equal]

with M a Matern-5/2 kernel of scaled distance: a trend in the clock, a part that clocks share, a
part of their own. The guide is another quantity the targets follow (for energy: time). The last two
terms are there only with a guide; the very last is what neither neighbours nor the guide tell of an
SM allocation and slot, the same at all clocks. Two different slots are one length apart whatever
their position, since savings of launch points do not add up along the computation. Hyperparameters
maximise the posterior density under log-normal priors (L-BFGS, analytic gradient, fixed start: the
same data give the same fit).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

FloatArray = NDArray[np.float64]

_ROOT5 = float(np.sqrt(5.0))
_TREND_VARIANCE = (1.0, 4.0)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Distances:
    """Squared distances per dimension between two sets of points, and the trend's products."""

    clock: FloatArray
    sms: FloatArray
    slot: FloatArray
    guide: FloatArray
    equal: FloatArray
    trend: FloatArray

    @classmethod
    def between(cls, first: FloatArray, second: FloatArray) -> "_Distances":
        delta = first[:, None, :2] - second[None, :, :2]
        centred = (first[:, 0] - 0.5)[:, None] * (second[:, 0] - 0.5)[None, :]
        other_slot = first[:, None, 2] != second[None, :, 2]
        return cls(
            clock=delta[:, :, 0] ** 2,
            sms=delta[:, :, 1] ** 2,
            slot=other_slot.astype(np.float64),
            equal=(~other_slot & (delta[:, :, 1] == 0.0)).astype(np.float64),
            guide=(first[:, None, 3] - second[None, :, 3]) ** 2,
            trend=_TREND_VARIANCE[0] + _TREND_VARIANCE[1] * centred,
        )


def _matern(squared: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Matern-5/2 of a squared scaled distance, and its derivative with respect to that."""
    scaled = _ROOT5 * np.sqrt(squared)
    decay = np.exp(-scaled)
    return (1.0 + scaled + scaled * scaled / 3.0) * decay, (-5.0 / 6.0) * (1.0 + scaled) * decay


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
        medians = medians or {}
        priors = [(medians.get(name, _PRIORS[name][0]), _PRIORS[name][1]) for name in names]
        priors.append((noise_median / self._scale, _NOISE_DEVIATION))
        self._prior_mean = np.log([median for median, _ in priors])
        self._prior_deviation = np.array([spread for _, spread in priors])
        standardised = (targets - self._centre) / self._scale
        self._theta = self._fit(standardised)
        distances = _Distances.between(inputs, inputs)
        covariance = self._kernel(distances, self._theta)
        covariance[np.diag_indices_from(covariance)] += self._noise_variance(
            self._theta, self._levels
        )
        self._factor = cholesky(covariance, lower=True, check_finite=False)
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
        cross = self._kernel(_Distances.between(points, self._inputs), self._theta)
        return self._centre + self._scale * (cross @ self._weights)

    def sample(self, points: FloatArray, num_samples: int, rng: np.random.Generator) -> FloatArray:
        """Return joint posterior samples without noise, shape (num_samples, m)."""
        cross = self._kernel(_Distances.between(points, self._inputs), self._theta)
        mean = cross @ self._weights
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        covariance = self._kernel(_Distances.between(points, points), self._theta)
        covariance -= half.T @ half
        factor = _robust_cholesky(covariance)
        draws = rng.standard_normal((num_samples, len(points)))
        samples: FloatArray = self._centre + self._scale * (mean + draws @ factor.T)
        return samples

    def _kernel(self, distances: _Distances, theta: FloatArray) -> FloatArray:
        """Covariance without noise, in standardised units."""
        value = dict(zip(self._names, np.exp(theta), strict=False))
        total = distances.trend.copy()
        for amplitude, squared in self._terms(distances, value):
            total += amplitude * _matern(squared)[0]
        if "a5" in value:
            total += value["a5"] * distances.equal
        return total

    def _terms(
        self, distances: _Distances, value: dict[str, float]
    ) -> list[tuple[float, FloatArray]]:
        """Amplitude and squared scaled distance of each Matern term."""
        terms = [(value["a1"], distances.clock / value["l1_clock"] ** 2)]
        if "a2" in value:
            terms.append(
                (
                    value["a2"],
                    distances.sms / value["l2_sms"] ** 2 + distances.slot / value["l2_slot"] ** 2,
                )
            )
            terms.append(
                (
                    value["a3"],
                    distances.clock / value["l3_clock"] ** 2
                    + distances.sms / value["l3_sms"] ** 2
                    + distances.slot / value["l3_slot"] ** 2,
                )
            )
        if "a4" in value:
            terms.append(
                (
                    value["a4"],
                    distances.clock / value["l4_clock"] ** 2
                    + distances.guide / value["l4_guide"] ** 2,
                )
            )
        return terms

    def _noise_variance(self, theta: FloatArray, levels: FloatArray) -> FloatArray:
        variance: FloatArray = np.exp(2.0 * theta[-1]) * levels**2 + _JITTER
        return variance

    def _fit(self, standardised: FloatArray) -> FloatArray:
        """Maximise the posterior density of the hyperparameters."""
        chosen = np.arange(len(standardised))
        if len(chosen) > _MAX_FIT_POINTS:
            chosen = np.linspace(0, len(chosen) - 1, _MAX_FIT_POINTS).round().astype(np.intp)
        inputs = self._inputs[chosen]
        distances = _Distances.between(inputs, inputs)
        targets, levels = standardised[chosen], self._levels[chosen]

        def objective(theta: FloatArray) -> tuple[float, FloatArray]:
            return self._negative_log_posterior(theta, distances, targets, levels)

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
        self, theta: FloatArray, distances: _Distances, targets: FloatArray, levels: FloatArray
    ) -> tuple[float, FloatArray]:
        """Negative log posterior density and its gradient with respect to log parameters."""
        value = dict(zip(self._names, np.exp(theta), strict=False))
        terms = [
            (amplitude, *_matern(squared)) for amplitude, squared in self._terms(distances, value)
        ]
        covariance = distances.trend.copy()
        for amplitude, correlation, _ in terms:
            covariance += amplitude * correlation
        if "a5" in value:
            covariance += value["a5"] * distances.equal
        noise = np.exp(2.0 * theta[-1]) * levels**2
        covariance[np.diag_indices_from(covariance)] += noise + _JITTER
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except np.linalg.LinAlgError:
            return 1e12, np.zeros_like(theta)
        weights = cho_solve((factor, True), targets, check_finite=False)
        inverse = cho_solve((factor, True), np.eye(len(targets)), check_finite=False)
        outer = inverse - np.outer(weights, weights)

        # d/d log of each parameter of 0.5 (y' K^-1 y + log det K) = 0.5 sum(outer * dK).
        gradient: dict[str, float] = {}
        parts = {
            "clock": distances.clock,
            "sms": distances.sms,
            "slot": distances.slot,
            "guide": distances.guide,
        }
        for number, (amplitude, correlation, slope) in enumerate(terms, start=1):
            gradient[f"a{number}"] = 0.5 * amplitude * float(np.vdot(outer, correlation))
            steep = outer * slope
            for part, squared in parts.items():
                name = f"l{number}_{part}"
                if name in value:
                    factor_ = -amplitude / value[name] ** 2
                    gradient[name] = factor_ * float(np.vdot(steep, squared))
        if "a5" in value:
            gradient["a5"] = 0.5 * value["a5"] * float(np.vdot(outer, distances.equal))
        slopes = [gradient[name] for name in self._names]
        slopes.append(float(np.dot(np.diag(outer), noise)))

        offset = (theta - self._prior_mean) / self._prior_deviation
        density = (
            0.5 * float(targets @ weights)
            + float(np.log(np.diag(factor)).sum())
            + 0.5 * float(offset @ offset)
        )
        return density, np.array(slopes) + offset / self._prior_deviation


def _robust_cholesky(covariance: FloatArray) -> FloatArray:
    """Cholesky factor of a covariance that may be singular to rounding; grows the jitter."""
    scale = max(float(np.abs(np.diag(covariance)).max()), 1e-12)
    jitter = 1e-9 * scale
    while True:
        shifted = covariance.copy()
        shifted[np.diag_indices_from(shifted)] += jitter
        try:
            factor: FloatArray = cholesky(shifted, lower=True, check_finite=False, overwrite_a=True)
        except np.linalg.LinAlgError:
            jitter *= 10.0
            if jitter > scale:
                raise
        else:
            return factor
