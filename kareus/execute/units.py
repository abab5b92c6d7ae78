"""The parts of a block as units: slots to run one after the other, and the collective due then.

Forward of a part: residual add and norm, first linear, ..., last linear, then the collective.
Backward: gradient of the norm of the part *above* and of the residual add, last linear, ..., first
linear, then the all-reduce of the gradient of the first linear's input. The reduction sits between
the first linear and the norm, so a part's norm is differentiated at the head of the next unit of
its nanobatch: that is what `norm_0` means in backward partitions.

The residual stream is kept outside autograd: h <- h + dropout(r) forward, and backward the gradient
of h goes on unchanged while that of r is dropped likewise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kareus.core.partition import CollectiveKind
from kareus.execute.block import (
    BlockShape,
    RotaryTable,
    activation,
    attention,
    attention_of_chunks,
    norm,
    split_heads,
)
from kareus.execute.layout import PartLayout
from kareus.execute.parallel import CollectiveCall
from kareus.execute.sequence import local_chunks, to_rank_order, to_sequence_order
from kareus.execute.state import CallContext, NanobatchState
from kareus.execute.subgraph import Operator, Witness, run_operator
from kareus.workload.blocks import Part

_SEQUENCE_DIM = 3  # of (2, b, m, s, d)


Slot = Callable[[Witness | None], None]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A part of one layer of one nanobatch.

    Attributes:
        layout: The part.
        layer: Layer of the stage.
        state: The nanobatch.
        recompute: Whether it recomputes a forward inside a backward.
        slots: What its slots do, in the order of `layout.slots`; each calls the witness, if
            given, when it starts.
        finish: Returns the collective due after it; None where its group is a single rank.
    """

    layout: PartLayout
    layer: int
    state: NanobatchState
    recompute: bool
    slots: tuple[Slot, ...]
    finish: Callable[[], CollectiveCall | None]


def build_unit(
    context: CallContext,
    layout: PartLayout,
    layer: int,
    state: NanobatchState,
    *,
    recompute: bool = False,
) -> Unit:
    """Return the unit of a part of a layer for a nanobatch, ready to run from its state."""
    builder = _Builder(context, layer, state)
    slots, finish = builder.part(layout.part)
    assert len(slots) == len(layout.slots), "a part's slots and their names go together"
    return Unit(
        layout=layout,
        layer=layer,
        state=state,
        recompute=recompute,
        slots=slots,
        finish=finish,
    )


def close_forward(context: CallContext, state: NanobatchState, *, layer: int, out: Tensor) -> None:
    """Write the output of the last layer to `out`: the residual add after the last all-reduce."""
    assert state.reduced is not None, "the last part's output was not reduced"
    site = _site(context, layer, Part.FWD_MLP)
    torch.add(
        state.hidden,
        context.dropout.apply(state.reduced, site=site, first_sample=state.first_sample),
        out=out,
    )
    state.reduced = None


def close_backward(context: CallContext, state: NanobatchState) -> Tensor:
    """Return the gradient of the stage's input: the first norm's gradient, and the residual's."""
    _close_norm(context, state, None)
    assert state.grad_hidden is not None, "backward ran without an output gradient"
    return state.grad_hidden


