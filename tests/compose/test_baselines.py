import numpy as np
import pytest

from kareus.compose.baselines import build_frontiers, compose_methods, solve_methods
from kareus.core.configuration import LaunchPoint
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Direction, Execution, Partition
from kareus.core.pipeline import InstructionRecipe, one_f_one_b
from kareus.core.plan import Method
from kareus.errors import MeasurementError

STATIC_W = 85.0
CLOCKS = tuple(range(900, 1411, 102))
POINTS = (LaunchPoint.NORM_0, LaunchPoint.LINEAR_0)
SMS = (3, 12, 20)
F, B = Direction.FORWARD, Direction.BACKWARD


def _partition(name: str, direction: Direction, execution: Execution) -> Partition:
    searched = execution is Execution.NANOBATCH
    return Partition(
        name=name,
        direction=direction,
        execution=execution,
        operators=(),
        collective=None,
        clocks_mhz=CLOCKS,
        launch_points=POINTS if searched else (),
        sm_allocations=SMS if searched else (),
        default_sm_allocation=20 if searched else None,
    )


PARTITIONS = {
    p.name: p
    for p in (
        _partition("fwd", F, Execution.NANOBATCH),
        _partition("bwd", B, Execution.NANOBATCH),
        _partition("seq_fwd", F, Execution.SEQUENTIAL),
        _partition("seq_bwd", B, Execution.SEQUENTIAL),
        _partition("lead", F, Execution.LEAD),
        _partition("trail", F, Execution.TRAIL),
        _partition("head", F, Execution.OUTSIDE),
    )
}
FORWARD = InstructionRecipe(
    nanobatch=(("fwd", 7),),
    sequential=(("seq_fwd", 4),),
    lead=("lead", "fwd"),
    trail="trail",
)
BACKWARD = InstructionRecipe(
    nanobatch=(("fwd", 7), ("bwd", 8)),
    sequential=(("seq_fwd", 4), ("seq_bwd", 4)),
    lead=("lead", "fwd"),
    trail="trail",
)
LAST = InstructionRecipe(
    nanobatch=FORWARD.nanobatch,
    sequential=FORWARD.sequential,
    lead=FORWARD.lead,
    trail="trail",
    outside=(("head", 1),),
)
RECIPES = {(0, F): FORWARD, (0, B): BACKWARD, (1, F): LAST, (1, B): BACKWARD}


def measured(seed: int, *, nanobatching_pays: bool = True) -> dict[str, list[PartitionOption]]:
    rng = np.random.default_rng(seed)
    size = {"fwd": 1.0, "bwd": 2.0, "seq_fwd": 2.3, "seq_bwd": 4.6, "head": 0.5}
    if not nanobatching_pays:
        size |= {"seq_fwd": 1.6, "seq_bwd": 3.2}
    options: dict[str, list[PartitionOption]] = {}
    for name, partition in PARTITIONS.items():
        configurations = {
            c.sort_key(): c for c in (*partition.space(), *partition.baseline_configurations())
        }
        options[name] = []
        for configuration in configurations.values():
            x = configuration.clock_mhz / 1410
            sms = (configuration.sm_allocation or 20) / 20
            time_s = 1e-3 * size.get(name, 0.4) * (0.8 / x + 0.2) * rng.uniform(0.98, 1.02)
            if configuration.launch_point is LaunchPoint.NONE:
                time_s *= 1.3
            else:
                time_s *= 1.0 + 0.2 * (sms - 0.5) ** 2
            energy_j = 300.0 * 1e-3 * size.get(name, 0.4) * (0.3 + 0.7 * x**2.4)
            options[name].append(
                PartitionOption(
                    configuration=configuration,
                    time_s=time_s,
                    energy_j=energy_j * rng.uniform(0.98, 1.02) + STATIC_W * time_s,
                )
            )
    return options


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("nanobatching_pays", [True, False])
@pytest.mark.parametrize("num_plans", [3, 50])
def test_kareus_is_nowhere_worse_than_a_baseline(seed, nanobatching_pays, num_plans) -> None:
    frontiers = build_frontiers(
        one_f_one_b(2, 4),
        RECIPES,
        PARTITIONS,
        measured(seed, nanobatching_pays=nanobatching_pays),
        static_power_w=STATIC_W,
        num_plans=num_plans,
    )
    assert set(frontiers) == set(Method)
    assert len(frontiers[Method.MEGATRON]) == 1
    for method in (Method.MEGATRON, Method.PERSEUS, Method.NANOBATCHING_PERSEUS):
        for plan in frontiers[method]:
            assert plan.method is method
            assert any(
                own.iteration_time_s <= plan.iteration_time_s
                and own.pipeline_energy_j <= plan.pipeline_energy_j
                for own in frontiers[Method.KAREUS]
            )


def test_each_method_keeps_to_its_rules() -> None:
    frontiers = build_frontiers(
        one_f_one_b(2, 4), RECIPES, PARTITIONS, measured(0), static_power_w=STATIC_W, num_plans=10
    )

    def options(method: Method):
        return {o for plan in frontiers[method] for stage in plan.choices for o in stage}

    assert {o.clock_mhz for o in options(Method.MEGATRON)} == {max(CLOCKS)}
    for method in (Method.MEGATRON, Method.PERSEUS):
        assert {o.execution for o in options(method)} == {Execution.SEQUENTIAL}
    default = options(Method.NANOBATCHING_PERSEUS)
    assert {o.execution for o in default} == {Execution.NANOBATCH}
    assert {(c.launch_point, c.sm_allocation) for o in default for _, c in o.configurations} == {
        (POINTS[0], 20)
    }
    assert {c.sm_allocation for o in options(Method.KAREUS) for _, c in o.configurations} > {20}


def test_sequential_wins_where_nanobatching_does_not_pay() -> None:
    frontiers = build_frontiers(
        one_f_one_b(2, 4),
        RECIPES,
        PARTITIONS,
        measured(0, nanobatching_pays=False),
        static_power_w=STATIC_W,
        num_plans=10,
    )
    fastest = frontiers[Method.KAREUS][0]
    assert {o.execution for stage in fastest.choices for o in stage} == {Execution.SEQUENTIAL}
    assert fastest.iteration_time_s == frontiers[Method.PERSEUS][0].iteration_time_s


def test_a_method_without_measurements_is_left_out_and_named() -> None:
    options = measured(1)
    del options["seq_bwd"], options["lead"]
    composed = compose_methods(RECIPES, PARTITIONS, options, static_power_w=STATIC_W)
    assert set(composed.unavailable) == {Method.MEGATRON, Method.PERSEUS}
    assert "seq_bwd" in composed.unavailable[Method.PERSEUS]
    assert composed.notes.leads_replaced == (("lead", "fwd"),)
    frontiers = solve_methods(one_f_one_b(2, 3), composed, static_power_w=STATIC_W, num_plans=5)
    assert set(frontiers) == {Method.NANOBATCHING_PERSEUS, Method.KAREUS}


def test_nothing_measured_is_an_error() -> None:
    options = measured(1)
    del options["head"]
    with pytest.raises(MeasurementError, match="head"):
        build_frontiers(one_f_one_b(2, 3), RECIPES, PARTITIONS, options, static_power_w=STATIC_W)
