"""The trace tells what happened: checked against the operations that torch itself dispatched."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import CollectiveKind, Direction
from kareus.core.workload import Parallelism, Recompute
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.settings import InstructionSettings
from kareus.execute.trace import EventKind, Trace
from kareus.workload.partitions import build_recipes
from tests.execute.cases import (
    CPU,
    NUM_LAYERS,
    launch_settings,
    local,
    make_stack,
    make_tensors,
    tiny_model,
    tiny_workload,
)
from tests.execute.following import find_deviations
from tests.execute.world import run_world

# What torch dispatches for a slot and for nothing else.
FORWARD_OPERATIONS = {
    "norm_0": ["rsqrt"],
    "linear_0": ["mm"],
    "linear_1": ["mm"],
    "rope_0": ["sub", "sub"],
    "attn_0": ["attention"],
    "activation_0": ["silu"],
}
BACKWARD_OPERATIONS = {
    "norm_0": ["mean-gradient"],
    "linear_0": ["mm", "mm"],
    "linear_1": ["mm", "mm"],
    "rope_0": ["neg", "neg"],
    "attn_0": ["attention-gradient"],
    "activation_0": ["silu-gradient"],
}
DISPATCHED = {
    "aten.rsqrt.default": "rsqrt",
    "aten.mm.default": "mm",
    "aten.sub.Tensor": "sub",
    "aten.neg.default": "neg",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": "attention-gradient",
    "aten.silu.default": "silu",
    "aten.silu_backward.default": "silu-gradient",
    "aten.div.Scalar": "mean-gradient",
    "c10d.allreduce_.default": CollectiveKind.ALL_REDUCE.value,
    "c10d._allgather_base_.default": CollectiveKind.ALL_GATHER.value,
    "c10d._reduce_scatter_base_.default": CollectiveKind.REDUCE_SCATTER.value,
}


class Witness(TorchDispatchMode):
    """Writes down the operations torch dispatches, without knowing about slots."""

    def __init__(self):
        super().__init__()
        self.operations = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = DISPATCHED.get(str(func))
        if name is not None:
            self.operations.append(name)
        return func(*args, **(kwargs or {}))


def operations_by_trace(trace, cp):
    """What the trace says was dispatched."""
    expected = []
    top = NUM_LAYERS - 1
    for event in trace.events:
        forward = event.direction is Direction.FORWARD or event.recompute
        if event.kind is EventKind.COLLECTIVE_LAUNCHED:
            expected.append(event.collective.kind.value)
        elif event.kind is EventKind.INSTRUCTION_ENDED and not forward:
            expected += BACKWARD_OPERATIONS["norm_0"] * 2  # the first layer's norm, per nanobatch
        if event.kind is not EventKind.SLOT_STARTED:
            continue
        heads_backward = event.layer == top and event.unit in ("bwd_mlp", "bwd_lead")
        if event.slot == "norm_0" and heads_backward:
            continue  # there is no norm above the last layer
        operations = (FORWARD_OPERATIONS if forward else BACKWARD_OPERATIONS)[event.slot]
        if event.slot == "attn_0" and cp > 1:
            operations = operations * 2  # two chunks of the sequence
        expected += operations
    return expected


def trace_choice(tp, cp, recompute, choice):
    """Trace, witnessed operations and what was asked for, of this rank."""
    mesh = build_mesh(Parallelism(tp=tp, cp=cp, dp=4 // (tp * cp)), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(tp=tp, cp=cp, recompute=recompute, model=tiny_model(qk_norm=False))
    stack = make_stack(workload, groups, dtype=torch.float32)
    forward = launch_settings(workload, Direction.FORWARD, choice)
    backward = launch_settings(workload, Direction.BACKWARD, choice)
    stack.configure(forward=forward, backward=backward)
    hidden, cotangent = (local(tensor, groups).float() for tensor in make_tensors(workload))
    stack(hidden.requires_grad_()).backward(cotangent)  # masks are made once, outside the witness
    stack.trace = Trace()
    with Witness() as witness:
        stack(hidden).backward(cotangent)
    return workload, forward, backward, stack.trace, witness.operations


CHOICES = [
    (tp, cp, recompute, choice)
    for tp, cp in ((2, 1), (2, 2), (1, 2))
    for recompute in Recompute
    for choice in (0, 1, 2, 3, None)
]


def trace_all():
    return [
        (
            trace.launches(),
            operations_by_trace(trace, choice[1]),
            operations,
            forward,
            backward,
            find_deviations(trace, [forward, backward]),
        )
        for choice in CHOICES
        for _, forward, backward, trace, operations in [trace_choice(*choice)]
    ]


@pytest.fixture(scope="module")
def traced():
    """Per choice, of every rank."""
    return list(zip(*run_world(4, trace_all), strict=True))


@pytest.mark.parametrize(
    "number", range(len(CHOICES)), ids=lambda n: "-".join(map(str, CHOICES[n]))
)
def test_trace_agrees_with_what_torch_dispatched(traced, number):
    for _, by_trace, operations, *_ in traced[number]:
        assert by_trace == operations


@pytest.mark.parametrize(
    "number", range(len(CHOICES)), ids=lambda n: "-".join(map(str, CHOICES[n]))
)
def test_launch_points_are_those_asked_for(traced, number):
    for launches, _, _, forward, backward, deviations in traced[number]:
        assert deviations == ()
        for launch in launches:
            if launch.unit.endswith("trail"):
                assert launch.launch_point == "none"
                continue
            settings = forward if launch.direction is Direction.FORWARD else backward
            asked = settings.configurations[launch.unit]
            assert launch.launch_point == asked.launch_point
            assert launch.overlapped == (asked.launch_point is not LaunchPoint.NONE)
            assert launch.collective.sm_allocation == asked.sm_allocation
            assert not launch.collective.allocation_applied  # gloo has no SMs
            # The collective is the other nanobatch's.
            assert launch.collective.nanobatch == 1 - launch.nanobatch


@pytest.mark.parametrize(
    "number", range(len(CHOICES)), ids=lambda n: "-".join(map(str, CHOICES[n]))
)
def test_partitions_run_as_often_as_the_recipe_counts(traced, number):
    tp, cp, recompute, _ = CHOICES[number]
    workload = tiny_workload(tp=tp, cp=cp, recompute=recompute)
    recipes = build_recipes(workload)
    for launches, *_ in traced[number]:
        for direction in Direction:
            seen = Counter(la.unit for la in launches if la.direction is direction)
            recipe = recipes[0, direction]
            counts = {
                name: count
                for name, count in recipe.nanobatch
                if count and (tp > 1 or name.endswith(("_ag", "_rs")))
            }
            if recipe.trail is not None:
                counts[recipe.trail] = 1
            assert seen == counts


def test_without_a_trace_nothing_is_recorded_and_sequential_exposes_everything():
    workload = tiny_workload()
    stack = make_stack(workload, ParallelGroups.single(CPU))
    hidden, cotangent = make_tensors(workload)
    stack(hidden.requires_grad_()).backward(cotangent)
    assert stack.trace is None
    stack.trace = Trace()
    stack.configure(
        forward=InstructionSettings.sequential(), backward=InstructionSettings.sequential()
    )
    stack(hidden).backward(cotangent)
    units = [e.unit for e in stack.trace.events if e.kind is EventKind.UNIT_STARTED]
    forward = ["seq_fwd_attn", "seq_fwd_mlp"]
    layer_back = [*forward, "seq_bwd_mlp", "seq_bwd_attn"]  # recomputed, then differentiated
    assert units == forward * NUM_LAYERS + layer_back * NUM_LAYERS
    stack.trace.clear()
    assert stack.trace.launches() == ()


def trace_for_deviations():
    """Deviations of a trace from what was told, and from what was not."""
    mesh = build_mesh(Parallelism(tp=2), "cpu")
    groups = ParallelGroups.from_mesh(mesh, CPU)
    workload = tiny_workload(tp=2, recompute=Recompute.NONE)
    stack = make_stack(workload, groups)
    told = {direction: launch_settings(workload, direction, 0) for direction in Direction}
    other = launch_settings(workload, Direction.FORWARD, 1)
    stack.configure(forward=told[Direction.FORWARD], backward=told[Direction.BACKWARD])
    hidden, cotangent = make_tensors(workload)
    stack.trace = Trace()
    stack(hidden.requires_grad_()).backward(cotangent)
    backward = told[Direction.BACKWARD]
    fewer = Trace(events=[e for e in stack.trace.events if not _first_launch(e, stack.trace)])
    return [
        find_deviations(stack.trace, [told[Direction.FORWARD], backward]),
        find_deviations(stack.trace, [other, backward]),
        find_deviations(stack.trace, [InstructionSettings.sequential(), backward]),
        find_deviations(stack.trace, [told[Direction.FORWARD]]),
        find_deviations(fewer, [told[Direction.FORWARD], backward]),
    ]


def _first_launch(event, trace):
    launches = (e for e in trace.events if e.kind is EventKind.COLLECTIVE_LAUNCHED)
    return event is next(launches)


def test_deviations_are_named():
    none, point, execution, count, missing = run_world(2, trace_for_deviations)[0]
    assert none == ()
    assert point[0] == (
        "instruction 0: fwd_attn of layer 0, nanobatch 1 launched at norm_0, told was linear_0"
    )
    assert len(point) == 4 * NUM_LAYERS - 1  # every unit but the lead
    assert "instruction 0: fwd_mlp was executed, which is not sequential" in execution
    assert count == ("2 instructions were executed, 1 were told",)
    assert missing == ("instruction 0: fwd_attn ran 3 times and launched 2 collectives",)
