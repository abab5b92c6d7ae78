"""Where a nanobatch stands, and what all units of a pass share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from kareus.execute.block import BlockShape, RotaryTable
from kareus.execute.dropout import Dropout
from kareus.execute.parallel import ParallelGroups
from kareus.execute.subgraph import Gradients, Subgraph, Weight


@dataclass(kw_only=True)
class LayerRecord:
    """What a nanobatch keeps of a layer for its backward.

    Attributes:
        graphs: Recorded graphs by operator.
        local_kv: This rank's keys and values (context parallelism); gathered again in backward.
        full_kv: The gathered ones that attention's graph holds; its storage is freed in between.
    """

    graphs: dict[str, Subgraph] = field(default_factory=dict)
    local_kv: Tensor | None = None
    full_kv: Tensor | None = None


@dataclass(kw_only=True)
class NanobatchState:
    """Where a nanobatch (or an unsplit microbatch) stands.

    Attributes:
        nanobatch: 0 or 1; None for an unsplit microbatch.
        first_sample: Index of its first sample in the microbatch.
        hidden: Residual stream, shape (b, s, h).
        reduced: Reduced output of the last part, not yet added to it; None if there is none.
        values: What the next forward slot takes.
        grad_hidden: Gradient of the residual stream.
        grads: What the next backward slot takes.
        open_norm: Norm whose input's gradient is reduced, to be differentiated next.
        layer_inputs: Residual stream at each layer's head, for recomputing.
        records: What is kept for backward, by layer of the stage.
    """

    nanobatch: int | None
    first_sample: int
    hidden: Tensor
    reduced: Tensor | None = None
    values: tuple[Tensor, ...] = ()
    grad_hidden: Tensor | None = None
    grads: tuple[Tensor, ...] = ()
    open_norm: Subgraph | None = None
    layer_inputs: list[Tensor] = field(default_factory=list)
    records: dict[int, LayerRecord] = field(default_factory=dict)

    def record(self, layer: int) -> LayerRecord:
        """Return the record of a layer, empty at first."""
        return self.records.setdefault(layer, LayerRecord())


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """What all units of one pass of a call share.

    Attributes:
        shape: The rank's share of a block.
        first_layer: Index in the model of the stage's first layer.
        rotary: Rotary table of the rank's positions.
        groups: Groups of ranks.
        weights: Per layer of the stage, the weights by name.
        dropout: Dropout of the call.
        gradients: Where the weights' gradients go.
        record: Whether forward units record graphs.
        keep_inputs: Whether forward units keep each layer's input.
        retain: Whether graphs and gathered tensors survive, so that a unit can be run again.
    """

    shape: BlockShape
    first_layer: int
    rotary: RotaryTable
    groups: ParallelGroups
    weights: tuple[Mapping[str, Weight], ...]
    dropout: Dropout
    gradients: Gradients
    record: bool
    keep_inputs: bool
    retain: bool = False
