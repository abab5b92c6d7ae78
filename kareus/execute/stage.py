"""A pipeline stage: embedding (first), blocks, final norm and head (last).

It is an ordinary module, made for `torch.distributed.pipelining`: hidden states or tokens in, one
tensor out, no state of a microbatch on the module. What the next instruction is told is set with
`configure`, before `forward_one_chunk` and `backward_one_chunk`; give `PipelineStage` the metadata
of `pipeline_metadata`, so that it need not try the stage out on uninitialised tensors.

Initial weights depend on (seed, layer, name) only, not on tp, cp or pp.
"""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kareus.core.workload import Workload
from kareus.errors import ConfigError
from kareus.execute.block import weight_specs
from kareus.execute.dropout import mix_seed
from kareus.execute.engine import BlockStack
from kareus.execute.parallel import ParallelGroups
from kareus.execute.sequence import local_positions, shard_sequence
from kareus.execute.settings import InstructionSettings
from kareus.execute.trace import Trace
from kareus.execute.vocabulary import CrossEntropy, Embedding, Head


class Stage(nn.Module):
    """One stage of a workload on this rank.

    Args:
        workload: The workload.
        stage_index: Which stage, from 0.
        groups: Groups of ranks of this stage.
        device: This rank's device.
        dtype: Type of the parameters.
        dropout_rate: Dropout after attention and MLP.
        seed: Seed of the initial weights.
        dropout_seed: Seed of dropout, for instance another one per data-parallel replica; None for
            that of the weights.

    Raises:
        ConfigError: If there is no such stage, or tp or cp do not divide what they split.
    """

    def __init__(
        self,
        workload: Workload,
        stage_index: int,
        *,
        groups: ParallelGroups,
        device: torch.device,
        dtype: torch.dtype,
        dropout_rate: float = 0.0,
        seed: int = 0,
        dropout_seed: int | None = None,
    ) -> None:
        super().__init__()
        num_stages = workload.parallelism.pp
        if not 0 <= stage_index < num_stages or len(workload.stage_layers) != num_stages:
            raise ConfigError(
                f"stage {stage_index} of {len(workload.stage_layers)} stages with layers does not "
                f"fit pp {num_stages}: use 0 to {num_stages - 1} and one entry of layers per stage"
            )
        self.workload = workload
        self.stage_index = stage_index
        self.first = stage_index == 0
        self.last = stage_index == num_stages - 1
        self.groups = groups
        self.dtype = dtype
        self._base_seed = seed if dropout_seed is None else dropout_seed
        self._dropout_seed = self._base_seed
        self._microbatches = itertools.count()
        model = workload.model
        self.blocks = BlockStack(
            workload,
            num_layers=workload.stage_layers[stage_index],
            first_layer=sum(workload.stage_layers[:stage_index]),
            groups=groups,
            device=device,
            dtype=dtype,
            dropout_rate=dropout_rate,
            seed=seed,
        )
        shape = self.blocks.shape
        self.embedding: Embedding | None = None
        self.head: Head | None = None
        if self.first:
            positions = None
            if not shape.rotary:
                local = local_positions(shape.seq_len, cp=shape.cp, rank=shape.cp_rank)
                positions = (local, shape.seq_len)
            self.embedding = Embedding(
                model.vocab_size,
                model.hidden_size,
                positions=positions,
                groups=groups,
                seed=seed,
                dtype=dtype,
                device=device,
            )
        if self.last:
            self.head = Head(
                model.vocab_size,
                model.hidden_size,
                norm_eps=shape.norm_eps,
                groups=groups,
                seed=seed,
                dtype=dtype,
                device=device,
                tied=self.embedding if model.tied_embeddings else None,
                copy_of_embedding=model.tied_embeddings and not self.first,
            )
            self.loss = CrossEntropy(model.vocab_size, groups)

    @property
    def trace(self) -> Trace | None:
        """Where the blocks record what they do; None (the default) for nowhere."""
        return self.blocks.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self.blocks.trace = trace

    def configure(
        self,
        *,
        forward: InstructionSettings | None = None,
        backward: InstructionSettings | None = None,
    ) -> None:
        """Set what the instructions that start from now on are told; see `BlockStack.configure`."""
        self.blocks.configure(forward=forward, backward=backward)

    def begin_step(self, step: int) -> None:
        """Start the dropout of a training step: its masks are a function of the step's number.

        A run resumed at a step thus continues as the unbroken run would.
        """
        self._dropout_seed = mix_seed(self._base_seed, step)
        self._microbatches = itertools.count()

    def forward(self, inputs: Tensor) -> Tensor:
        """Run a microbatch.

        Args:
            inputs: This rank's tokens, shape (b, s) int64, on the first stage (see
                `shard_tokens`); else hidden states, shape (b, s, h).

        Returns:
            Hidden states; on the last stage this rank's logits, shape (b, s, v), for `loss`.
        """
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        seed = mix_seed(self._dropout_seed, next(self._microbatches))
        output: Tensor = self.blocks(hidden, dropout_seed=seed)
        return output if self.head is None else self.head(output)

    def shard_tokens(self, tokens: Tensor) -> Tensor:
        """Return this rank's tokens (or targets) of whole sequences, shape (b, S) -> (b, s)."""
        return shard_sequence(tokens, dim=1, cp=self.groups.cp.size, rank=self.groups.cp.rank)

    def pipeline_metadata(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return `input_args` and `output_args` for `PipelineStage`: meta tensors of a microbatch.

        Without autocast, since hidden states then have the parameters' type.
        """
        tokens = (self.workload.microbatch_size, self.blocks.shape.local_seq_len)

        def meta(*size: int) -> Tensor:
            return torch.empty(size, dtype=self.dtype, device="meta", requires_grad=True)

        hidden_size = self.workload.model.hidden_size
        output_size = hidden_size if self.head is None else self.head.weight.shape[0]
        inputs = meta(*tokens, hidden_size)
        if self.first:
            inputs = torch.empty(tokens, dtype=torch.int64, device="meta")
        return (inputs,), (meta(*tokens, output_size),)

    def reduce_gradients(
        self,
        *,
        dp: dist.ProcessGroup | None = None,
        tied: dist.ProcessGroup | None = None,
    ) -> None:
        """Complete the gradients in `.grad`, once per step, before clipping and the optimizer.

        Sums over context-parallel ranks (each has its tokens' share), averages over data-parallel
        ones, sums those of q/k norms over tensor-parallel ranks (each has its heads' share), and
        those of a tied embedding over the first and the last stage. One collective per group and
        type.

        Args:
            dp: Data-parallel ranks; None without, or where DDP or FSDP reduces.
            tied: This rank's counterparts on the first and the last stage; None where nothing is
                tied or pp is 1.

        Effects: Every rank of the groups must call it.
        """
        parameters = list(self.parameters())
        cp, tp = self.groups.cp, self.groups.tp
        if cp.size > 1:
            _reduce_together(parameters, cp.reduce_now)
        if dp is not None:
            _reduce_together(parameters, _sum_over(dp, scale=1 / dist.get_world_size(dp)))
        if tp.size > 1:
            _reduce_together(
                [
                    block.get_parameter(spec.name)
                    for block in self.blocks.blocks
                    for spec in weight_specs(self.workload.model)
                    if spec.partial_gradient
                ],
                tp.reduce_now,
            )
        vocabulary = self.embedding if self.first else self.head
        if tied is not None and vocabulary is not None:
            _reduce_together([vocabulary.weight], _sum_over(tied))


def _sum_over(group: dist.ProcessGroup, *, scale: float = 1.0) -> Callable[[Tensor], object]:
    """A function that sums a tensor over a group in place, and scales it."""

    def reduce(tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=group)
        tensor.mul_(scale)

    return reduce


def _reduce_together(parameters: Sequence[Tensor], reduce: Callable[[Tensor], object]) -> None:
    """Apply a reduction to the gradients of parameters, in one buffer per type."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    for dtype in sorted({g.dtype for g in gradients}, key=str):
        of_type = [g for g in gradients if g.dtype is dtype]
        buffer = torch.cat([g.flatten() for g in of_type])
        reduce(buffer)
        for gradient, reduced in zip(
            of_type, torch.split_with_sizes(buffer, [g.numel() for g in of_type]), strict=True
        ):
            gradient.copy_(reduced.view_as(gradient))