class _Builder:
    """Makes the slots of one layer for one nanobatch."""

    def __init__(self, context: CallContext, layer: int, state: NanobatchState) -> None:
        self._context = context
        self._layer = layer
        self._state = state
        self._weights = context.weights[layer]

    def part(self, part: Part) -> tuple[tuple[Slot, ...], Callable[[], CollectiveCall | None]]:
        """Slots and collective of a part."""
        run, back = self._run, self._back
        match part:
            case Part.FWD_ATTN:
                head = (self._add_and_norm("attn_norm"), run("qkv"), run("rope"))
                return (*head, run("attn"), run("proj")), self._reduce_output
            case Part.FWD_QKV:
                return (
                    (self._add_and_norm("attn_norm"), run("qkv"), run("rope")),
                    self._gather_kv,
                )
            case Part.FWD_AO:
                return (run("attn"), run("proj")), self._reduce_output
            case Part.FWD_MLP:
                head = (self._add_and_norm("mlp_norm"), run("fc1"), run("activation"))
                return (*head, run("fc2")), self._reduce_output
            case Part.BWD_MLP:
                head = (self._norm_gradient(part), back("fc2"), back("activation"))
                return (*head, back("fc1", closes="mlp_norm")), self._reduce_gradient
            case Part.BWD_ATTN:
                head = (self._norm_gradient(part), back("proj"), back("attn"))
                tail = (back("rope"), back("qkv", closes="attn_norm"))
                return (*head, *tail), self._reduce_gradient
            case Part.BWD_O:
                return (self._norm_gradient(part), back("proj")), self._regather_kv
            case Part.BWD_A:
                return (back("attn"),), self._scatter_kv_gradient
            case Part.BWD_QKV:
                return (back("rope"), back("qkv", closes="attn_norm")), self._reduce_gradient

    # -- forward slots

    def _add_and_norm(self, name: str) -> Slot:
        """Residual add of the part before, then the norm."""
        before = Part.FWD_MLP if name == "attn_norm" else Part.FWD_ATTN
        layer = self._layer - 1 if name == "attn_norm" else self._layer

        def slot(witness: Witness | None) -> None:
            if witness is not None:
                witness()
            context, state = self._context, self._state
            if state.reduced is not None:
                state.hidden = state.hidden + context.dropout.apply(
                    state.reduced,
                    site=_site(context, layer, before),
                    first_sample=state.first_sample,
                )
                state.reduced = None
            if name == "attn_norm" and context.keep_inputs:
                state.layer_inputs.append(state.hidden)
            state.values = (state.hidden,)
            self._call(name)

        return slot

    def _run(self, name: str) -> Slot:
        """The operator of that name on the last slot's values."""

        def slot(witness: Witness | None) -> None:
            if witness is not None:
                witness()
            self._call(name)

        return slot

    def _call(self, name: str) -> None:
        context, state = self._context, self._state
        operator, weight_names = self._operator(name)
        weights = tuple(self._weights[w] for w in weight_names if w in self._weights)
        state.values, graph = run_operator(operator, state.values, weights, record=context.record)
        if graph is None:
            return
        record = state.record(self._layer)
        record.graphs[name] = graph
        if name == "attn" and context.shape.cp > 1 and not context.retain:
            record.full_kv = graph.inputs[1]
            record.full_kv.untyped_storage().resize_(0)

    def _operator(self, name: str) -> tuple[Operator, tuple[str, ...]]:
        """An operator and the names of its weights."""
        shape = self._context.shape
        match name:
            case "attn_norm" | "mlp_norm":
                return partial(_norm, eps=shape.norm_eps), (name,)
            case "qkv" | "proj" | "fc1" | "fc2":
                return _linear, (name,)
            case "rope":
                return (
                    partial(_rope, shape=shape, rotary=self._context.rotary),
                    ("q_norm", "k_norm"),
                )
            case "attn" if shape.cp > 1:
                chunks = local_chunks(shape.cp, shape.cp_rank)
                return partial(_attention_of_chunks, chunks=chunks), ()
            case "attn":
                return _attention, ()
            case "activation":
                return partial(_activation, gated=shape.model.gated_mlp), ()
            case _:
                raise AssertionError(f"no operator {name!r}")

    # -- backward slots

    def _norm_gradient(self, part: Part) -> Slot:
        """Gradient of the norm above, and of this part's output through the residual add."""

        def slot(witness: Witness | None) -> None:
            context, state = self._context, self._state
            _close_norm(context, state, witness)
            assert state.grad_hidden is not None, "backward ran without an output gradient"
            forward = Part.FWD_MLP if part is Part.BWD_MLP else Part.FWD_ATTN
            state.grads = (
                context.dropout.apply(
                    state.grad_hidden,
                    site=_site(context, self._layer, forward),
                    first_sample=state.first_sample,
                ),
            )

        return slot

    def _back(self, name: str, *, closes: str | None = None) -> Slot:
        """Gradient of the operator of that name; `closes` names the norm before it, if any."""

        def slot(witness: Witness | None) -> None:
            context, state = self._context, self._state
            graphs = state.record(self._layer).graphs
            state.grads = graphs[name].backward(
                state.grads, context.gradients, retain=context.retain, witness=witness
            )
            if closes is not None:
                state.open_norm = graphs[closes]

        return slot

    # -- collectives

    def _reduce_output(self) -> CollectiveCall | None:
        """All-reduce of the part's output, still to be added to the residual stream."""
        (output,) = self._state.values

        def done() -> None:
            self._state.reduced = output

        return self._collective(CollectiveKind.ALL_REDUCE, output, output, done)

    def _reduce_gradient(self) -> CollectiveCall | None:
        """All-reduce of the gradient of the first linear's input."""
        (gradient,) = self._state.grads

        def done() -> None:
            self._state.grads = (gradient,)

        return self._collective(CollectiveKind.ALL_REDUCE, gradient, gradient, done)

    def _gather_kv(self) -> CollectiveCall | None:
        """All-gather of keys and values along the sequence."""
        queries, local_kv = self._state.values
        cp = self._context.shape.cp
        gathered = local_kv.new_empty((cp, *local_kv.shape))
        if self._context.record:
            self._state.record(self._layer).local_kv = local_kv

        def done() -> None:
            full = to_sequence_order(gathered, dim=_SEQUENCE_DIM)
            self._state.values = (queries, full)

        return self._collective(CollectiveKind.ALL_GATHER, local_kv, gathered, done)

    def _regather_kv(self) -> CollectiveCall | None:
        """All-gather of keys and values again, into the storage that attention's graph holds."""
        record = self._state.record(self._layer)
        local_kv, full_kv = record.local_kv, record.full_kv
        assert local_kv is not None, "forward kept no keys and values"
        gathered = local_kv.new_empty((self._context.shape.cp, *local_kv.shape))

        def done() -> None:
            if full_kv is None:  # retained: attention's graph still has them
                to_sequence_order(gathered, dim=_SEQUENCE_DIM)
                return
            full_kv.untyped_storage().resize_(full_kv.numel() * full_kv.element_size())
            # `.data` does not count as a change of the tensor: the values are the same as before.
            to_sequence_order(gathered, dim=_SEQUENCE_DIM, out=full_kv.data)

        return self._collective(CollectiveKind.ALL_GATHER, local_kv, gathered, done)

    def _scatter_kv_gradient(self) -> CollectiveCall | None:
        """Reduce-scatter of the gradients of keys and values along the sequence."""
        query_gradient, full_gradient = self._state.grads
        shards = to_rank_order(full_gradient, dim=_SEQUENCE_DIM, cp=self._context.shape.cp)
        local = torch.empty_like(shards[0])

        def done() -> None:
            self._state.grads = (query_gradient, local)

        return self._collective(CollectiveKind.REDUCE_SCATTER, shards, local, done)

    def _collective(
        self, kind: CollectiveKind, source: Tensor, destination: Tensor, done: Callable[[], None]
    ) -> CollectiveCall | None:
        groups = self._context.groups
        communicator = groups.tp if kind is CollectiveKind.ALL_REDUCE else groups.cp
        if communicator.size == 1:
            done()
            return None
        return CollectiveCall(
            kind,
            communicator,
            source,
            destination,
            layer=self._layer,
            nanobatch=self._state.nanobatch,
            on_done=done,
        )


