"""Synthetic iterations for the solver: 1F1B, 18 clocks x 6 SM allocations per instruction kind.

Each kind has about 55 to 60 Pareto options and a dozen hull vertices, with the shape that measured
partitions have: time falls and energy rises with the clock, more SMs for the collective hide it
better and cost energy, and every figure carries 0.3 % of noise.
"""

import numpy as np

from kareus.compose.instruction import TIME_GRID_S
from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.frontier import non_dominated
from kareus.core.partition import Direction, Execution
from kareus.core.plan import InstructionOption

STATIC_POWER_W = 85.0
_CLOCKS = range(900, 1411, 30)
_SM_ALLOCATIONS = (3, 6, 9, 12, 15, 18)
_NOISE = 0.003
_FORWARD_S = 0.08
_DYNAMIC_W = 300.0


def synthetic_options(
    num_stages: int, seed: int
) -> dict[tuple[int, Direction], tuple[InstructionOption, ...]]:
    """Return the Pareto options of every kind; stages differ by about 10 %.

    A backward with full recompute takes three times a forward.
    """
    rng = np.random.default_rng(seed)
    options = {}
    for stage in range(num_stages):
        scale = 1.0 + 0.1 * rng.standard_normal()
        for direction, share in ((Direction.FORWARD, 1.0), (Direction.BACKWARD, 3.0)):
            points = []
            configurations = []
            for clock in _CLOCKS:
                relative = clock / max(_CLOCKS)
                for sms in _SM_ALLOCATIONS:
                    starved = 1.0 - sms / max(_SM_ALLOCATIONS)
                    time_s = 0.8 / relative + 0.2
                    time_s *= 1.0 + 0.08 * starved**1.5
                    time_s *= _FORWARD_S * share * scale * (1.0 + _NOISE * rng.standard_normal())
                    energy_j = 0.25 + 0.75 * relative**2.4
                    energy_j *= 1.0 - 0.1 * starved**1.2
                    energy_j *= _FORWARD_S * _DYNAMIC_W * share * scale
                    energy_j *= 1.0 + _NOISE * rng.standard_normal()
                    points.append((np.ceil(time_s / TIME_GRID_S) * TIME_GRID_S, energy_j))
                    configurations.append(
                        Configuration(
                            clock_mhz=clock, sm_allocation=sms, launch_point=LaunchPoint.NORM_0
                        )
                    )
            options[stage, direction] = tuple(
                InstructionOption(
                    clock_mhz=configurations[k].clock_mhz,
                    execution=Execution.NANOBATCH,
                    time_s=float(points[k][0]),
                    effective_energy_j=float(points[k][1]),
                    configurations=(("partition", configurations[k]),),
                )
                for k in non_dominated(points)
            )
    return options
