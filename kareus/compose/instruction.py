"""Options of an instruction: Pareto-pruned sums of its partitions' options, clock by clock.

A clock change takes milliseconds, so all partitions of one instruction run at one clock. At each
clock an option is a sum over the partitions with their counts, plus the first computation (lead),
the last exposed collective (trail) and the work outside partitions; the options of the instruction
are the union over clocks and executions, pruned again.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.compose.front import MAX_POINTS, UNION_THINNING, Front, add, hull, prune, single, thin
from kareus.core.configuration import Configuration
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Execution
from kareus.core.pipeline import InstructionRecipe
from kareus.core.plan import InstructionOption
from kareus.errors import MeasurementError

# Times of instructions are rounded up to this grid (2^-40 s, 0.9 ps): sums of them along a path
# are then exact in double precision up to 2^12 s, so that two plans of equal length compare equal
# and zero slack is exactly zero.
TIME_GRID_S = 2.0**-40

ConfigurationFilter = Callable[[str, Configuration], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class CompositionNotes:
    """What had to be assumed or left out because it was not measured; to be shown to the user.

    Attributes:
        leads_replaced: (lead unit, partition counted in its place).
        trails_left_out: Trail units counted as nothing.
        clocks_left_out: (execution, clock in MHz, unit not measured at that clock).
    """

    leads_replaced: tuple[tuple[str, str], ...] = ()
    trails_left_out: tuple[str, ...] = ()
    clocks_left_out: tuple[tuple[Execution, int, str], ...] = ()

    def sentences(self) -> tuple[str, ...]:
        """Return one sentence per fact."""
        by_unit: dict[tuple[Execution, str], list[int]] = {}
        for execution, clock, unit in self.clocks_left_out:
            by_unit.setdefault((execution, unit), []).append(clock)
        return (
            *(
                f"{lead} was not measured: counted as one more execution of {partition}."
                for lead, partition in self.leads_replaced
            ),
            *(
                f"{trail} was not measured: left out, so times and energies are a little too low."
                for trail in self.trails_left_out
            ),
            *(
                f"{unit} was not measured at {', '.join(map(str, sorted(clocks)))} MHz: "
                f"no {execution.value} options there."
                for (execution, unit), clocks in by_unit.items()
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockFront:
    """An instruction's front at one clock and execution.

    Attributes:
        clock_mhz: The clock.
        execution: How the instruction is executed.
        front: Its points; picks are positions in `units`.
        units: Per partition of the recipe, its name and the configurations picked from.
    """

    clock_mhz: int
    execution: Execution
    front: Front
    units: tuple[tuple[str, tuple[Configuration, ...]], ...]

    def option(self, point: int) -> InstructionOption:
        """Return a point as an instruction option."""
        picks = self.front.picks[point]
        return InstructionOption(
            clock_mhz=self.clock_mhz,
            execution=self.execution,
            time_s=float(self.front.times_s[point]),
            effective_energy_j=float(self.front.energies_j[point]),
            configurations=tuple(
                (name, configurations[pick])
                for (name, configurations), pick in zip(self.units, picks, strict=False)
            ),
        )


def compose_instruction(
    recipe: InstructionRecipe,
    options: Mapping[str, Sequence[PartitionOption]],
    *,
    static_power_w: float,
    executions: Collection[Execution] = (Execution.NANOBATCH, Execution.SEQUENTIAL),
    configurations: ConfigurationFilter | None = None,
    clocks_mhz: Collection[int] | None = None,
) -> tuple[InstructionOption, ...]:
    """Return the non-dominated options of an instruction, fastest first.

    A lead that was not measured is counted as one more execution of its partition, a missing
    trail as nothing (`composition_notes` says so). A clock at which any other unit is missing has
    no options in that execution.

    Args:
        recipe: What the instruction consists of.
        options: Per unit, its measured configurations, with total energies per GPU.
        static_power_w: Power drawn while blocked, taken off to get effective energy.
        executions: Which of `NANOBATCH` and `SEQUENTIAL` are allowed.
        configurations: Which configurations of nanobatched partitions are allowed, by partition
            name; None allows all.
        clocks_mhz: Clocks allowed; None allows all.

    Returns:
        Options in ascending time and descending effective energy. Times are rounded up to a
        multiple of `TIME_GRID_S`.

    Raises:
        MeasurementError: There is no clock at which every unit was measured, or an option is not
            finite or takes no time.
    """
    fronts = clock_fronts(
        recipe,
        options,
        static_power_w=static_power_w,
        executions=executions,
        configurations=configurations,
        clocks_mhz=clocks_mhz,
    )
    if not fronts:
        raise MeasurementError(_nothing_to_compose(recipe, options, executions, clocks_mhz))
    return union_options(fronts)


def clock_fronts(
    recipe: InstructionRecipe,
    options: Mapping[str, Sequence[PartitionOption]],
    *,
    static_power_w: float,
    executions: Collection[Execution],
    configurations: ConfigurationFilter | None = None,
    clocks_mhz: Collection[int] | None = None,
) -> tuple[ClockFront, ...]:
    """Return the front of each execution at each clock that is complete, ascending clocks.

    Args and raises as `compose_instruction`, except that no complete clock gives an empty tuple.
    """
    fronts: list[ClockFront] = []
    for execution in (Execution.NANOBATCH, Execution.SEQUENTIAL):
        if execution not in executions:
            continue
        partitions, others = _units(recipe, options, execution)
        if not partitions:
            continue
        searched = {name for name, _ in partitions}
        tables = {
            name: _by_clock(
                name,
                options.get(name, ()),
                static_power_w,
                configurations if execution is Execution.NANOBATCH and name in searched else None,
            )
            for name in {name for name, _ in (*partitions, *others)}
        }
        for clock in sorted(set.intersection(*(set(table) for table in tables.values()))):
            if clocks_mhz is not None and clock not in clocks_mhz:
                continue
            fronts.append(
                ClockFront(
                    clock_mhz=clock,
                    execution=execution,
                    front=_sum(
                        [
                            single(count * tables[name][clock][0], count * tables[name][clock][1])
                            for name, count in (*partitions, *others)
                        ]
                    ),
                    units=tuple((name, tables[name][clock][2]) for name, _ in partitions),
                )
            )
    return tuple(fronts)


def union_options(fronts: Sequence[ClockFront]) -> tuple[InstructionOption, ...]:
    """Return the non-dominated options of several fronts, fastest first, thinned where long."""
    times = np.concatenate([front.front.times_s for front in fronts])
    energies = np.concatenate([front.front.energies_j for front in fronts])
    owners = np.repeat(np.arange(len(fronts)), [len(front.front.times_s) for front in fronts])
    points = np.concatenate([np.arange(len(front.front.times_s)) for front in fronts])
    kept = prune(times, energies)
    if len(kept) > MAX_POINTS:
        few = thin(energies[kept], tolerance=UNION_THINNING)
        kept = kept[np.union1d(few, hull(times[kept], energies[kept]))]
    return tuple(fronts[owners[k]].option(int(points[k])) for k in kept)


def composition_notes(
    recipes: Iterable[InstructionRecipe], options: Mapping[str, Sequence[PartitionOption]]
) -> CompositionNotes:
    """Return what `compose_instruction` has to assume or leave out, over several recipes."""
    leads: dict[tuple[str, str], None] = {}
    trails: dict[str, None] = {}
    clocks: dict[tuple[Execution, int, str], None] = {}
    for recipe in recipes:
        if recipe.lead is not None and not options.get(recipe.lead[0]):
            leads[recipe.lead] = None
        if recipe.trail is not None and not options.get(recipe.trail):
            trails[recipe.trail] = None
        for execution in (Execution.NANOBATCH, Execution.SEQUENTIAL):
            partitions, others = _units(recipe, options, execution)
            measured = {
                name: {option.configuration.clock_mhz for option in options.get(name, ())}
                for name, _ in (*partitions, *others)
            }
            for name, present in measured.items():
                for clock in sorted(set().union(*measured.values()) - present):
                    clocks[execution, clock, name] = None
    return CompositionNotes(
        leads_replaced=tuple(leads),
        trails_left_out=tuple(trails),
        clocks_left_out=tuple(clocks),
    )


def _units(
    recipe: InstructionRecipe,
    options: Mapping[str, Sequence[PartitionOption]],
    execution: Execution,
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The partitions whose configurations are remembered, and the other units, with counts."""
    if execution is Execution.SEQUENTIAL:
        return list(recipe.sequential), list(recipe.outside)
    partitions = dict(recipe.nanobatch)
    others = list(recipe.outside)
    if recipe.lead is not None:
        lead, stands_for = recipe.lead
        if options.get(lead):
            others.append((lead, 1))
        else:
            partitions[stands_for] = partitions.get(stands_for, 0) + 1
    if recipe.trail is not None and options.get(recipe.trail):
        others.append((recipe.trail, 1))
    return [unit for unit in partitions.items() if unit[1] > 0], others


