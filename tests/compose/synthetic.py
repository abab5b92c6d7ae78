"""Small random options for solver tests."""

from collections.abc import Iterable

import numpy as np

from kareus.compose.instruction import TIME_GRID_S
from kareus.core.configuration import Configuration
from kareus.core.frontier import non_dominated
from kareus.core.partition import Direction, Execution
from kareus.core.plan import InstructionOption


def option(time_s: float, energy_j: float, clock_mhz: int = 1000) -> InstructionOption:
    """Return an option of these figures, its time on the grid."""
    return InstructionOption(
        clock_mhz=clock_mhz,
        execution=Execution.NANOBATCH,
        time_s=float(np.ceil(time_s / TIME_GRID_S) * TIME_GRID_S),
        effective_energy_j=energy_j,
        configurations=(("p", Configuration(clock_mhz=clock_mhz)),),
    )


def random_options(
    kinds: Iterable[tuple[int, Direction]], num_options: int, seed: int
) -> dict[tuple[int, Direction], tuple[InstructionOption, ...]]:
    """Return non-dominated options of every kind: falling, not quite convex curves."""
    rng = np.random.default_rng(seed)
    options = {}
    for kind in sorted(set(kinds)):
        times = np.sort(rng.uniform(1.0, 2.0, num_options)) * rng.uniform(0.5, 1.5)
        energies = 300.0 / times**2 * rng.uniform(0.9, 1.1, num_options)
        kept = non_dominated(np.column_stack((times, energies)))
        options[kind] = tuple(
            option(float(times[k]), float(energies[k]), clock_mhz=1400 - 100 * rank)
            for rank, k in enumerate(kept)
        )
    return options
