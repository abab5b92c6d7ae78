"""Single units run by themselves, through the engine's own code."""

import pytest
import torch

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Execution
from kareus.core.workload import Parallelism, Recompute
from kareus.errors import ConfigError
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.partition_runner import PartitionRunner
from kareus.execute.trace import EventKind, Trace
from kareus.workload.partitions import build_partitions
from tests.execute.cases import CPU, tiny_workload
from tests.execute.world import run_world

SPLITS = [(2, 1), (2, 2), (1, 2)]


def run_every_unit(tp, cp):
    """Per unit and configuration: slots that ran, launches, and whether values stayed finite."""
    mesh = build_mesh(Parallelism(tp=tp, cp=cp, dp=4 // (tp * cp)), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU, average=True)
    workload = tiny_workload(tp=tp, cp=cp, recompute=Recompute.NONE)
    runner = PartitionRunner(workload, groups=groups, device=CPU)
    seen = {}
    for name, partition in runner.partitions.items():
        points = [*partition.launch_points, LaunchPoint.NONE] if partition.searched else [None]
        for point in points:
            configuration = Configuration(
                clock_mhz=900,
                sm_allocation=5 if partition.searched else None,
                launch_point=point,
            )
            runner.run_partition(name, configuration)
            runner.trace = Trace()
            for _ in range(2):
                runner.run_partition(name, configuration)
            slots = [e.slot for e in runner.trace.events if e.kind is EventKind.SLOT_STARTED]
            seen[name, point] = (slots, runner.trace.launches())
    return seen


def run_all_splits():
    return [run_every_unit(tp, cp) for tp, cp in SPLITS]


@pytest.fixture(scope="module")
def seen():
    return run_world(4, run_all_splits)


@pytest.mark.parametrize("number", range(len(SPLITS)))
def test_every_unit_runs_its_slots_beside_its_collective(seen, number):
    tp, cp = SPLITS[number]
    partitions = build_partitions(tiny_workload(tp=tp, cp=cp, recompute=Recompute.NONE))
    for of_rank in seen:
        assert {name for name, _ in of_rank[number]} == set(partitions)
        for (name, point), (slots, launches) in of_rank[number].items():
            partition = partitions[name]
            if partition.execution is Execution.OUTSIDE:
                continue
            assert slots == [operator.slot for operator in partition.operators] * 2
            if partition.collective is None:
                assert launches == ()
                continue
            assert [launch.collective.kind for launch in launches] == [
                partition.collective.kind
            ] * 2
            for launch in launches:
                assert launch.unit == name
                assert launch.launch_point == (point or LaunchPoint.NONE)
                # fp32 here, bf16 in the workload's figures.
                assert launch.collective.num_bytes == 2 * partition.collective.message_bytes
                assert launch.collective.sm_allocation == (5 if point else None)


def single_runner(**changes):
    workload = tiny_workload(**changes)
    return PartitionRunner(workload, groups=ParallelGroups.single(CPU), device=CPU)


def test_without_parallelism_every_unit_runs_alone():
    runner = single_runner()
    for name in runner.partitions:
        for _ in range(3):
            runner.run_partition(name, Configuration(clock_mhz=900))
    runner.release()
    runner.run_partition("fwd_mlp", Configuration(clock_mhz=900))


def test_repeating_a_unit_repeats_its_values():
    runner = single_runner()
    run = runner.prepare("bwd_attn")
    stack = runner._stack
    assert stack is not None
    before = [parameter.clone() for parameter in stack.parameters()]
    for _ in range(3):
        run(Configuration(clock_mhz=900))
    for parameter, value in zip(stack.parameters(), before, strict=True):
        torch.testing.assert_close(parameter, value, rtol=0, atol=0)


def test_unknown_unit_is_refused():
    with pytest.raises(ConfigError, match=r"there is no partition 'fwd_qkv_ar' in this workload"):
        single_runner().run_partition("fwd_qkv_ar", Configuration(clock_mhz=900))


def test_allocation_above_the_gpu_is_refused():
    with pytest.raises(ConfigError, match=r"'fwd_mlp' is given 109 SMs, but .* has 108: use 1 to"):
        single_runner().run_partition(
            "fwd_mlp", Configuration(clock_mhz=900, sm_allocation=109, launch_point=None)
        )


def refuse_launch_point():
    mesh = build_mesh(Parallelism(tp=2), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU, average=True)
    runner = PartitionRunner(tiny_workload(tp=2), groups=groups, device=CPU)
    try:
        runner.run_partition(
            "fwd_mlp",
            Configuration(clock_mhz=900, sm_allocation=3, launch_point=LaunchPoint.ATTN_0),
        )
    except ConfigError as error:
        return str(error)
    return None


def test_launch_point_of_another_partition_is_refused():
    for message in run_world(2, refuse_launch_point):
        assert message == (
            "partition 'fwd_mlp' has no launch point 'attn_0': "
            "use norm_0, linear_0, activation_0 or none"
        )
