"""The transformer blocks of a stage as one autograd function, executed as partitions.

Inside the function every operator is an autograd graph of its own, and the backward drives them one
by one, so that launch points are places between calls. To the outside it is an ordinary
differentiable function of the hidden states and the parameters: gradients are returned, not written
to `.grad`, so DDP, FSDP and the pipelining stages of torch see nothing unusual. All state belongs
to the call, so any number of microbatches may be in flight.

Full recompute keeps each layer's input and, in the backward, executes the forward partitions of a
layer again before its backward ones, with every collective of theirs (as Megatron-LM's full
recompute does): the last all-reduce of a recomputed layer is of no use to the backward, but it is
what the recipes of `kareus.workload` count and what the partitions were measured with. The last
all-reduce of a layer's backward runs beside the first recomputed partition of the layer below.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kareus.core.partition import Direction, Execution
from kareus.core.workload import Recompute, Workload
from kareus.errors import ConfigError
from kareus.execute.block import Block, BlockShape, rotary_table, weight_specs
from kareus.execute.dropout import Dropout
from kareus.execute.layout import block_parts
from kareus.execute.nanobatch import PartitionExecutor
from kareus.execute.parallel import ParallelGroups
from kareus.execute.sequence import local_chunks
from kareus.execute.settings import InstructionSettings, check_settings
from kareus.execute.subgraph import Gradients, Weight
from kareus.execute.trace import EventKind, Trace
from kareus.execute.units import (
    CallContext,
    NanobatchState,
    Unit,
    build_unit,
    close_backward,
    close_forward,
)
from kareus.workload.partitions import NUM_NANOBATCHES


class BlockStack(nn.Module):
    """The blocks of a stage.

    Args:
        workload: The workload.
        num_layers: Blocks of the stage.
        first_layer: Index in the model of the first of them.
        groups: Groups of ranks.
        device: This rank's device.
        dtype: Type of the parameters (bf16, fp32; fp64 for tests).
        dropout_rate: Dropout after attention and MLP.
        seed: Seed of the initial weights.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        num_layers: int,
        first_layer: int,
        groups: ParallelGroups,
        device: torch.device,
        dtype: torch.dtype,
        dropout_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.workload = workload
        self.first_layer = first_layer
        self.groups = groups
        self.dropout_rate = dropout_rate
        self.shape = BlockShape(
            model=workload.model,
            seq_len=workload.seq_len,
            tp=groups.tp.size,
            tp_rank=groups.tp.rank,
            cp=groups.cp.size,
            cp_rank=groups.cp.rank,
        )
        self._check_groups()
        self.blocks = nn.ModuleList(
            Block(self.shape, layer=first_layer + number, seed=seed, dtype=dtype, device=device)
            for number in range(num_layers)
        )
        table_dtype = torch.float64 if dtype is torch.float64 else torch.float32
        self.rotary = rotary_table(self.shape, dtype=table_dtype, device=device)
        self.trace: Trace | None = None
        self._settings = dict.fromkeys(Direction, InstructionSettings.sequential())
        self._checked: dict[tuple[Direction, int], InstructionSettings] = {}

    def configure(
        self,
        *,
        forward: InstructionSettings | None = None,
        backward: InstructionSettings | None = None,
    ) -> None:
        """Set what the forwards and backwards that start from now on are told; None leaves it.

        Settings seen before are not checked again, so that switching costs next to nothing: keep
        the objects and pass them again.

        Raises:
            ConfigError: If they cannot be executed.
        """
        for direction, settings in (
            (Direction.FORWARD, forward),
            (Direction.BACKWARD, backward),
        ):
            if settings is None:
                continue
            if (direction, id(settings)) not in self._checked:
                check_settings(settings, self.workload, direction)
                self._checked[direction, id(settings)] = settings
            self._settings[direction] = settings

    def settings(self, direction: Direction) -> InstructionSettings:
        """Return what the next instruction of a direction is told."""
        return self._settings[direction]

    def forward(self, hidden: Tensor, *, dropout_seed: int = 0) -> Tensor:
        """Return the output of the last block.

        Args:
            hidden: Shape (microbatch size, s, h).
            dropout_seed: Another one for every microbatch.

        Raises:
            ConfigError: If the input has another shape, or cannot be split in nanobatches.
        """
        expected = (self.shape.local_seq_len, self.shape.model.hidden_size)
        if hidden.dim() != 3 or hidden.shape[1:] != expected:
            raise ConfigError(
                f"the blocks were given a tensor of shape {tuple(hidden.shape)}: "
                f"use (sequences, {expected[0]}, {expected[1]})"
            )
        parameters = tuple(self.parameters())
        call = StackCall(
            self,
            dropout_seed=dropout_seed,
            record=torch.is_grad_enabled(),
            training=self.training,
        )
        output: Tensor = _StackFunction.apply(  # type: ignore[no-untyped-call]
            hidden, call, *parameters
        )
        return output

    def _check_groups(self) -> None:
        for name in ("tp", "cp"):
            size, degree = getattr(self.groups, name).size, getattr(self.workload.parallelism, name)
            if size != degree:
                raise ConfigError(
                    f"the {name} group has {size} ranks, but the workload has {name} {degree}: "
                    f"build the groups from the workload's parallelism"
                )


