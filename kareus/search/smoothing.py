"""Posterior means of everything measured, from the same surrogate the search uses.

Raw values scatter; effective energies by several times as much as the total ones they are the
small difference of. A front of raw values is a front of lucky draws. The surrogate's means at the
measured configurations use the neighbours too. Raw values stay in the measurements.
"""

from collections.abc import Sequence

from kareus.core.measurement import Measurement, PartitionOption
from kareus.core.partition import Partition
from kareus.errors import MeasurementError
from kareus.search.history import average, check_static_power
from kareus.search.surrogate import Prior, Surrogate

# With fewer configurations than this there is nothing to smooth with.
_LEAST_POINTS = 4


def posterior_means(
    partition: Partition,
    measurements: Sequence[Measurement],
    *,
    static_power_w: float,
    prior: Prior | None = None,
) -> tuple[PartitionOption, ...]:
    """Return every measured configuration with the posterior means of its time and energy.

    Fewer than four configurations keep their measured values.

    Args:
        partition: The partition.
        measurements: Its measurements, repeats included.
        static_power_w: Static power in watts.
        prior: What other studies tell about it; None without.

    Returns:
        In the order of `Configuration.sort_key`.

    Raises:
        MeasurementError: There is none, or one of them cannot be used.
    """
    check_static_power(static_power_w)
    averaged = average(partition, measurements)
    if not averaged:
        raise MeasurementError(
            f"partition {partition.name}: nothing was measured; measure before asking for options"
        )
    if len(averaged) < _LEAST_POINTS:
        return tuple(
            PartitionOption(
                configuration=one.configuration, time_s=one.time_s, energy_j=one.energy_j
            )
            for one in averaged
        )
    surrogate = Surrogate(partition, averaged, static_power_w=static_power_w, prior=prior)
    return surrogate.options([one.configuration for one in averaged])
