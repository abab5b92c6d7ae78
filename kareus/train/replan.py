"""What a training run measured of the partitions, to plan again with.

Traced steps hold the times of every partition's executions, at the clock of their instruction and
with the launch point that was seen.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement, SourceKind
from kareus.schedule.document import Schedule
from kareus.train.log import RankLog
from kareus.train.samples import logs_by_stage, readings_by_position


def training_measurements(schedule: Schedule, logs: Sequence[RankLog]) -> tuple[Measurement, ...]:
    """Return what traced steps measured of the partitions, one per partition and configuration.

    Times are means over executions, ranks and steps. Energy is the mean power read during the
    instructions they belong to, times their time; None where too little was read.
    """
    times: dict[tuple[str, Configuration], list[tuple[float, int]]] = defaultdict(list)
    powers: dict[tuple[str, Configuration], list[float]] = defaultdict(list)
    for stage, of_stage in logs_by_stage(logs).items():
        readings = readings_by_position(of_stage)
        options = schedule.to_plan().choices[stage]
        for log in of_stage:
            for record in log.steps[1:] or log.steps:
                for position, instruction in enumerate(record.instructions):
                    planned = dict(options[position].configurations)
                    for unit in instruction.units or ():
                        if unit.mean_s is None:
                            continue
                        configuration = _seen(
                            planned.get(unit.unit), instruction.clock_mhz, unit.launches
                        )
                        if configuration is None:
                            continue
                        key = (unit.unit, configuration)
                        times[key].append((unit.mean_s, unit.count))
                        power_w = readings[position].power_w
                        if power_w is not None:
                            powers[key].append(power_w)
    found = []
    for (unit_name, configuration), means in sorted(
        times.items(), key=lambda item: (item[0][0], item[0][1].sort_key())
    ):
        count = sum(n for _, n in means)
        time_s = sum(mean * n for mean, n in means) / count
        power = powers[unit_name, configuration]
        found.append(
            Measurement(
                partition=unit_name,
                configuration=configuration,
                time_s=time_s,
                energy_j=statistics.fmean(power) * time_s if power else None,
                time_spread_s=statistics.stdev([m for m, _ in means]) if len(means) > 1 else None,
                source=SourceKind.MEASURED,
                conditions={
                    "origin": "training",
                    "executions": count,
                    "energy_source": "mean power of the instruction" if power else "not-measured",
                },
            )
        )
    return tuple(found)


def _seen(
    planned: Configuration | None,
    clock_mhz: int,
    launches: Sequence[tuple[str, int | None]],
) -> Configuration | None:
    """The configuration a unit was seen to run at; None if it ran at several."""
    if planned is None or planned.launch_point is None:
        return Configuration(clock_mhz=clock_mhz)
    if len(launches) != 1:
        return None
    point, sms = launches[0]
    try:
        return Configuration(
            clock_mhz=clock_mhz, sm_allocation=sms, launch_point=LaunchPoint(point)
        )
    except ValueError:
        return None
