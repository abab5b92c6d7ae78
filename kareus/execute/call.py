"""One forward of a stage's blocks and the backward that belongs to it.

All state of a microbatch is here, so any number of them may be in flight.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kareus.core.partition import Direction, Execution
from kareus.core.workload import Recompute
from kareus.errors import ConfigError
from kareus.execute.block import weight_specs
from kareus.execute.dropout import Dropout
from kareus.execute.layout import block_parts
from kareus.execute.nanobatch import PartitionExecutor
from kareus.execute.sequence import local_chunks
from kareus.execute.state import CallContext, NanobatchState
from kareus.execute.subgraph import Gradients, Weight
from kareus.execute.trace import EventKind
from kareus.execute.units import Unit, build_unit, close_backward, close_forward
from kareus.workload.partitions import NUM_NANOBATCHES

if TYPE_CHECKING:
    from kareus.execute.engine import BlockStack


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
        stack: "BlockStack",
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
