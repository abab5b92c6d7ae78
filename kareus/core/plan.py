"""Plans: points of the iteration frontier, and the options they are made of."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from kareus.core.configuration import Configuration
from kareus.core.partition import Execution


class Method(StrEnum):
    """The ways of planning an iteration that are compared."""

    KAREUS = "kareus"
    NANOBATCHING_PERSEUS = "nanobatching-perseus"
    PERSEUS = "perseus"
    MEGATRON = "megatron"


@dataclass(frozen=True, kw_only=True, slots=True)
class InstructionOption:
    """One way to execute an instruction, at one clock.

    Attributes:
        clock_mhz: SM clock of all its partitions.
        execution: `NANOBATCH`, or `SEQUENTIAL` for an unsplit microbatch.
        time_s: Seconds.
        effective_energy_j: Dynamic energy per GPU in joules.
        configurations: (partition name, configuration) in the order of the recipe; for sequential
            options the parts of the sequential recipe.
    """

    clock_mhz: int
    execution: Execution
    time_s: float
    effective_energy_j: float
    configurations: tuple[tuple[str, Configuration], ...]


class PlanPoint(Protocol):
    """What choosing and comparing need of a plan: its figures. A plan without choices will do."""

    @property
    def number(self) -> int:
        """Index within its method's frontier."""

    @property
    def method(self) -> Method:
        """The method that made it."""

    @property
    def iteration_time_s(self) -> float:
        """Seconds per iteration."""

    @property
    def effective_energy_j(self) -> float:
        """Dynamic energy, one GPU per stage, summed over stages."""

    @property
    def pipeline_energy_j(self) -> float:
        """With the static energy."""

    @property
    def bound_j(self) -> float | None:
        """Lower bound on the pipeline energy; None without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One choice of configuration for every partition of every instruction of an iteration.

    Attributes:
        number: Index within its method's frontier, fastest first; names files and URLs.
        method: The method that made it.
        iteration_time_s: Real makespan of the chosen options.
        effective_energy_j: Their dynamic energy, one GPU per stage, summed over stages.
        pipeline_energy_j: effective energy + stages x static power x iteration time.
        bound_j: Lower bound (LP) on the pipeline energy of any plan of this method's options not
            slower than `iteration_time_s`; None where there is nothing to choose.
        choices: Per stage, the option of each instruction in execution order.
    """

    number: int
    method: Method
    iteration_time_s: float
    effective_energy_j: float
    pipeline_energy_j: float
    bound_j: float | None
    choices: tuple[tuple[InstructionOption, ...], ...]

    @property
    def gap(self) -> float | None:
        """Relative distance of the pipeline energy above its lower bound; None without a bound."""
        if self.bound_j is None:
            return None
        return self.pipeline_energy_j / self.bound_j - 1.0

    @property
    def average_power_w(self) -> float:
        """Pipeline energy per iteration time: watts of one GPU per stage, summed over stages."""
        return self.pipeline_energy_j / self.iteration_time_s
