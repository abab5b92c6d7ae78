"""The four methods that are compared, on the same measurements.

- Megatron-LM: sequential execution at the top clock, one plan.
- Megatron-LM + Perseus: sequential execution, one clock per instruction.
- Nanobatching + Perseus: each partition at its default configuration, one clock per instruction.
- Kareus: everything chosen; the options of the others are among its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.compose.front import prune
from kareus.compose.instruction import (
    CompositionNotes,
    ConfigurationFilter,
    compose_instruction,
    composition_notes,
)
from kareus.compose.iteration import solve_iteration
from kareus.core.configuration import Configuration
from kareus.core.frontier import non_dominated
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Direction, Execution, Partition
from kareus.core.pipeline import InstructionRecipe, Pipeline, recipes_by_kind
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.core.workload import Recompute
from kareus.errors import MeasurementError

Kind = tuple[int, Direction]
KindOptions = dict[Kind, tuple[InstructionOption, ...]]


MIXED_EXECUTIONS = ((Execution.NANOBATCH, Execution.SEQUENTIAL),)
"""Nanobatched and sequential instructions may follow one another."""
SEPARATE_EXECUTIONS = ((Execution.NANOBATCH,), (Execution.SEQUENTIAL,))
"""Without recompute a backward needs the activations as its forward left them, split or whole."""


def kareus_executions(recompute: Recompute) -> tuple[tuple[Execution, ...], ...]:
    """Return the sets of executions among which one Kareus plan may choose."""
    return MIXED_EXECUTIONS if recompute is Recompute.FULL else SEPARATE_EXECUTIONS


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """The instruction options of every method.

    Attributes:
        options: Per method, the options of each kind. Methods whose units were not measured are
            absent.
        unavailable: Those methods, with the reason in words.
        notes: What had to be assumed or left out.
        kareus_executions: Among which Kareus chooses.
    """

    options: Mapping[Method, KindOptions]
    unavailable: Mapping[Method, str]
    notes: CompositionNotes
    kareus_executions: frozenset[Execution]


def build_frontiers(
    pipeline: Pipeline,
    recipes: Mapping[Kind, InstructionRecipe],
    partitions: Mapping[str, Partition],
    options: Mapping[str, Sequence[PartitionOption]],
    *,
    static_power_w: float,
    num_plans: int = 50,
) -> dict[Method, tuple[Plan, ...]]:
    """Return the frontier of every method whose units were measured.

    At no baseline plan's time does Kareus need more energy than that plan: its deadlines include
    those times, and the plan's own choices are improved upon.

    Args:
        pipeline: The precedence graph.
        recipes: What each kind of instruction consists of.
        partitions: The units by name, for their default configurations and clocks.
        options: Per unit, its configurations with time and total energy per GPU.
        static_power_w: Static power of one GPU.
        num_plans: Deadlines of each frontier, besides Kareus' extra ones.

    Raises:
        MeasurementError: Not even Kareus can be composed.
    """
    composed = compose_methods(recipes, partitions, options, static_power_w=static_power_w)
    return solve_methods(pipeline, composed, static_power_w=static_power_w, num_plans=num_plans)


def solve_methods(
    pipeline: Pipeline,
    composed: MethodOptions,
    *,
    static_power_w: float,
    num_plans: int = 50,
) -> dict[Method, tuple[Plan, ...]]:
    """Return the frontier of every composed method, Kareus last, never worse than a baseline."""
    frontiers: dict[Method, tuple[Plan, ...]] = {}
    for method in (Method.MEGATRON, Method.PERSEUS, Method.NANOBATCHING_PERSEUS, Method.KAREUS):
        if method not in composed.options:
            continue
        frontiers[method] = solve_iteration(
            pipeline,
            composed.options[method],
            static_power_w=static_power_w,
            method=method,
            num_plans=num_plans,
            candidates=[
                plan
                for plans in frontiers.values()
                for plan in plans
                if _executions(plan) <= composed.kareus_executions
            ]
            if method is Method.KAREUS
            else (),
        )
    return frontiers


def join_frontiers(
    frontiers: Sequence[Mapping[Method, tuple[Plan, ...]]],
) -> dict[Method, tuple[Plan, ...]]:
    """Return one frontier per method out of several: the non-dominated plans, numbered anew.

    Each plan keeps the bound of the frontier it comes from.
    """
    joint: dict[Method, tuple[Plan, ...]] = {}
    for method in dict.fromkeys(method for each in frontiers for method in each):
        plans = [plan for each in frontiers for plan in each.get(method, ())]
        kept = non_dominated([(plan.iteration_time_s, plan.pipeline_energy_j) for plan in plans])
        joint[method] = tuple(replace(plans[k], number=number) for number, k in enumerate(kept))
    return joint


def compose_methods(
    recipes: Mapping[Kind, InstructionRecipe],
    partitions: Mapping[str, Partition],
    options: Mapping[str, Sequence[PartitionOption]],
    *,
    static_power_w: float,
    stage_clocks_mhz: Mapping[int, Collection[int]] | None = None,
    executions: tuple[Execution, ...] = MIXED_EXECUTIONS[0],
) -> MethodOptions:
    """Return the instruction options of every method, and what could not be composed.

    Args:
        recipes: What each kind of instruction consists of.
        partitions: The units by name.
        options: Per unit, its configurations with time and total energy per GPU.
        static_power_w: Static power of one GPU.
        stage_clocks_mhz: Clocks allowed on a virtual stage; stages not named are free.
        executions: Among which Kareus may choose (`kareus_executions`).

    Raises:
        MeasurementError: Not even Kareus can be composed; the message names the units.
    """
    top_clock = max(
        (
            clock
            for recipe in recipes.values()
            for name, _ in recipe.sequential
            for clock in partitions[name].clocks_mhz
        ),
        default=0,
    )

    def is_default(name: str, configuration: Configuration) -> bool:
        partition = partitions[name]
        return not partition.searched or (
            configuration.launch_point is partition.launch_points[0]
            and configuration.sm_allocation == partition.default_sm_allocation
        )

    rules: dict[
        Method, tuple[tuple[Execution, ...], ConfigurationFilter | None, Collection[int] | None]
    ] = {
        Method.MEGATRON: ((Execution.SEQUENTIAL,), None, (top_clock,)),
        Method.PERSEUS: ((Execution.SEQUENTIAL,), None, None),
        Method.NANOBATCHING_PERSEUS: ((Execution.NANOBATCH,), is_default, None),
        Method.KAREUS: (executions, None, None),
    }
    composed: dict[Method, KindOptions] = {}
    unavailable: dict[Method, str] = {}
    for method, (allowed_executions, configurations, clocks) in rules.items():
        own: KindOptions = {}
        try:
            for recipe, kinds in recipes_by_kind(recipes).items():
                by_clocks: dict[frozenset[int] | None, tuple[InstructionOption, ...]] = {}
                for kind in kinds:
                    allowed = _both(clocks, (stage_clocks_mhz or {}).get(kind[0]))
                    if allowed not in by_clocks:
                        by_clocks[allowed] = compose_instruction(
                            recipe,
                            options,
                            static_power_w=static_power_w,
                            executions=allowed_executions,
                            configurations=configurations,
                            clocks_mhz=allowed,
                        )
                    own[kind] = by_clocks[allowed]
        except MeasurementError as error:
            if method is Method.KAREUS:
                raise
            unavailable[method] = str(error)
            continue
        if method is Method.KAREUS:
            # Fronts are thinned where they grow long; the baselines' options stay as they are.
            own = {
                kind: merge_options(
                    own[kind],
                    *(
                        [option for option in others[kind] if option.execution in executions]
                        for others in composed.values()
                    ),
                )
                for kind in own
            }
        composed[method] = own
    return MethodOptions(
        options=composed,
        kareus_executions=frozenset(executions),
        unavailable=unavailable,
        notes=composition_notes(recipes.values(), options),
    )


def _executions(plan: Plan) -> frozenset[Execution]:
    """How the plan's instructions are executed."""
    return frozenset(option.execution for stage in plan.choices for option in stage)


def _both(first: Collection[int] | None, second: Collection[int] | None) -> frozenset[int] | None:
    """The clocks that both allow; None allows all."""
    if first is None:
        return None if second is None else frozenset(second)
    return frozenset(first) if second is None else frozenset(first) & frozenset(second)


def merge_options(*sets: Sequence[InstructionOption]) -> tuple[InstructionOption, ...]:
    """The non-dominated options of several sets, fastest first; of equal ones the first."""
    every = [option for options in sets for option in options]
    kept = prune(
        np.array([option.time_s for option in every]),
        np.array([option.effective_energy_j for option in every]),
    )
    return tuple(every[k] for k in kept)
