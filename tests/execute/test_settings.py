"""Settings that cannot be executed are refused in one line."""

import pickle

import pytest
import torch

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Direction, Execution
from kareus.core.plan import InstructionOption
from kareus.core.workload import Recompute
from kareus.errors import ConfigError
from kareus.execute.block import BlockShape
from kareus.execute.layout import NANOBATCH_UNITS, SEQUENTIAL_UNITS
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.settings import InstructionSettings, check_settings
from kareus.workload.partitions import build_partitions, build_recipes
from tests.execute.cases import CPU, launch_settings, make_stack, tiny_model, tiny_workload


def _changed(settings, name, **changes):
    configurations = dict(settings.configurations)
    old = configurations[name]
    values = {"sm_allocation": old.sm_allocation, "launch_point": old.launch_point} | changes
    configurations[name] = Configuration(clock_mhz=900, **values)
    return InstructionSettings(execution=Execution.NANOBATCH, configurations=configurations)


@pytest.mark.parametrize(("tp", "cp"), [(2, 1), (2, 2), (1, 2), (1, 1)])
@pytest.mark.parametrize("recompute", list(Recompute))
def test_units_are_those_of_the_workload(tp, cp, recompute):
    workload = tiny_workload(tp=tp, cp=cp, recompute=recompute)
    partitions = build_partitions(workload)
    known = {unit.name: unit for unit in (*NANOBATCH_UNITS, *SEQUENTIAL_UNITS)}
    for name, partition in partitions.items():
        if partition.execution not in (Execution.NANOBATCH, Execution.SEQUENTIAL):
            continue
        unit = known[name]
        assert unit.slots == tuple(operator.slot for operator in partition.operators)
        size = unit.group_size(workload.parallelism)
        assert (size > 1) is (partition.collective is not None)
        assert partition.collective is None or unit.collective is partition.collective.kind
    recipes = build_recipes(workload)
    for direction in Direction:
        default = InstructionSettings.default(workload, direction)
        check_settings(default, workload, direction)
        assert set(default.configurations) == {name for name, _ in recipes[0, direction].nanobatch}


def test_default_uses_the_first_launch_point_unless_told():
    workload = tiny_workload(tp=2)
    default = InstructionSettings.default(workload, Direction.BACKWARD)
    assert default.configurations["bwd_attn"].launch_point is LaunchPoint.NORM_0
    assert default.configurations["bwd_attn"].sm_allocation == 20
    none = InstructionSettings.default(workload, Direction.BACKWARD, launch_point=LaunchPoint.NONE)
    assert {c.launch_point for c in none.configurations.values()} == {LaunchPoint.NONE}


def test_planned_option_becomes_settings_that_travel():
    configuration = Configuration(clock_mhz=900, sm_allocation=3, launch_point=LaunchPoint.LINEAR_0)
    option = InstructionOption(
        clock_mhz=900,
        execution=Execution.NANOBATCH,
        time_s=1.0,
        effective_energy_j=1.0,
        configurations=(("fwd_attn", configuration), ("fwd_mlp", configuration)),
    )
    settings = InstructionSettings.from_option(option)
    assert settings.configurations == {"fwd_attn": configuration, "fwd_mlp": configuration}
    assert pickle.loads(pickle.dumps(settings)) == settings
    check_settings(settings, tiny_workload(tp=2), Direction.FORWARD)


def test_launch_point_a_partition_does_not_have():
    workload = tiny_workload(tp=2)
    settings = launch_settings(workload, Direction.FORWARD, 0)
    wrong = _changed(settings, "fwd_mlp", launch_point=LaunchPoint.ROPE_0)
    with pytest.raises(ConfigError, match="'fwd_mlp' has no launch point 'rope_0': use norm_0"):
        check_settings(wrong, workload, Direction.FORWARD)
    wrong = _changed(settings, "fwd_mlp", launch_point=None)
    with pytest.raises(ConfigError, match="'fwd_mlp' has no launch point 'given'"):
        check_settings(wrong, workload, Direction.FORWARD)


def test_launch_point_without_a_collective():
    settings = launch_settings(tiny_workload(tp=2), Direction.FORWARD, 0)
    with pytest.raises(ConfigError, match="'fwd_attn' has launch point 'norm_0', but no"):
        check_settings(settings, tiny_workload(tp=1), Direction.FORWARD)


@pytest.mark.parametrize("sms", [0, -1, 109])
def test_allocation_the_gpu_does_not_have(sms):
    workload = tiny_workload(tp=2)
    settings = launch_settings(workload, Direction.FORWARD, 0)
    with pytest.raises(ConfigError, match=f"'fwd_attn' is given {sms} SMs, but A100.* has 108"):
        check_settings(
            _changed(settings, "fwd_attn", sm_allocation=sms), workload, Direction.FORWARD
        )


def test_missing_and_unknown_partitions():
    workload = tiny_workload(tp=2)
    forward = launch_settings(workload, Direction.FORWARD, 0)
    with pytest.raises(ConfigError, match=r"backward instruction has no configuration for .*mlp"):
        check_settings(forward, workload, Direction.BACKWARD)
    unknown = InstructionSettings(
        execution=Execution.NANOBATCH,
        configurations={**forward.configurations, "fwd_moe": Configuration(clock_mhz=900)},
    )
    with pytest.raises(ConfigError, match="there is no partition 'fwd_moe': known are fwd_attn"):
        check_settings(unknown, workload, Direction.FORWARD)
    with pytest.raises(ConfigError, match="cannot be executed as trail: use nanobatch or seq"):
        InstructionSettings(execution=Execution.TRAIL)


def test_settings_are_checked_where_they_are_set():
    stack = make_stack(tiny_workload(), ParallelGroups.single(CPU))
    bad = InstructionSettings(
        execution=Execution.NANOBATCH,
        configurations={"fwd_attn": Configuration(clock_mhz=900, sm_allocation=500)},
    )
    with pytest.raises(ConfigError, match="500 SMs"):
        stack.configure(forward=bad)


@pytest.mark.parametrize(
    ("tp", "message"),
    [
        (3, "tp 3 does not divide the 8 attention heads"),
        (8, "tp 8 does not divide the 4 key/value heads"),
    ],
)
def test_group_sizes_that_do_not_divide(tp, message):
    with pytest.raises(ConfigError, match=message):
        BlockShape(model=tiny_model(), seq_len=8, tp=tp)


def test_sequences_that_cannot_be_shared():
    with pytest.raises(ConfigError, match="sequence length 10 cannot be shared by cp 2"):
        BlockShape(model=tiny_model(), seq_len=10, cp=2)


def test_groups_of_another_size_than_the_workload():
    with pytest.raises(ConfigError, match="the tp group has 1 ranks, but the workload has tp 2"):
        make_stack(tiny_workload(tp=2), ParallelGroups.single(CPU))


def test_too_few_processes_for_the_mesh(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"3 processes cannot form pp 1 x .* tp 2: start 2"):
        build_mesh(tiny_workload(tp=2).parallelism, "cpu")


def test_inputs_that_do_not_fit():
    workload = tiny_workload()
    stack = make_stack(workload, ParallelGroups.single(CPU))
    with pytest.raises(ConfigError, match=r"shape \(4, 7, 12\): use \(sequences, 8, 12\)"):
        stack(torch.zeros(4, 7, 12, dtype=torch.float64))
    stack.configure(forward=InstructionSettings.default(workload, Direction.FORWARD))
    with pytest.raises(ConfigError, match="microbatch of 1 sequence cannot be split in two"):
        stack(torch.zeros(1, 8, 12, dtype=torch.float64))
