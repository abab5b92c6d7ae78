"""Plans in which every stage keeps to a few distinct clocks.

At most K distinct clocks per stage is no linear constraint. For given prices of the instructions
(the dual of the relaxation) the best K clocks of each stage are found by enumeration, which also
bounds from below what any choice of clocks can reach; the relaxation is then solved again with
those clocks alone, and its prices may suggest others.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kareus.compose.baselines import Kind, merge_options
from kareus.compose.iteration import plan_of, round_at
from kareus.compose.parametric import relax
from kareus.compose.problem import Floats, Ints, Problem, build_problem
from kareus.compose.rounding import make_net
from kareus.core.frontier import non_dominated
from kareus.core.pipeline import Pipeline
from kareus.core.plan import InstructionOption, Method, Plan

# Sets of clocks are enumerated up to this number, and grown greedily beyond.
_MAX_SETS = 20_000


def merge_clocks(
    options: Mapping[Kind, Mapping[int, Sequence[InstructionOption]]],
    clocks: Mapping[int, Collection[int]] | None = None,
    num_stages: int = 1,
) -> dict[Kind, tuple[InstructionOption, ...]]:
    """The non-dominated options of every kind over its clocks, or over those of its stage."""
    return {
        kind: merge_options(
            *(
                by_clock[clock]
                for clock in by_clock
                if clocks is None or clock in clocks[kind[0] % num_stages]
            )
        )
        for kind, by_clock in options.items()
    }


def numbered(plans: Sequence[Plan], points: Sequence[tuple[float, float]]) -> tuple[Plan, ...]:
    """The non-dominated plans, fastest first, numbered."""
    return tuple(replace(plans[k], number=number) for number, k in enumerate(non_dominated(points)))


def plans_with_few_clocks(
    pipeline: Pipeline,
    allowed: Mapping[Kind, Mapping[int, Sequence[InstructionOption]]],
    most: int,
    held_power_w: float,
    method: Method,
    deadlines: Ints,
    num_plans: int,
    *,
    beyond_frugal: bool = False,
) -> tuple[Plan, ...]:
    """Plans in which no stage uses more than `most` distinct clocks.

    With `beyond_frugal` also slower ones than the most frugal, where only power falls further: then
    they are non-dominated in time and average power instead of time and energy. Bounds are those of
    the relaxation without this constraint, so gaps include its price.
    """
    problem = build_problem(pipeline, merge_clocks(allowed))
    relaxation = relax(
        problem,
        held_power_w=held_power_w,
        num_deadlines=num_plans,
        extra_deadlines=deadlines,
        beyond_frugal=beyond_frugal,
    )
    plans: list[Plan] = []
    for k in range(len(relaxation.deadlines)):
        prices = relaxation.node_prices_w[k]
        best: Plan | None = None
        # At the fastest deadline time is worth any energy.
        tries = 3 if k == len(relaxation.deadlines) - 1 else 2
        if tries == 3:
            prices = prices * 1e6
        for _ in range(tries):
            clocks = _best_clocks(pipeline, problem, allowed, prices, most)
            restricted = build_problem(pipeline, merge_clocks(allowed, clocks, pipeline.num_stages))
            own = relax(
                restricted,
                held_power_w=held_power_w,
                num_deadlines=1,
                extra_deadlines=relaxation.deadlines[k : k + 1],
                beyond_frugal=True,
            )
            # Deadlines are descending: the wanted one, then the fastest these clocks allow.
            chosen = round_at(restricted, make_net(restricted), own, 0)
            plan = plan_of(restricted, chosen, held_power_w, method, relaxation)
            if best is None or _better(plan, best):
                best = plan
            prices = own.node_prices_w[0]
        assert best is not None
        plans.append(best)
    return numbered(
        plans,
        [
            (p.iteration_time_s, p.average_power_w if beyond_frugal else p.pipeline_energy_j)
            for p in plans
        ],
    )


def _better(plan: Plan, other: Plan) -> bool:
    """Whether a plan for the same deadline is to be preferred."""
    return plan.pipeline_energy_j < other.pipeline_energy_j and (
        plan.iteration_time_s <= other.iteration_time_s * (1 + 1e-9)
    )


def _best_clocks(
    pipeline: Pipeline,
    problem: Problem,
    allowed: Mapping[Kind, Mapping[int, Sequence[InstructionOption]]],
    prices_w: Floats,
    most: int,
) -> dict[int, tuple[int, ...]]:
    """Per stage, the clocks whose best options cost least at the given prices of time."""
    chosen: dict[int, tuple[int, ...]] = {}
    for stage in range(pipeline.num_stages):
        nodes = [
            (node, pipeline.kinds[int(position)])
            for node, position in enumerate(problem.position)
            if pipeline.instructions[int(position)].stage == stage
        ]
        clocks = sorted(set().union(*(allowed[kind] for _, kind in nodes)))
        # cost[node, clock]: energy + price x time of the best option there.
        cost = np.full((len(nodes), len(clocks)), np.inf)
        tables = {
            (kind, clock): np.array(
                [(option.time_s, option.effective_energy_j) for option in allowed[kind][clock]]
            )
            for kind in {kind for _, kind in nodes}
            for clock in allowed[kind]
        }
        for row, (node, kind) in enumerate(nodes):
            for column, clock in enumerate(clocks):
                if clock in allowed[kind]:
                    table = tables[kind, clock]
                    cost[row, column] = (table[:, 1] + prices_w[node] * table[:, 0]).min()
        chosen[stage] = tuple(clocks[c] for c in _cheapest_columns(cost, most))
    return chosen


def _cheapest_columns(cost: Floats, most: int) -> tuple[int, ...]:
    """The columns, at most so many, that minimise the sum of each row's least entry."""
    num_columns = cost.shape[1]
    most = min(most, num_columns)
    if math.comb(num_columns, most) <= _MAX_SETS:
        return min(
            itertools.combinations(range(num_columns), most),
            key=lambda columns: float(cost[:, columns].min(axis=1).sum()),
        )
    columns: tuple[int, ...] = ()
    while len(columns) < most:
        columns = min(
            ((*columns, c) for c in range(num_columns) if c not in columns),
            key=lambda grown: float(cost[:, grown].min(axis=1).sum()),
        )
    return columns
