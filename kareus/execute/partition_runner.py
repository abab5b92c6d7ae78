"""Runs any single measured unit by itself, through the code that trains.

For every name of `kareus.workload.partitions.build_partitions`: a nanobatch partition is the
computation of one nanobatch beside the other's collective; a sequential part the computation of the
whole microbatch and then its collective; a lead a computation alone; a trail a collective alone,
with the residual add or norm that ends an instruction; and the work outside partitions.

To get there, two layers are run once up to the unit, whose inputs are then kept, with graphs that
survive being driven. Every further run is the same unit again on the same tensors. Build the groups
with `average=True`, or values grow with every reduction in place. Parameter gradients are added up
as in training, where every unit's are added once.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Direction, Execution, Partition
from kareus.core.workload import Recompute, Workload
from kareus.errors import ConfigError
from kareus.execute.call import StackCall
from kareus.execute.engine import BlockStack
from kareus.execute.layout import NANOBATCH_UNITS
from kareus.execute.nanobatch import PartitionExecutor, compute, expose
from kareus.execute.parallel import CollectiveCall, ParallelGroups
from kareus.execute.settings import InstructionSettings, check_allocation, check_launch_point
from kareus.execute.stage import Stage
from kareus.execute.state import CallContext, NanobatchState
from kareus.execute.trace import Trace
from kareus.execute.units import Unit, close_backward
from kareus.workload.partitions import build_partitions

_NUM_LAYERS = 2  # a unit beside a collective of the layer before, and one without, are both there

Run = Callable[[Configuration], None]


class PartitionRunner:
    """Prepares and runs the units of a workload on this rank.

    Every rank of the groups must run the same units in the same order. One unit is held prepared at
    a time.

    Args:
        workload: The workload.
        groups: Groups of ranks, made with `average=True`.
        device: This rank's device.
        dtype: Type of the parameters; None for bf16 on CUDA and fp32 on a CPU.
        dropout_rate: Dropout after attention and MLP.
        seed: Seed of weights and inputs.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        groups: ParallelGroups,
        device: torch.device,
        dtype: torch.dtype | None = None,
        dropout_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._workload = workload
        self._groups = groups
        self._device = device
        self._dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        self._dropout_rate = dropout_rate
        self._generator = torch.Generator(device=device).manual_seed(seed + groups.cp.rank)
        self._partitions = build_partitions(workload)
        self._prepared: tuple[str, Run] | None = None
        self._stack: BlockStack | None = None
        self.trace: Trace | None = None

    @property
    def partitions(self) -> dict[str, Partition]:
        """What can be run, by name."""
        return dict(self._partitions)

    @property
    def applies_allocation(self) -> bool:
        """Whether the collectives' backend keeps to an SM allocation (gloo does not)."""
        return self._groups.tp.applies_allocation or self._groups.cp.applies_allocation

    def run_partition(self, name: str, configuration: Configuration) -> None:
        """Run a unit once; the first time after another unit, prepare it.

        On CUDA this returns when the work is queued.

        Args:
            name: The unit.
            configuration: Launch point and SM allocation count; the clock is the caller's business.

        Raises:
            ConfigError: Unknown name, or a configuration the unit cannot have.
        """
        self.prepare(name)(configuration)

    def prepare(self, name: str) -> Run:
        """Make the tensors of a unit and return the function that runs it.

        Raises:
            ConfigError: Unknown name.
        """
        if self._prepared is None or self._prepared[0] != name:
            self._prepared = None
            self._prepared = (name, self._prepare(name))
        return self._prepared[1]

    def release(self) -> None:
        """Free the tensors of the prepared unit and the weights."""
        self._prepared = self._stack = None

    # -- preparation

    def _prepare(self, name: str) -> Run:
        partition = self._partitions.get(name)
        if partition is None:
            raise ConfigError(
                f"there is no partition {name!r} in this workload: known are "
                f"{', '.join(self._partitions)}"
            )
        if partition.execution is Execution.OUTSIDE:
            return self._outside(name)
        stack = self._stack or self._make_stack()
        self._stack = stack
        sequential = partition.execution is Execution.SEQUENTIAL
        for direction in Direction:
            settings = InstructionSettings.sequential()
            if not sequential:
                settings = InstructionSettings.default(
                    stack.workload, direction, launch_point=LaunchPoint.NONE
                )
            stack.configure(**{str(direction): settings})
        hidden = self._random(stack.workload.microbatch_size)
        with torch.no_grad():  # the call records its own graphs
            return self._found(partition, stack, hidden)

    def _found(self, partition: Partition, stack: BlockStack, hidden: Tensor) -> Run:
        """Run forward and backward up to the unit and return what runs it from there."""
        call = StackCall(stack, dropout_seed=0, record=True, retain=True)
        parameters = tuple(stack.parameters())
        context = call.context(parameters, record=True, forward=True)
        states = call.split(hidden, Direction.FORWARD)
        executor = self._executor(stack, Direction.FORWARD)
        run = self._search(partition, executor, call.forward_units(context, states))
        if run is not None:
            return run
        if partition.execution is Execution.TRAIL and partition.direction is Direction.FORWARD:
            return self._trail(
                partition,
                executor,
                states,
                lambda: call.merge_outputs(context, states, hidden),
            )
        executor.run_trail()
        gradient = torch.empty_like(hidden).normal_(generator=self._generator)
        states = call.states_for_backward(states, gradient)
        executor = self._executor(stack, Direction.BACKWARD)
        run = self._search(partition, executor, call.backward_units(context, states))
        if run is not None:
            return run
        return self._trail(partition, executor, states, lambda: _close_all(context, states))

    def _search(
        self, partition: Partition, executor: PartitionExecutor, units: Iterator[Unit]
    ) -> Run | None:
        """Run units until the wanted one is next; None if it did not come."""
        is_lead = partition.execution is Execution.LEAD
        first_layer = 0 if partition.direction is Direction.FORWARD else _NUM_LAYERS - 1
        for unit in units:
            # The first layer's head has nothing to add or differentiate before its norm.
            if executor.name_of(unit) == partition.name and (is_lead or unit.layer != first_layer):
                return self._unit(partition, executor, unit)
            executor.run(unit)
        return None

    def _unit(self, partition: Partition, executor: PartitionExecutor, unit: Unit) -> Run:
        """What runs a unit again and again from the state it stands in now."""
        beside, start = executor.pending, copy.copy(unit.state)
        name, sequential = partition.name, partition.execution is Execution.SEQUENTIAL
        known = next((known for known in NANOBATCH_UNITS if known.name == name), None)

        def run(configuration: Configuration) -> None:
            check_allocation(name, configuration, self._workload)
            if beside is not None and known is not None:
                check_launch_point(known, configuration)
            _restore(unit.state, start)
            recorder = replace(executor.recorder(unit, name), trace=self.trace)
            with torch.no_grad():
                compute(unit, beside, configuration, recorder)
                if sequential:
                    expose(unit.finish(), configuration, recorder)

        return run

    def _trail(
        self,
        partition: Partition,
        executor: PartitionExecutor,
        states: tuple[NanobatchState, ...],
        close: Callable[[], object],
    ) -> Run:
        """What runs the last collective and what follows it again and again."""
        pending: CollectiveCall | None = executor.pending
        starts = [copy.copy(state) for state in states]

        def run(configuration: Configuration) -> None:
            check_allocation(partition.name, configuration, self._workload)
            for state, start in zip(states, starts, strict=True):
                _restore(state, start)
            recorder = executor.instruction_recorder(unit=partition.name)
            with torch.no_grad():
                expose(pending, configuration, replace(recorder, trace=self.trace))
                close()

        return run

    def _outside(self, name: str) -> Run:
        """What runs the work outside partitions again and again."""
        self._stack = None
        model = self._workload.model
        single = replace(
            self._workload,
            stage_layers=(0,),
            parallelism=replace(self._workload.parallelism, pp=1),
        )
        stage = Stage(single, 0, groups=self._groups, device=self._device, dtype=self._dtype)
        embedding, head = stage.embedding, stage.head
        assert embedding is not None and head is not None, "a single stage is first and last"
        b, s = single.microbatch_size, stage.blocks.shape.local_seq_len
        tokens = torch.randint(
            model.vocab_size, (b, s), generator=self._generator, device=self._device
        )
        hidden = self._random(b).requires_grad_()
        run: Callable[[], object]
        match name:
            case "preprocess":
                run = partial(embedding, tokens)
            case "preprocess_backward":
                run = _gradients(embedding(tokens), list(embedding.parameters()), self._random(b))
            case "postprocess":
                run = partial(head, hidden)
            case "loss":
                run = partial(stage.loss, head(hidden).detach(), tokens)
            case "postprocess_backward":
                loss = stage.loss(head(hidden), tokens)
                run = _gradients(loss, [hidden, *head.parameters()], None)
            case _:
                raise AssertionError(f"no work outside partitions is called {name!r}")

        def checked(configuration: Configuration) -> None:
            check_allocation(name, configuration, self._workload)
            run()

        return checked

    # -- helpers

    def _make_stack(self) -> BlockStack:
        # Without recompute: its units are the same ones, run at another time.
        workload = replace(self._workload, recompute=Recompute.NONE)
        return BlockStack(
            workload,
            num_layers=_NUM_LAYERS,
            first_layer=0,
            groups=self._groups,
            device=self._device,
            dtype=self._dtype,
            dropout_rate=self._dropout_rate,
        )

    def _executor(self, stack: BlockStack, direction: Direction) -> PartitionExecutor:
        return PartitionExecutor(
            stack.settings(direction),
            direction,
            cp=self._groups.cp.size,
            tp=self._groups.tp.size,
            trace=None,
        )

    def _random(self, num_sequences: int) -> Tensor:
        """Hidden states of this rank; the same on all its tensor-parallel ranks."""
        model = self._workload.model
        size = (num_sequences, self._workload.seq_len // self._groups.cp.size, model.hidden_size)
        return torch.randn(
            size, generator=self._generator, device=self._device, dtype=torch.float32
        ).to(self._dtype)


def _restore(state: NanobatchState, start: NanobatchState) -> None:
    """Put a state back to where it was."""
    for field in fields(state):
        setattr(state, field.name, getattr(start, field.name))


def _close_all(context: CallContext, states: tuple[NanobatchState, ...]) -> None:
    for state in states:
        close_backward(context, state)


def _gradients(
    output: Tensor, inputs: list[Tensor], gradient: Tensor | None
) -> Callable[[], object]:
    """A function that drives a graph backward again and again."""
    return partial(torch.autograd.grad, output, inputs, gradient, retain_graph=True)
