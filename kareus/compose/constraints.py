"""Plans under the limits users have: clocks, stragglers, deadlines, budgets, power.

Structural constraints change what an instruction may choose: the clocks a stage allows, a stage
that runs slower than measured, a number of distinct clocks per stage. Limits pick from what is
left: a deadline, an energy budget, a cap on the job's average power. Whether limits can be met is
decided on the linear relaxation, exactly; the plans are real ones, rounded next to where the
relaxation meets the limit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kareus.compose.baselines import MIXED_EXECUTIONS, Kind, compose_methods
from kareus.compose.few_clocks import merge_clocks, numbered, plans_with_few_clocks
from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.iteration import plan_of, round_at, solve_iteration
from kareus.compose.limits import Constraints, check_constraints
from kareus.compose.parametric import Relaxation, relax
from kareus.compose.problem import Ints, Problem, build_problem
from kareus.compose.rounding import make_net
from kareus.compose.selection import Preference, plans_within, select_plan
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Execution, Partition
from kareus.core.pipeline import InstructionRecipe, Pipeline, recipes_by_kind
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.errors import ConfigError, InfeasibleError, MeasurementError

# Real plans are looked for at deadlines from the relaxation's exact time on, this much later.
_REFINEMENT = (0.0, *(float(x) for x in np.geomspace(1e-5, 3e-2, 24)))

ClockedOptions = Mapping[Kind, Mapping[int, Sequence[InstructionOption]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstrainedPlans:
    """What is possible within constraints.

    Attributes:
        plans: The frontier under the structural constraints and limits, fastest first.
        recommended: The plan to take: the most frugal within a deadline, the fastest within a
            budget or cap, the knee where there is no limit.
    """

    plans: tuple[Plan, ...]
    recommended: Plan


def compose_by_clock(
    recipes: Mapping[Kind, InstructionRecipe],
    partitions: Mapping[str, Partition],
    options: Mapping[str, Sequence[PartitionOption]],
    *,
    static_power_w: float,
    method: Method = Method.KAREUS,
    executions: tuple[Execution, ...] = MIXED_EXECUTIONS[0],
) -> dict[Kind, dict[int, tuple[InstructionOption, ...]]]:
    """Return a method's options of every kind, clock by clock, pruned within a clock only.

    Args:
        recipes: What each kind of instruction consists of.
        partitions: The units by name.
        options: Per unit, its configurations with time and total energy per GPU.
        static_power_w: Static power of one GPU.
        method: The method.
        executions: Among which Kareus may choose (`kareus_executions`).

    Raises:
        MeasurementError: The method cannot be composed at any clock.
    """
    clocks = sorted({o.configuration.clock_mhz for group in options.values() for o in group})
    clocked: dict[Kind, dict[int, tuple[InstructionOption, ...]]] = {}
    for recipe, kinds in recipes_by_kind(recipes).items():
        own: dict[int, tuple[InstructionOption, ...]] = {}
        reason = "nothing was measured"
        for clock in clocks:
            try:
                composed = compose_methods(
                    {kinds[0]: recipe},
                    partitions,
                    options,
                    static_power_w=static_power_w,
                    stage_clocks_mhz={kinds[0][0]: (clock,)},
                    executions=executions,
                )
            except MeasurementError as error:
                reason = str(error)
                continue
            if method in composed.options:
                own[clock] = composed.options[method][kinds[0]]
            else:
                reason = composed.unavailable[method]
        if not own:
            raise MeasurementError(f"{method.value} cannot be composed at any clock: {reason}")
        clocked.update(dict.fromkeys(kinds, own))
    return clocked


def solve_constrained(
    pipeline: Pipeline,
    options: ClockedOptions,
    constraints: Constraints,
    *,
    static_power_w: float,
    gpus_per_stage: int = 1,
    method: Method = Method.KAREUS,
    num_plans: int = 50,
) -> ConstrainedPlans:
    """Return the frontier within constraints and the plan to take.

    Args:
        pipeline: The precedence graph.
        options: Per kind and clock, the options (`compose_by_clock`).
        constraints: What plans have to keep to.
        static_power_w: Static power of one GPU.
        gpus_per_stage: GPUs that execute one stage; job energy is pipeline energy times this.
        method: The method the plans are labelled with.
        num_plans: Deadlines spread over the frontier.

    Raises:
        ConfigError: A constraint names a stage that does not exist, or is no sensible number.
        InfeasibleError: No plan keeps to all of them; the message names those that clash.
    """
    if gpus_per_stage < 1:
        raise ConfigError(f"gpus_per_stage = {gpus_per_stage}: at least 1")
    check_constraints(constraints, pipeline.num_stages)
    allowed = _allowed(pipeline, options, constraints)
    held_power_w = pipeline.num_stages * static_power_w
    budget_j = _per_pipeline(constraints.energy_budget_j, gpus_per_stage)
    cap_w = _per_pipeline(constraints.power_cap_w, gpus_per_stage)
    merged = merge_clocks(allowed)
    problem = build_problem(pipeline, merged)
    relaxation = _relax(problem, held_power_w, [], 1)
    wanted = _deadlines(
        pipeline, options, constraints, relaxation, held_power_w, budget_j, cap_w, gpus_per_stage
    )
    # Beyond the most frugal time only power falls further; plans there are for a cap only.
    slow = cap_w is not None and bool(wanted) and max(wanted) > relaxation.frugal_s
    if constraints.max_clocks_per_stage is not None:
        plans = plans_with_few_clocks(
            pipeline,
            allowed,
            constraints.max_clocks_per_stage,
            held_power_w,
            method,
            _on_grid(wanted),
            num_plans,
            beyond_frugal=slow,
        )
    elif slow:
        plans = _slow_plans(problem, held_power_w, method, wanted, num_plans)
    else:
        plans = solve_iteration(
            pipeline,
            merged,
            static_power_w=static_power_w,
            method=method,
            num_plans=num_plans,
            extra_deadlines_s=wanted,
        )
    try:
        recommended = select_plan(
            plans,
            deadline_s=constraints.deadline_s,
            energy_budget_j=budget_j,
            power_cap_w=cap_w,
            preference=None if constraints.limited else Preference.KNEE,
        )
    except InfeasibleError as error:
        raise InfeasibleError(_why_none(plans, constraints, gpus_per_stage)) from error
    return ConstrainedPlans(
        plans=plans_within(
            plans, deadline_s=constraints.deadline_s, energy_budget_j=budget_j, power_cap_w=cap_w
        ),
        recommended=recommended,
    )


def _per_pipeline(of_job: float | None, gpus_per_stage: int) -> float | None:
    """A figure of the job as one of one GPU per stage."""
    return None if of_job is None else of_job / gpus_per_stage


def _allowed(
    pipeline: Pipeline, options: ClockedOptions, constraints: Constraints
) -> dict[Kind, dict[int, tuple[InstructionOption, ...]]]:
    """Per kind and clock, the options that the structural constraints leave."""
    result: dict[Kind, dict[int, tuple[InstructionOption, ...]]] = {}
    for kind in sorted(set(pipeline.kinds)):
        stage = kind[0] % pipeline.num_stages
        clocks = set(options.get(kind, {}))
        measured = f"{min(clocks)} to {max(clocks)} MHz" if clocks else "nothing"
        floor = constraints.clock_floor_mhz.get(stage)
        ceiling = constraints.clock_ceiling_mhz.get(stage)
        listed = constraints.stage_clocks_mhz.get(stage)
        rules = []
        if listed is not None:
            rules.append(f"the clock list {sorted(listed)} MHz")
            clocks &= set(listed)
        if floor is not None:
            rules.append(f"the clock floor {floor} MHz")
            clocks = {clock for clock in clocks if clock >= floor}
        if ceiling is not None:
            rules.append(f"the clock ceiling {ceiling} MHz")
            clocks = {clock for clock in clocks if clock <= ceiling}
        if not clocks:
            raise InfeasibleError(
                f"stage {stage}: {' and '.join(rules) or 'its measurements'} leave no clock for "
                f"{kind[1].value} instructions (measured: {measured}); widen one of them"
            )
        slowdown = 1.0
        if constraints.straggler is not None and constraints.straggler.stage == stage:
            slowdown += constraints.straggler.slowdown_pct / 100.0
        result[kind] = {
            clock: tuple(_slowed(option, slowdown) for option in options[kind][clock])
            for clock in sorted(clocks)
        }
    return result


def _slowed(option: InstructionOption, factor: float) -> InstructionOption:
    """An option that takes longer by a factor, on the time grid."""
    if factor == 1.0:
        return option
    return replace(option, time_s=math.ceil(option.time_s * factor / TIME_GRID_S) * TIME_GRID_S)


def _relax(
    problem: Problem,
    held_power_w: float,
    deadlines_s: Sequence[float],
    num_deadlines: int,
    *,
    beyond_frugal: bool = False,
) -> Relaxation:
    """The relaxation with windows at deadlines in seconds."""
    return relax(
        problem,
        held_power_w=held_power_w,
        num_deadlines=num_deadlines,
        extra_deadlines=_on_grid(deadlines_s),
        beyond_frugal=beyond_frugal,
    )


def _on_grid(deadlines_s: Sequence[float]) -> Ints:
    """Deadlines in grid units, rounded down."""
    return np.array([math.floor(d / TIME_GRID_S) for d in deadlines_s], dtype=np.int64)


def _deadlines(
    pipeline: Pipeline,
    options: ClockedOptions,
    constraints: Constraints,
    relaxation: Relaxation,
    held_power_w: float,
    budget_j: float | None,
    cap_w: float | None,
    gpus_per_stage: int,
) -> list[float]:
    """Where plans are needed to meet the limits; raises where the relaxation cannot meet them."""
    fastest = float(relaxation.times_s[-1])
    deadline = constraints.deadline_s
    structural = _structural(constraints)
    if deadline is not None and deadline < fastest:
        free = _relax(build_problem(pipeline, merge_clocks(options)), held_power_w, [], 1)
        unbound = float(free.times_s[-1])
        if deadline < unbound or not structural:
            raise InfeasibleError(
                f"deadline {deadline:.6g} s is out of reach: the fastest iteration takes "
                f"{unbound:.6g} s; allow at least that"
            )
        clashing = [
            name for name, alone in structural if _fastest_s(pipeline, options, alone) > deadline
        ] or [name for name, _ in structural]
        raise InfeasibleError(
            f"deadline {deadline:.6g} s and {' and '.join(clashing)} clash: the fastest iteration "
            f"takes {fastest:.6g} s with them and {unbound:.6g} s without; relax one of them"
        )
    wanted = [] if deadline is None else [deadline]
    times = []
    for name, value, time in (
        (
            f"energy budget {constraints.energy_budget_j} J",
            budget_j,
            None if budget_j is None else relaxation.fastest_within_j(budget_j, held_power_w),
        ),
        (
            f"power cap {constraints.power_cap_w} W",
            cap_w,
            None if cap_w is None else relaxation.fastest_within_w(cap_w, held_power_w),
        ),
    ):
        if value is None:
            continue
        if name.startswith("energy"):
            least_j = relaxation.bound_j(math.inf, held_power_w) * gpus_per_stage
            best = f"the least energy of the job is {least_j:.6g} J"
        else:
            least_w = float(relaxation.energies_j[0] / relaxation.times_s[0]) + held_power_w
            best = f"the least average power of the job is {least_w * gpus_per_stage:.6g} W"
        if time is None:
            names = [name, *(rule for rule, _ in structural)]
            raise InfeasibleError(
                f"{' and '.join(names)} cannot be met: {best}"
                + ("; raise it" if not structural else "; relax one of them")
            )
        if deadline is not None and time > deadline:
            raise InfeasibleError(
                f"deadline {deadline:.6g} s and {name} clash: it is first met at {time:.6g} s; "
                "relax one of them"
            )
        times.append((name, time))
        wanted += [time * (1.0 + later) for later in _REFINEMENT]
    if budget_j is not None and cap_w is not None:
        # Within the budget is a range of times, since energy rises again beyond the frugal one.
        cap_time = times[1][1]
        energy = relaxation.effective_energy_j(cap_time) + held_power_w * cap_time
        if cap_time > relaxation.frugal_s and energy > budget_j:
            raise InfeasibleError(
                f"{times[0][0]} and {times[1][0]} clash: the cap is first met at {cap_time:.6g} s, "
                f"which needs {energy * gpus_per_stage:.6g} J; relax one of them"
            )
    return [time for time in wanted if deadline is None or time <= deadline]


def _why_none(plans: Sequence[Plan], constraints: Constraints, gpus_per_stage: int) -> str:
    """What the plans found come to, where none keeps to limits that the relaxation can meet."""
    names = [rule for rule, _ in _structural(constraints)]
    if constraints.max_clocks_per_stage is not None:
        names.append(f"at most {constraints.max_clocks_per_stage} clocks per stage")
    for name, limit, unit in (
        ("deadline", constraints.deadline_s, "s"),
        ("energy budget", constraints.energy_budget_j, "J"),
        ("power cap", constraints.power_cap_w, "W"),
    ):
        if limit is not None:
            names.append(f"{name} {limit:.6g} {unit}")
    fastest = min(plan.iteration_time_s for plan in plans)
    least = min(plan.pipeline_energy_j for plan in plans) * gpus_per_stage
    gentlest = min(plan.average_power_w for plan in plans) * gpus_per_stage
    return (
        f"no plan was found within {' and '.join(names)}: the fastest takes {fastest:.6g} s, the "
        f"most frugal {least:.6g} J, the gentlest {gentlest:.6g} W (all GPUs of the job); relax "
        "one of them"
    )


def _structural(constraints: Constraints) -> list[tuple[str, Constraints]]:
    """The structural constraints in words, each alone."""
    found: list[tuple[str, Constraints]] = []
    for stage, clocks in constraints.stage_clocks_mhz.items():
        found.append(
            (
                f"the clock list of stage {stage} ({', '.join(map(str, sorted(clocks)))} MHz)",
                Constraints(stage_clocks_mhz={stage: clocks}),
            )
        )
    for stage, clock in constraints.clock_ceiling_mhz.items():
        found.append(
            (
                f"the clock ceiling of stage {stage} ({clock} MHz)",
                Constraints(clock_ceiling_mhz={stage: clock}),
            )
        )
    for stage, clock in constraints.clock_floor_mhz.items():
        found.append(
            (
                f"the clock floor of stage {stage} ({clock} MHz)",
                Constraints(clock_floor_mhz={stage: clock}),
            )
        )
    if constraints.straggler is not None:
        found.append(
            (
                f"the straggler (stage {constraints.straggler.stage}, "
                f"{constraints.straggler.slowdown_pct:g} % slower)",
                Constraints(straggler=constraints.straggler),
            )
        )
    return found


def _fastest_s(pipeline: Pipeline, options: ClockedOptions, constraints: Constraints) -> float:
    """The fastest iteration under structural constraints."""
    allowed = merge_clocks(_allowed(pipeline, options, constraints))
    flat = [allowed[kind][0].time_s for kind in pipeline.kinds]
    return pipeline.makespan_s(flat)


def _slow_plans(
    problem: Problem,
    held_power_w: float,
    method: Method,
    wanted: Sequence[float],
    num_plans: int,
) -> tuple[Plan, ...]:
    """Plans up to where no clock can fall further, non-dominated in time and average power."""
    relaxation = _relax(problem, held_power_w, wanted, num_plans, beyond_frugal=True)
    net = make_net(problem)
    plans = [
        plan_of(problem, round_at(problem, net, relaxation, k), held_power_w, method, relaxation)
        for k in range(len(relaxation.deadlines))
    ]
    return numbered(plans, [(p.iteration_time_s, p.average_power_w) for p in plans])
