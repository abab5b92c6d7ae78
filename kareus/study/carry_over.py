"""What a training run measured, joined with the study it was planned from, to plan again.

A run executes few configurations of each partition. Taken as they are beside the study's own
figures of all others, a run that is slower than planned would only drive the new plans to what it
did not execute. So the others are carried over: their times by the ratio the run shows, per
partition where it executed one, else over all; their dynamic energies likewise.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement

Key = tuple[str, Configuration]


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedOver:
    """The measurements of a study after a run.

    Attributes:
        measurements: One per configuration that the run executed, and the study's others.
        num_run: How many of them are the run's.
        time_ratio: Median ratio of the run's times to the study's.
        dynamic_ratio: Of the dynamic energies; None where the run measured no energy.
    """

    measurements: tuple[Measurement, ...]
    num_run: int
    time_ratio: float
    dynamic_ratio: float | None


def carry_over(
    studied: Iterable[Measurement], run: Sequence[Measurement], *, static_power_w: float
) -> CarriedOver:
    """Join a study's measurements with those of a run under one of its plans.

    Where the run has no energy, the study's dynamic energy and the run's time give it. What the
    run executed and the study never measured is left out if its energy is unknown.

    Args:
        studied: The study's measurements, repeats included.
        run: The run's, one per partition and configuration.
        static_power_w: Static power of one GPU.
    """
    own: dict[Key, list[Measurement]] = defaultdict(list)
    for one in studied:
        own[one.partition, one.configuration].append(one)
    ratios = _Ratios(own, run, static_power_w)
    taken: dict[Key, Measurement] = {}
    for one in run:
        key = (one.partition, one.configuration)
        energy_j = one.energy_j
        if energy_j is None and (before := _means(own.get(key, ()))) is not None:
            energy_j = _moved(before, one.time_s, dynamic=1.0, static_w=static_power_w)
        if energy_j is not None:
            taken[key] = replace(one, energy_j=energy_j, repeat=0)
    others = [
        ratios.apply(one) for key, repeats in own.items() if key not in taken for one in repeats
    ]
    return CarriedOver(
        measurements=(*taken.values(), *others),
        num_run=len(taken),
        time_ratio=ratios.time(),
        dynamic_ratio=ratios.dynamic(),
    )


class _Ratios:
    """How a run's times and dynamic energies stand to the study's."""

    def __init__(
        self, own: Mapping[Key, Sequence[Measurement]], run: Sequence[Measurement], static_w: float
    ) -> None:
        self._static_w = static_w
        self._times: dict[str, list[float]] = defaultdict(list)
        self._dynamic: dict[str, list[float]] = defaultdict(list)
        for one in run:
            before = _means(own.get((one.partition, one.configuration), ()))
            if before is None:
                continue
            time_s, energy_j = before
            self._times[one.partition].append(one.time_s / time_s)
            dynamic_j = energy_j - static_w * time_s
            if one.energy_j is not None and dynamic_j > 0:
                ratio = (one.energy_j - static_w * one.time_s) / dynamic_j
                if ratio > 0:  # readings of short instructions may fall below the static power
                    self._dynamic[one.partition].append(ratio)

    def time(self, partition: str | None = None) -> float:
        """Of a partition; of all where it was not executed, or none is named."""
        return _median(self._times, partition) or 1.0

    def dynamic(self, partition: str | None = None) -> float | None:
        """Likewise; None where no energy was measured."""
        return _median(self._dynamic, partition)

    def apply(self, one: Measurement) -> Measurement:
        """The study's measurement as the run suggests it."""
        ratio, dynamic = self.time(one.partition), self.dynamic(one.partition) or 1.0
        time_s = ratio * one.time_s
        energy_j = one.energy_j
        if energy_j is not None:
            energy_j = _moved(
                (one.time_s, energy_j), time_s, dynamic=dynamic, static_w=self._static_w
            )
        return replace(
            one,
            time_s=time_s,
            energy_j=energy_j,
            time_spread_s=None if one.time_spread_s is None else ratio * one.time_spread_s,
            conditions={
                **one.conditions,
                "origin": "study",
                "time_ratio": ratio,
                "dynamic_energy_ratio": dynamic,
            },
        )


def _moved(before: tuple[float, float], time_s: float, *, dynamic: float, static_w: float) -> float:
    """The energy of what took (seconds, joules) at another time, its dynamic part scaled.

    Where noise left no dynamic part, the power stays: a scaled one could turn the energy negative.
    """
    before_s, before_j = before
    dynamic_j = before_j - static_w * before_s
    if dynamic_j <= 0:
        return before_j * time_s / before_s
    return dynamic * dynamic_j + static_w * time_s


def _median(ratios: Mapping[str, Sequence[float]], partition: str | None) -> float | None:
    own = ratios.get(partition, ()) if partition is not None else ()
    values = own or [ratio for each in ratios.values() for ratio in each]
    return statistics.median(values) if values else None


def _means(repeats: Sequence[Measurement]) -> tuple[float, float] | None:
    """Mean time and energy of a configuration's repeats; None without any energy."""
    known = [(one.time_s, one.energy_j) for one in repeats if one.energy_j is not None]
    if not known:
        return None
    return (
        statistics.fmean(time_s for time_s, _ in known),
        statistics.fmean(energy_j for _, energy_j in known),
    )