class StackCall:
    """One forward of a stack and the backward that belongs to it.

    Args:
        stack: The stack.
        dropout_seed: Seed of its dropout.
        record: Whether a backward may follow.
        training: Whether dropout applies.
        retain: Whether units can be run again (measuring).
    """

    def __init__(
        self,
        stack: BlockStack,
        *,
        dropout_seed: int,
        record: bool,
        training: bool = True,
        retain: bool = False,
    ) -> None:
        self._stack = stack
        self._record = record
        self._retain = retain
        self._recompute = stack.workload.recompute is Recompute.FULL
        self._dropout = Dropout(
            rate=stack.dropout_rate if training else 0.0,
            seed=dropout_seed,
            chunks=local_chunks(stack.shape.cp, stack.shape.cp_rank),
        )
        self._autocast = _Autocast()
        self._states: tuple[NanobatchState, ...] | None = None
        self._num_layers = len(stack.blocks)

    # -- whole passes

    def forward(self, hidden: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Run the forward instruction; keep what the backward needs."""
        executor = self._executor(Direction.FORWARD)
        executor.instruction_recorder().write(EventKind.INSTRUCTION_STARTED)
        context = self.context(
            parameters, record=self._record and not self._recompute, forward=True
        )
        states = self.split(hidden, Direction.FORWARD)
        with self._autocast.restored(hidden.device):
            for unit in self.forward_units(context, states):
                executor.run(unit)
            executor.run_trail()
            output = self.merge_outputs(context, states, hidden)
        for state in states:
            state.values = ()
        self._states = states if self._record else None
        executor.instruction_recorder().write(EventKind.INSTRUCTION_ENDED)
        return output

    def backward(
        self, grad_output: Tensor, parameters: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Run the backward instruction; return the gradients of input and parameters.

        Raises:
            ConfigError: If it ran before, or if it is to be split otherwise than a forward whose
                graphs it needs.
        """
        if self._states is None:
            raise ConfigError(
                "the backward of this forward has already run: run the forward again, "
                "retain_graph is not supported"
            )
        executor = self._executor(Direction.BACKWARD)
        executor.instruction_recorder().write(EventKind.INSTRUCTION_STARTED)
        context = self.context(parameters, record=True, forward=False)
        states = self.states_for_backward(self._states, grad_output)
        self._states = None
        with self._autocast.restored(grad_output.device):
            for unit in self.backward_units(context, states):
                executor.run(unit)
            executor.run_trail()
            gradients = [close_backward(context, state) for state in states]
        executor.instruction_recorder().write(EventKind.INSTRUCTION_ENDED)
        grad_input = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
        return grad_input, context.gradients.values

    # -- their parts, which measuring uses one by one

    def context(self, parameters: Sequence[Tensor], *, record: bool, forward: bool) -> CallContext:
        """Return what the units of a pass share."""
        stack = self._stack
        names = [spec.name for spec in weight_specs(stack.shape.model)]
        weights = []
        for layer in range(self._num_layers):
            start = layer * len(names)
            weights.append(
                {
                    name: Weight(
                        start + number,
                        parameters[start + number]
                        .detach()
                        .requires_grad_(parameters[start + number].requires_grad),
                    )
                    for number, name in enumerate(names)
                }
            )
        return CallContext(
            shape=stack.shape,
            first_layer=stack.first_layer,
            rotary=stack.rotary,
            groups=stack.groups,
            weights=tuple(weights),
            dropout=self._dropout,
            gradients=Gradients(len(parameters)),
            record=record,
            keep_inputs=forward and self._record and self._recompute,
            retain=self._retain,
        )

    def split(self, hidden: Tensor, direction: Direction) -> tuple[NanobatchState, ...]:
        """Return the states of the nanobatches (or of the whole microbatch) of a tensor.

        Raises:
            ConfigError: If one sequence is to be split.
        """
        if self._stack.settings(direction).execution is Execution.SEQUENTIAL:
            return (NanobatchState(nanobatch=None, first_sample=0, hidden=hidden),)
        if hidden.shape[0] < NUM_NANOBATCHES:
            raise ConfigError(
                f"a microbatch of {hidden.shape[0]} sequence cannot be split in two nanobatches: "
                f"use a microbatch size of 2 or more, or execute it sequentially"
            )
        states, first = [], 0
        for number, part in enumerate(hidden.tensor_split(NUM_NANOBATCHES)):
            states.append(NanobatchState(nanobatch=number, first_sample=first, hidden=part))
            first += part.shape[0]
        return tuple(states)

    def forward_units(
        self, context: CallContext, states: Sequence[NanobatchState]
    ) -> Iterator[Unit]:
        """Yield the units of the forward in order; each must have run before the next is asked."""
        for layer in range(self._num_layers):
            yield from self._units_of_layer(context, states, layer, Direction.FORWARD)

    def backward_units(
        self, context: CallContext, states: Sequence[NanobatchState]
    ) -> Iterator[Unit]:
        """Yield the units of the backward likewise, with those of the recompute."""
        for layer in reversed(range(self._num_layers)):
            if self._recompute:
                for state in states:
                    state.hidden, state.reduced = state.layer_inputs.pop(), None
                yield from self._units_of_layer(
                    context, states, layer, Direction.FORWARD, recompute=True
                )
            yield from self._units_of_layer(context, states, layer, Direction.BACKWARD)
            if not self._retain:
                for state in states:
                    del state.records[layer]

    def merge_outputs(
        self, context: CallContext, states: Sequence[NanobatchState], hidden: Tensor
    ) -> Tensor:
        """Return the output of the last layer, in one tensor."""
        reduced = states[0].reduced
        assert reduced is not None, "the last part's output was not reduced"
        dtype = torch.promote_types(hidden.dtype, reduced.dtype)
        output = torch.empty_like(hidden, dtype=dtype)
        for state, out in zip(states, output.tensor_split(len(states)), strict=True):
            close_forward(context, state, layer=self._num_layers - 1, out=out)
        return output

    def states_for_backward(
        self, states: tuple[NanobatchState, ...], grad_output: Tensor
    ) -> tuple[NanobatchState, ...]:
        """Return the states with the output's gradient, split as the backward wants it.

        Raises:
            ConfigError: If that is another split than the forward's and nothing is recomputed.
        """
        wanted = self._stack.settings(Direction.BACKWARD).execution
        was_split = len(states) > 1
        if was_split is not (wanted is Execution.NANOBATCH):
            if not self._recompute:
                raise ConfigError(
                    f"the forward was executed {'in nanobatches' if was_split else 'sequentially'} "
                    f"and its backward is to be executed as {wanted}: use the same execution for "
                    f"both, or full recompute"
                )
            layer_inputs = [
                torch.cat(inputs) if was_split else inputs[0]
                for inputs in zip(*(state.layer_inputs for state in states), strict=True)
            ]
            states = self.split(layer_inputs[0], Direction.BACKWARD)
            for state in states:
                samples = slice(state.first_sample, state.first_sample + state.hidden.shape[0])
                state.layer_inputs = [tensor[samples] for tensor in layer_inputs]
        for state, gradient in zip(states, grad_output.tensor_split(len(states)), strict=True):
            state.grad_hidden = gradient
        return states

    def _units_of_layer(
        self,
        context: CallContext,
        states: Sequence[NanobatchState],
        layer: int,
        direction: Direction,
        *,
        recompute: bool = False,
    ) -> Iterator[Unit]:
        for layout in block_parts(self._stack.shape.cp, direction):
            for state in states:
                yield build_unit(context, layout, layer, state, recompute=recompute)

    def _executor(self, direction: Direction) -> PartitionExecutor:
        return PartitionExecutor(
            self._stack.settings(direction),
            direction,
            cp=self._stack.shape.cp,
            tp=self._stack.shape.tp,
            trace=self._stack.trace,
        )


class _Autocast:
    """The autocast state of the forward, to be restored in the backward's recompute."""

    def __init__(self) -> None:
        self._enabled = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in ("cpu", "cuda")
        }

    def restored(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return a context in that state.

        Cast weights are not cached: a cached cast would tie graphs together that are driven apart.
        """
        enabled, dtype = self._enabled[device.type]
        context: AbstractContextManager[Any] = torch.autocast(
            device.type, dtype=dtype, enabled=enabled, cache_enabled=False
        )
        return context


class _StackFunction(torch.autograd.Function):
    """Differentiable in the hidden states and the parameters."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, call: StackCall, *parameters: Tensor) -> Tensor:
        """Run the forward instruction."""
        output = call.forward(hidden, parameters)
        ctx.call = call
        ctx.save_for_backward(*parameters)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Run the backward instruction."""
        grad_input, gradients = ctx.call.backward(grad_output.contiguous(), ctx.saved_tensors)
        return (grad_input, None, *gradients)