def _close_norm(context: CallContext, state: NanobatchState, witness: Witness | None) -> None:
    """Differentiate the norm whose output's gradient is reduced, if there is one."""
    if state.open_norm is None:
        if witness is not None:
            witness()
        return
    (gradient,) = state.open_norm.backward(
        state.grads, context.gradients, retain=context.retain, witness=witness
    )
    assert state.grad_hidden is not None, "backward ran without an output gradient"
    state.grad_hidden = state.grad_hidden + gradient
    state.open_norm = None


def _site(context: CallContext, layer: int, part: Part) -> int:
    """Number of the dropout after a forward part, unique in the model."""
    return 2 * (context.first_layer + layer) + (1 if part is Part.FWD_MLP else 0)


def _linear(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (F.linear(x, weight),)


def _norm(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, ...]:
    return (norm(x, weight, eps=eps),)


def _rope(
    qkv: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    *,
    shape: BlockShape,
    rotary: RotaryTable,
) -> tuple[Tensor, ...]:
    """Heads; with context parallelism keys and values in one tensor, to be gathered together."""
    q, k, v = split_heads(qkv, q_norm, k_norm, shape=shape, rotary=rotary)
    return (q, torch.stack((k, v))) if shape.cp > 1 else (q, k, v)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return (attention(q, k, v),)


def _attention_of_chunks(q: Tensor, kv: Tensor, *, chunks: tuple[int, ...]) -> tuple[Tensor, ...]:
    return (attention_of_chunks(q, kv, chunks=chunks),)


def _activation(x: Tensor, *, gated: bool) -> tuple[Tensor, ...]:
    return (activation(x, gated=gated),)
