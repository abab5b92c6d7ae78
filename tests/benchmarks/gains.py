"""What a joint choice of clock, SMs and launch point gains over Perseus: recorded and simulated.

Figures per workload, against the Perseus frontier:

- fastest: reduction of the least iteration time;
- iso-time: energy reduction at the time of Perseus' fastest plan;
- iso-energy: time reduction at the energy of Perseus' most frugal plan.

Recorded `kareus` rows carry a planning margin on time and energy (about 1.15 in release `artifact`,
unknown in `earlier`), Perseus rows none: recorded gains are lower bounds, to be compared in shape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.core.frontier import least_energy_within, least_time_within
from kareus.core.plan import Method
from kareus.core.workload import Gpu
from kareus.simulate.records import RecordKey, read_frontiers

Point = tuple[float, float]
"""(iteration time in s, pipeline energy in J)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gains:
    """Reductions against Perseus, as fractions; negative where it is worse.

    Attributes:
        fastest: Of the least iteration time.
        iso_time: Of energy at the time of Perseus' fastest plan; None if nothing is that fast.
        iso_energy: Of time at the energy of Perseus' most frugal plan; None if nothing is that
            frugal.
    """

    fastest: float
    iso_time: float | None
    iso_energy: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GainsRow:
    """One workload's recorded gains, and the simulated ones where they were given.

    Attributes:
        key: The workload.
        release: Release of the recorded kareus plans.
        recorded: Gains of the recorded plans.
        simulated: Gains of a simulated study of the same workload; None if there is none.
    """

    key: RecordKey
    release: str
    recorded: Gains
    simulated: Gains | None


def gains(kareus: Sequence[Point], perseus: Sequence[Point]) -> Gains:
    """Return the reductions of one frontier against another.

    Args:
        kareus: Points of the frontier in question, at least one.
        perseus: Points of the frontier it is compared with, at least one.
    """
    fast_time, fast_energy = min(perseus)
    frugal_time, frugal_energy = min(perseus, key=lambda point: point[1])
    at_time = least_energy_within(kareus, fast_time)
    at_energy = least_time_within(kareus, frugal_energy)
    return Gains(
        fastest=1.0 - min(kareus)[0] / fast_time,
        iso_time=None if at_time is None else 1.0 - kareus[at_time][1] / fast_energy,
        iso_energy=None if at_energy is None else 1.0 - kareus[at_energy][0] / frugal_time,
    )


def gains_table(
    frontiers: Path | str,
    gpu: Gpu,
    *,
    simulated: Mapping[RecordKey, tuple[Sequence[Point], Sequence[Point]]] | None = None,
) -> tuple[GainsRow, ...]:
    """Return recorded gains per workload beside simulated ones.

    Args:
        frontiers: CSV of recorded plans with `kareus` and `perseus` rows.
        gpu: The GPU they were recorded on.
        simulated: Per workload, the (kareus, perseus) frontiers of a simulated study.

    Returns:
        One row per workload and release of its kareus plans.

    Raises:
        MeasurementError: If the file cannot be used; the message names the row.
    """
    plans = read_frontiers(
        Path(frontiers), None, gpu, wanted=lambda m: m in (Method.KAREUS, Method.PERSEUS)
    )
    points: dict[tuple[RecordKey, Method, str], list[Point]] = {}
    for plan in plans:
        release = plan.release if plan.method is Method.KAREUS else ""
        points.setdefault((plan.key, plan.method, release), []).append(
            (plan.iteration_time_s, plan.total_energy_j)
        )
    rows = []
    for (key, method, release), recorded in points.items():
        perseus = points.get((key, Method.PERSEUS, ""))
        if method is not Method.KAREUS or perseus is None:
            continue
        study = (simulated or {}).get(key)
        rows.append(
            GainsRow(
                key=key,
                release=release,
                recorded=gains(recorded, perseus),
                simulated=None if study is None else gains(*study),
            )
        )
    return tuple(rows)
