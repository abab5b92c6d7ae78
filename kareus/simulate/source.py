"""The simulator as a source of measurements, with seeded noise.

A measurement is the model's prediction times (1 + noise). Noise is that of repeats at a locked
clock in the published sweep: 0.02 % of the time, 0.4 % of the energy. It is drawn from a generator
seeded by (seed, workload, partition, configuration, repeat), so a value never depends on what was
asked before, and a resumed study goes on as if it had never stopped.
"""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.errors import ConfigError
from kareus.simulate.calibration import Calibration, calibration_for
from kareus.simulate.model import predict

TIME_NOISE = 0.0002
"""Relative standard deviation of a repeated time measurement at a locked clock."""

ENERGY_NOISE = 0.004
"""Likewise of an energy measurement."""

REFERENCE_TEMPERATURE_C = 55.0
"""Assumed GPU temperature of the calibration data: one cooled down between measurements."""

_TEMPERATURE_RANGE_C = (0.0, 110.0)


class SimulatorSource:
    """Measurements of a workload's partitions from the calibrated model."""

    def __init__(
        self,
        workload: Workload,
        *,
        seed: int,
        calibration: Calibration | None = None,
        noise: bool = True,
        temperature_c: float | None = None,
    ) -> None:
        """Prepare the source.

        Args:
            workload: What is measured; names the GPU.
            seed: Seed of the noise.
            calibration: The parameter table; None means the built-in one of the workload's GPU.
            noise: Whether values vary as repeated measurements do.
            temperature_c: GPU temperature; a warmer GPU leaks more. None means that of the
                calibration, which changes nothing.

        Raises:
            ConfigError: If the calibration is for another GPU, or the temperature impossible.
        """
        self._calibration = calibration or calibration_for(workload.gpu)
        if self._calibration.gpu.name != workload.gpu.name:
            raise ConfigError(
                f"calibration is for {self._calibration.gpu.name}, the workload for "
                f"{workload.gpu.name}: choose a calibration of that GPU or leave it out"
            )
        if temperature_c is not None:
            low, high = _TEMPERATURE_RANGE_C
            if not low <= temperature_c <= high:
                raise ConfigError(
                    f"temperature {temperature_c:g} °C is outside {low:g}..{high:g} °C"
                )
        self._gpu = workload.gpu
        self._seed = seed
        self._noise = noise
        self._temperature_c = temperature_c
        parallelism = workload.parallelism
        self._identity = "|".join(
            str(part)
            for part in (
                workload.model.name,
                workload.gpu.name,
                parallelism.tp,
                parallelism.cp,
                workload.microbatch_size,
                workload.seq_len,
            )
        )

    @property
    def kind(self) -> SourceKind:
        """Simulated."""
        return SourceKind.SIMULATOR

    @property
    def repeatable(self) -> bool:
        """Simulated measurements can be repeated, with fresh noise."""
        return True

    @property
    def calibration(self) -> Calibration:
        """The parameter table measurements come from."""
        return self._calibration

    def space(self, partition: Partition) -> tuple[Configuration, ...]:
        """Return the partition's space, then its baseline configurations not in it."""
        return tuple(dict.fromkeys((*partition.space(), *partition.baseline_configurations())))

    def measure(
        self, partition: Partition, configurations: Sequence[Configuration], *, repeat: int = 0
    ) -> Iterator[Measurement | FailedMeasurement]:
        """Yield one measurement per configuration, in order.

        Raises:
            ConfigError: If a configuration is impossible for the partition or GPU.
        """
        predicted = predict(
            partition,
            configurations,
            self._gpu,
            self._calibration.parameters,
            temperature_excess_k=(
                0.0
                if self._temperature_c is None
                else self._temperature_c - REFERENCE_TEMPERATURE_C
            ),
        )
        for i, configuration in enumerate(configurations):
            time_s, energy_j = float(predicted.time_s[i]), float(predicted.energy_j[i])
            time_spread_s = energy_spread_j = 0.0
            if self._noise:
                time_spread_s, energy_spread_j = TIME_NOISE * time_s, ENERGY_NOISE * energy_j
                draw = self._generator(partition, configuration, repeat).standard_normal(2)
                time_s += time_spread_s * float(draw[0])
                energy_j += energy_spread_j * float(draw[1])
            conditions: dict[str, object] = {
                "achieved_clock_mhz": round(float(predicted.achieved_clock_mhz[i]), 1),
                "throttle_reasons": ["power limit"] if predicted.capped[i] else [],
                "extrapolated": self._calibration.extrapolated,
            }
            if self._temperature_c is not None:
                conditions["temperature_c"] = self._temperature_c
            yield Measurement(
                partition=partition.name,
                configuration=configuration,
                time_s=time_s,
                energy_j=energy_j,
                source=SourceKind.SIMULATOR,
                time_spread_s=time_spread_s,
                energy_spread_j=energy_spread_j,
                repeat=repeat,
                conditions=conditions,
            )

    def _generator(
        self, partition: Partition, configuration: Configuration, repeat: int
    ) -> np.random.Generator:
        """The noise of one measurement, whatever was measured before."""
        text = f"{self._seed}|{self._identity}|{partition.name}|{configuration}|{repeat}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
