"""The iteration frontier: for every deadline one option per instruction, least energy.

Synchronous pipeline, one option per instruction, effective energies add up, and every stage draws
static power for as long as the iteration lasts:
pipeline energy = sum of effective energies + stages x static power x iteration time.
This is the discrete time-cost trade-off problem. Its linear relaxation is solved exactly for all
deadlines at once (`parametric`), its windows are moved to where options fit (`annealing`) and
rounded to real options (`rounding`); tiny iterations are enumerated (`exact`). What is reported are
those options' own makespan and energy, beside the relaxation's lower bound.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kareus.compose.annealing import anneal
from kareus.compose.exact import at_deadlines, enumerate_frontier
from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.parametric import Relaxation, relax
from kareus.compose.problem import Ints, Problem, build_problem, to_grid
from kareus.compose.rounding import Net, improve, make_net, makespan, slowest_within
from kareus.core.frontier import non_dominated
from kareus.core.partition import Direction
from kareus.core.pipeline import Pipeline
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.errors import ConfigError

Options = Mapping[tuple[int, Direction], Sequence[InstructionOption]]


def solve_iteration(
    pipeline: Pipeline,
    options: Options,
    *,
    static_power_w: float,
    method: Method,
    num_plans: int = 50,
    extra_deadlines_s: Sequence[float] = (),
    candidates: Sequence[Plan] = (),
) -> tuple[Plan, ...]:
    """Return the frontier of real plans, fastest first.

    Deadlines are spread evenly from the fastest iteration to the one beyond which pipeline energy
    rises again (the price of the deadline equals the static power of all stages), and the extra
    ones are added. Plans that another plan dominates are dropped, so fewer may come back.

    Args:
        pipeline: The precedence graph.
        options: Per kind (virtual stage, direction) the options of its instructions.
        static_power_w: Static power of one GPU.
        method: The method the plans are labelled with.
        num_plans: Deadlines spread over the frontier, at least 1.
        extra_deadlines_s: Further deadlines in seconds; one faster than the fastest iteration is
            taken as the fastest, one beyond the most frugal as the most frugal.
        candidates: Plans of other methods on the same pipeline, made of options that `options`
            has or dominates: no plan here is worse than one of them at its iteration time.

    Returns:
        Plans numbered in ascending iteration time and descending pipeline energy, each with its
        lower bound.

    Raises:
        ConfigError: A kind has no options, or a number is out of range.
    """
    if num_plans < 1:
        raise ConfigError(f"num_plans = {num_plans}: at least 1 plan is needed")
    if not (math.isfinite(static_power_w) and static_power_w >= 0):
        raise ConfigError(f"static power {static_power_w} W: must be finite and not negative")
    problem = build_problem(pipeline, options)
    held_power_w = pipeline.num_stages * static_power_w
    if not problem.has_choice:
        only = problem.option_ptr[problem.kind].copy()
        return (plan_of(problem, only, held_power_w, method, None),)
    extra = [math.floor(deadline / TIME_GRID_S) for deadline in extra_deadlines_s]
    extra += [math.floor(plan.iteration_time_s / TIME_GRID_S) for plan in candidates]
    relaxation = relax(
        problem,
        held_power_w=held_power_w,
        num_deadlines=num_plans,
        extra_deadlines=np.array(extra, dtype=np.int64),
    )
    net = make_net(problem)
    exact = enumerate_frontier(problem, held_power_w)
    plans = [
        plan_of(problem, chosen, held_power_w, method, relaxation)
        for chosen in (
            *(round_at(problem, net, relaxation, k) for k in range(len(relaxation.deadlines))),
            *(_from_candidate(problem, net, relaxation, plan) for plan in candidates),
            *(() if exact is None else at_deadlines(problem, exact, relaxation.deadlines)),
        )
    ]
    kept = non_dominated([(plan.iteration_time_s, plan.pipeline_energy_j) for plan in plans])
    return tuple(replace(plans[k], number=number) for number, k in enumerate(kept))


def round_at(problem: Problem, net: Net, relaxation: Relaxation, k: int) -> Ints:
    """Round at one deadline: the better of plain and annealed windows, improved."""
    deadline = int(relaxation.deadlines[k])
    prices = relaxation.node_prices_w[k]
    plain = slowest_within(problem, relaxation.ends[k] - relaxation.starts[k])
    energies = problem.option_energy_j
    least = relaxation.effective_energy_j(deadline * TIME_GRID_S)
    loss_j = (float(energies[plain].sum()) - least) / problem.num_nodes
    annealed = anneal(net, relaxation.starts[k], deadline, loss_j=loss_j, seed=k)
    plain = improve(net, plain, deadline, prices, max_exchanges=0)
    annealed = improve(net, annealed, deadline, prices)
    return min((annealed, plain), key=lambda chosen: float(energies[chosen].sum()))


def _from_candidate(problem: Problem, net: Net, relaxation: Relaxation, plan: Plan) -> Ints:
    """Take each instruction not slower than in another plan, and improve on it."""
    durations = np.array(
        [to_grid(option.time_s) for stage in plan.choices for option in stage], dtype=np.int64
    )[problem.position]
    chosen = slowest_within(problem, durations)
    deadline = makespan(problem, chosen)
    nearest = int(np.argmin(np.abs(relaxation.deadlines - deadline)))
    return improve(net, chosen, deadline, relaxation.node_prices_w[nearest])


def plan_of(
    problem: Problem,
    chosen: Ints,
    held_power_w: float,
    method: Method,
    relaxation: Relaxation | None,
) -> Plan:
    """The real time and energy of chosen options, with their bound."""
    choices = problem.choices(chosen)
    return evaluate_plan(
        problem.pipeline,
        choices,
        held_power_w=held_power_w,
        method=method,
        relaxation=relaxation,
    )


def evaluate_plan(
    pipeline: Pipeline,
    choices: tuple[tuple[InstructionOption, ...], ...],
    *,
    held_power_w: float,
    method: Method,
    relaxation: Relaxation | None = None,
    number: int = 0,
) -> Plan:
    """Return the plan made of these choices: its real makespan and energy, recomputed.

    Args:
        pipeline: The precedence graph.
        choices: Per stage, the option of each instruction in execution order.
        held_power_w: Static power of all stages together.
        method: The method it is labelled with.
        relaxation: Where its lower bound comes from; None where there is nothing to choose.
        number: Its number.
    """
    flat = [option for stage in choices for option in stage]
    time_s = pipeline.makespan_s([option.time_s for option in flat])
    effective_energy_j = math.fsum(option.effective_energy_j for option in flat)
    return Plan(
        number=number,
        method=method,
        iteration_time_s=time_s,
        effective_energy_j=effective_energy_j,
        pipeline_energy_j=effective_energy_j + held_power_w * time_s,
        bound_j=None if relaxation is None else relaxation.bound_j(time_s, held_power_w),
        choices=choices,
    )
