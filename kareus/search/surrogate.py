"""What is believed about every configuration of a partition after some measurements.

Two Gaussian processes: on log time and on log(effective energy + shift). The effective energy is
modelled rather than the total, because SMs and launch point act on energy almost only through time
(total = A(clock) + P(clock) x time), so it varies little and smoothly; for the same reason the
expected time is an input of its process, a guide beside clock, SMs and slot. Being a difference of
two measured values, its noise relative to itself is that of the total times E_total / E_effective;
each point carries that level.

Short partitions bound by their collective have an effective energy near zero, below zero where
noise or an overstated static power makes it so. Then the shift, 0 otherwise, lifts all values to at
least `_LEAST_SHARE` of the total energy before the logarithm and is taken off again after it; both
are monotone, so no order of configurations changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Partition
from kareus.search.gaussian import GaussianProcess
from kareus.search.history import Averaged
from kareus.search.space import Encoding

FloatArray = NDArray[np.float64]

_LEAST_SHARE = 0.05
# Prior medians of the relative noise of a time and of a total energy measured over a window.
_TIME_NOISE = 0.003
_ENERGY_NOISE = 0.007
_LEAST_NOISE = 1e-4


class Prior(Protocol):
    """What is known of a partition before it is measured (see `transfer`)."""

    def medians(self, quantity: str) -> Mapping[str, float]:
        """Return prior medians of hyperparameters by name.

        Args:
            quantity: `time` for log time, `energy` for log effective energy.
        """

    def agreeing(self, averaged: Sequence[Averaged]) -> "Prior | None":
        """Return what of it agrees with measurements of the partition; None if nothing does."""

    def suggestions(
        self, candidates: Sequence[Configuration], num_configurations: int
    ) -> tuple[Configuration, ...]:
        """Return the candidates to measure first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PosteriorSamples:
    """Joint samples of what is believed, one row per sample, one column per configuration.

    Attributes:
        log_time: Log seconds, shape (s, m).
        log_effective: Log of (effective energy + shift), shape (s, m).
        log_total: Log of (total energy + shift), shape (s, m).
    """

    log_time: FloatArray
    log_effective: FloatArray
    log_total: FloatArray


def _noise(stated: Sequence[float | None], default: float) -> float:
    """Median of the relative noises the measurements state; the default where some state none."""
    known = [one for one in stated if one is not None]
    if len(known) < len(stated):
        return default
    return max(float(np.median(known)), _LEAST_NOISE)


class Surrogate:
    """The two Gaussian processes of one partition, fitted to averaged measurements.

    Args:
        partition: The partition.
        averaged: One mean per measured configuration, at least one.
        static_power_w: Static power in watts.
        prior: Measurements of other studies to start from; None without.
    """

    def __init__(
        self,
        partition: Partition,
        averaged: Sequence[Averaged],
        *,
        static_power_w: float,
        prior: Prior | None = None,
    ) -> None:
        self._encoding = Encoding.of(partition)
        self._static_power_w = static_power_w
        self._prior = prior
        self._averaged = tuple(averaged)
        time = np.array([one.time_s for one in averaged])
        total = np.array([one.energy_j for one in averaged])
        counts = np.array([one.num_measurements for one in averaged], dtype=np.float64)
        effective = total - static_power_w * time
        self._shift = float(max(0.0, np.max(_LEAST_SHARE * total - effective)))
        lifted = effective + self._shift
        self._time = self._process(
            "time",
            np.log(time),
            1.0 / np.sqrt(counts),
            _noise([one.time_noise for one in averaged], _TIME_NOISE),
        )
        self._time_range = (float(np.log(time).min()), max(float(np.ptp(np.log(time))), 1e-6))
        self._energy = self._process(
            "energy",
            np.log(lifted),
            total / lifted / np.sqrt(counts),
            _noise([one.energy_noise for one in averaged], _ENERGY_NOISE),
        )

    def hyperparameters(self, quantity: str) -> dict[str, float]:
        """Return the fitted amplitudes and lengths of `time` or `energy` by name."""
        return (self._time if quantity == "time" else self._energy).hyperparameters

    @property
    def explained_share(self) -> float:
        """Share of the deviation of log time that is not taken for noise, between 0 and 1."""
        deviation = float(np.std([math.log(one.time_s) for one in self._averaged]))
        return max(0.0, 1.0 - self._time.noise_deviation / max(deviation, 1e-12))

    def options(self, configurations: Sequence[Configuration]) -> tuple[PartitionOption, ...]:
        """Return the configurations with their posterior means (of the logs)."""
        time = np.exp(self._time.mean(self._inputs(configurations, "time")))
        lifted = np.exp(self._energy.mean(self._inputs(configurations, "energy")))
        total = lifted - self._shift + self._static_power_w * time
        return tuple(
            PartitionOption(configuration=one, time_s=float(t), energy_j=float(e))
            for one, t, e in zip(configurations, time, total, strict=True)
        )

    def means(self, configurations: Sequence[Configuration]) -> PosteriorSamples:
        """Return the posterior means as a single row."""
        return self._logs(
            self._time.mean(self._inputs(configurations, "time"))[None, :],
            self._energy.mean(self._inputs(configurations, "energy"))[None, :],
        )

    def resolutions(self, samples: PosteriorSamples, means: PosteriorSamples) -> FloatArray:
        """Return which share of its variance one measurement takes from each energy, shape (m,).

        v / (v + noise variance) with v the posterior variance of the log effective energy.
        """
        variance = samples.log_effective.var(axis=0)
        levels = np.exp(means.log_total[0] - means.log_effective[0])
        noise = (self._energy.noise_deviation * levels) ** 2
        shares: FloatArray = variance / np.maximum(variance + noise, 1e-300)
        return shares

    def sample(
        self, configurations: Sequence[Configuration], num_samples: int, rng: np.random.Generator
    ) -> PosteriorSamples:
        """Return joint posterior samples at the configurations."""
        return self._logs(
            self._time.sample(self._inputs(configurations, "time"), num_samples, rng),
            self._energy.sample(self._inputs(configurations, "energy"), num_samples, rng),
        )

    def _logs(self, log_time: FloatArray, log_effective: FloatArray) -> PosteriorSamples:
        total = np.exp(log_effective) + self._static_power_w * np.exp(log_time)
        return PosteriorSamples(
            log_time=log_time, log_effective=log_effective, log_total=np.log(total)
        )

    def _process(
        self,
        quantity: str,
        targets: FloatArray,
        levels: FloatArray,
        noise: float,
    ) -> GaussianProcess:
        return GaussianProcess(
            self._inputs([one.configuration for one in self._averaged], quantity),
            targets,
            noise_levels=levels,
            noise_median=noise,
            medians=None if self._prior is None else self._prior.medians(quantity),
        )

    def _inputs(self, configurations: Sequence[Configuration], quantity: str) -> FloatArray:
        """Encoded configurations and the guide, shape (m, 4)."""
        inputs = np.hstack(
            [self._encoding.encode(configurations), np.zeros((len(configurations), 1))]
        )
        if quantity == "energy":
            times = self._time.mean(self._inputs(configurations, "time"))
            inputs[:, 3] = (times - self._time_range[0]) / self._time_range[1]
        return inputs
