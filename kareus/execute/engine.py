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

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kareus.core.partition import Direction
from kareus.core.workload import Workload
from kareus.errors import ConfigError
from kareus.execute.block import Block, BlockShape, rotary_table
from kareus.execute.call import StackCall
from kareus.execute.parallel import ParallelGroups
from kareus.execute.settings import InstructionSettings, check_settings
from kareus.execute.trace import Trace


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
