"""One operator of a slot as an autograd graph of its own.

A part of the block is cut into these at every slot, detached at the cuts, so that the backward is
a sequence of calls between which a collective can be launched. Autograd's own order (by creation)
then has no say in when a launch happens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Operator = Callable[..., tuple[Tensor, ...]]
Witness = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of the call.

    Attributes:
        position: Its position among the parameters of the call; gradients are kept by it.
        tensor: A leaf that shares the parameter's storage.
    """

    position: int
    tensor: Tensor


class Gradients:
    """Gradients of a call's parameters, by position; None where there is none (yet)."""

    def __init__(self, num_parameters: int) -> None:
        self.values: list[Tensor | None] = [None] * num_parameters

    def add(self, position: int, gradient: Tensor) -> None:
        """Add a gradient this store may keep and write to."""
        value = self.values[position]
        self.values[position] = gradient if value is None else value.add_(gradient)


class Subgraph:
    """The recorded graph of one operator, to be driven backward once."""

    def __init__(
        self, inputs: tuple[Tensor, ...], weights: tuple[Weight, ...], outputs: tuple[Tensor, ...]
    ) -> None:
        self._inputs = inputs
        self._weights = weights
        self._outputs = outputs

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The leaves the operator was given."""
        return self._inputs

    def backward(
        self,
        output_gradients: Sequence[Tensor],
        gradients: Gradients,
        *,
        retain: bool,
        witness: Witness | None,
    ) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs and add those of the weights.

        Args:
            output_gradients: One per output.
            gradients: Where the weights' gradients go.
            retain: Whether the graph can be driven again.
            witness: Called by autograd when it starts on the graph.
        """
        trained = [weight for weight in self._weights if weight.tensor.requires_grad]
        handles = []
        if witness is not None:
            nodes = {output.grad_fn for output in self._outputs} - {None}
            handles = [node.register_prehook(_pre_hook(witness)) for node in nodes if node]
        results = torch.autograd.grad(
            self._outputs,
            (*self._inputs, *(weight.tensor for weight in trained)),
            [
                gradient if gradient.dtype is output.dtype else gradient.to(output.dtype)
                for gradient, output in zip(output_gradients, self._outputs, strict=True)
            ],
            retain_graph=retain,
        )
        for handle in handles:
            handle.remove()
        num_inputs = len(self._inputs)
        for weight, gradient in zip(trained, results[num_inputs:], strict=True):
            gradients.add(weight.position, gradient)
        if not retain:
            self._inputs = self._weights = self._outputs = ()
        return results[:num_inputs]


def run_operator(
    operator: Operator,
    inputs: tuple[Tensor, ...],
    weights: tuple[Weight, ...],
    *,
    record: bool,
) -> tuple[tuple[Tensor, ...], Subgraph | None]:
    """Run an operator, as a graph of its own if it is to be recorded.

    Args:
        operator: Takes the inputs and then the weights.
        inputs: Its inputs.
        weights: Its weights.
        record: Whether a backward will follow.

    Returns:
        The outputs, detached, and the graph if recorded.
    """
    tensors = [weight.tensor for weight in weights]
    if not record:
        with torch.no_grad():
            return operator(*inputs, *tensors), None
    leaves = tuple(tensor.detach().requires_grad_() for tensor in inputs)
    with torch.enable_grad():
        outputs = operator(*leaves, *tensors)
    return tuple(output.detach() for output in outputs), Subgraph(leaves, weights, outputs)


def _pre_hook(witness: Witness) -> Callable[[tuple[Tensor, ...]], None]:
    """A node pre-hook that calls the witness and changes nothing."""

    def hook(_gradients: tuple[Tensor, ...]) -> None:
        witness()

    return hook