_Table = tuple[NDArray[np.float64], NDArray[np.float64], tuple[Configuration, ...]]


def _by_clock(
    name: str,
    options: Sequence[PartitionOption],
    static_power_w: float,
    configurations: ConfigurationFilter | None,
) -> dict[int, _Table]:
    """Times, effective energies and configurations of a unit's allowed options, per clock."""
    groups: dict[int, list[PartitionOption]] = {}
    for option in options:
        if not (
            math.isfinite(option.time_s) and math.isfinite(option.energy_j) and option.time_s > 0
        ):
            raise MeasurementError(
                f"{name} at {option.configuration.clock_mhz} MHz: time {option.time_s} s, energy "
                f"{option.energy_j} J cannot be composed; measure it again or leave it out"
            )
        if configurations is None or configurations(name, option.configuration):
            groups.setdefault(option.configuration.clock_mhz, []).append(option)
    return {
        clock: (
            np.array([option.time_s for option in group]),
            np.array([option.effective_energy_j(static_power_w) for option in group]),
            tuple(option.configuration for option in group),
        )
        for clock, group in groups.items()
    }


def _sum(units: Sequence[Front]) -> Front:
    """The pruned sum of the units' fronts, its times on the grid."""
    total = units[0]
    for unit in units[1:]:
        total = add(total, unit)
    times = np.ceil(total.times_s / TIME_GRID_S) * TIME_GRID_S
    kept = prune(times, total.energies_j)
    return Front(times_s=times[kept], energies_j=total.energies_j[kept], picks=total.picks[kept])


def _nothing_to_compose(
    recipe: InstructionRecipe,
    options: Mapping[str, Sequence[PartitionOption]],
    executions: Collection[Execution],
    clocks_mhz: Collection[int] | None,
) -> str:
    """Say which units are in the way."""
    names = [
        name
        for execution in (Execution.NANOBATCH, Execution.SEQUENTIAL)
        if execution in executions
        for units in _units(recipe, options, execution)
        for name, _ in units
    ]
    missing = sorted({name for name in names if not options.get(name)})
    where = "at any clock" if clocks_mhz is None else f"at {sorted(clocks_mhz)} MHz"
    what = (
        f"not measured at all: {', '.join(missing)}"
        if missing
        else f"no clock is common to {', '.join(sorted(set(names)))}"
    )
    return f"an instruction cannot be composed {where}: {what}; measure these units"
