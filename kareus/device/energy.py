"""Energy: what a GPU's counter or its sampled power say of a window, and what processors used.

Legend: P power in watts, t seconds, E joules. The counter moves about every 0.1 s, so a window's
energy is uncertain by the work of up to one period at either end.
"""

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum

from kareus.errors import DeviceError

COUNTER_PERIOD_S = 0.1
"""Between two steps of a GPU's energy counter."""
DISAGREEMENT = 0.10
"""Relative difference of counter and integrated power above which a device is flagged."""
_MIN_SAMPLES = 5
_MAX_GAP_S = 0.5


class EnergySource(StrEnum):
    """What an energy was read from."""

    COUNTER = "counter"
    POWER = "power-integral"
    RAPL = "rapl"
    NOT_MEASURED = "not-measured"


def integrate_power(samples: Sequence[tuple[float, float]]) -> float | None:
    """Return the energy of sampled power by the trapezoid rule.

    Args:
        samples: (time in s, power in W), in order of time.

    Returns:
        Joules; None where there are too few samples or a gap between them is too long to bridge.
    """
    if len(samples) < _MIN_SAMPLES:
        return None
    energy_j = 0.0
    for (start_s, start_w), (end_s, end_w) in itertools.pairwise(samples):
        if end_s - start_s > _MAX_GAP_S:
            return None
        energy_j += (end_s - start_s) * (start_w + end_w) / 2
    return energy_j if math.isfinite(energy_j) and energy_j > 0 else None


def counter_uncertainty_j(power_w: float) -> float:
    """Return the standard deviation of a window's energy that the counter's steps cause.

    Either end is off by a time uniform over one period: sqrt(2) * P * period / sqrt(12).
    """
    return math.sqrt(2 / 12) * power_w * COUNTER_PERIOD_S


def disagreement(counter_j: float, integral_j: float) -> float:
    """Return how far integrated power is from the counter, relative to the counter."""
    return abs(integral_j - counter_j) / counter_j


class ProcessorCounter:
    """The energy counters of this machine's processors (RAPL), through zeus.

    Raises:
        DeviceError: There are none, or they may not be read.
    """

    def __init__(self) -> None:
        # Only here: without RAPL nothing of it is needed.
        import zeus.device.cpu.rapl as rapl
        from zeus.exception import ZeusBaseError

        if not rapl.rapl_is_available():
            raise DeviceError("this processor has no energy counter (RAPL)")
        try:
            packages = rapl.RAPLCPUs()
        except (ZeusBaseError, OSError) as error:
            raise DeviceError(
                f"the processor's energy counter cannot be read ({error}): run as root, or start "
                "zeusd and set ZEUSD_SOCK_PATH"
            ) from error
        self._packages = [packages.cpus[index] for index in range(len(packages.cpus))]

    def energy_j(self) -> float:
        """Return the sum over the packages' counters in joules.

        Raises:
            DeviceError: A counter cannot be read.
        """
        try:
            millijoules = [p.get_total_energy_consumption().cpu_mj for p in self._packages]
        except OSError as error:
            raise DeviceError(f"the processor's energy counter cannot be read: {error}") from error
        return float(sum(millijoules)) / 1e3


def processor_counter() -> ProcessorCounter | None:
    """Return the processors' energy counter; None where it is not to be had."""
    try:
        return ProcessorCounter()
    except DeviceError:
        return None
