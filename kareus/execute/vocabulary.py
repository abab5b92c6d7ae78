"""Embedding, head and loss with the vocabulary split over the tensor-parallel ranks.

Each rank holds a contiguous range of rows (uneven where tp does not divide the vocabulary: no
padding). The embedding looks up its own tokens and all-reduces; the head yields the logits of its
own rows and all-reduces the gradient of its input; the cross entropy combines three numbers per
token (maximum, sum of exponentials, target's logit) and never gathers logits. A head that is not
split would repeat the model's largest product on every rank.

These collectives are exposed and run in order with the computation: they are work outside
partitions. Legend: `b` sequences, `s` tokens on this rank, `V` vocabulary, `v` rows on this rank.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from kareus.errors import ConfigError
from kareus.execute.block import INIT_STD, norm
from kareus.execute.dropout import mix_seed
from kareus.execute.parallel import Communicator, ParallelGroups

IGNORED_TARGET = -100


def vocabulary_range(vocab_size: int, *, tp: int, rank: int) -> range:
    """Return the rows of the vocabulary a rank holds.

    Raises:
        ConfigError: If there are fewer rows than ranks.
    """
    if vocab_size < tp:
        raise ConfigError(
            f"a vocabulary of {vocab_size} cannot be split over tp {tp}: use a smaller tp"
        )
    each, rest = divmod(vocab_size, tp)
    start = rank * each + min(rank, rest)
    return range(start, start + each + (1 if rank < rest else 0))


def _initial_rows(
    name: str, vocab_size: int, hidden_size: int, rows: range, *, seed: int, device: torch.device
) -> Tensor:
    """A rank's rows of a full matrix drawn from (seed, name), fp32."""
    generator = torch.Generator(device=device)
    generator.manual_seed(mix_seed(seed, int.from_bytes(name.encode(), "big")))
    full = torch.randn((vocab_size, hidden_size), generator=generator, device=device) * INIT_STD
    return full[rows.start : rows.stop].clone()


class Embedding(nn.Module):
    """Token embedding; learned positions for models without rotary ones.

    Args:
        vocab_size: Rows of the whole vocabulary.
        hidden_size: Width.
        positions: Positions of this rank's tokens, shape (s,), and number of all, if learned.
        groups: Groups of ranks.
        seed: Seed of the initial weights.
        dtype: Type of the weights.
        device: Where they live.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        positions: tuple[Tensor, int] | None,
        groups: ParallelGroups,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self._tp = groups.tp
        self._rows = vocabulary_range(vocab_size, tp=groups.tp.size, rank=groups.tp.rank)
        self.weight = nn.Parameter(
            _initial_rows(
                "embedding", vocab_size, hidden_size, self._rows, seed=seed, device=device
            ).to(dtype)
        )
        self._positions: Tensor | None = None
        self.position_weight: nn.Parameter | None = None
        if positions is not None:
            self._positions, num_positions = positions[0].to(device), positions[1]
            every = range(num_positions)
            self.position_weight = nn.Parameter(
                _initial_rows(
                    "positions", num_positions, hidden_size, every, seed=seed, device=device
                ).to(dtype)
            )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return hidden states of shape (b, s, h) for tokens of shape (b, s)."""
        hidden: Tensor = _Lookup.apply(  # type: ignore[no-untyped-call]
            self.weight, tokens, self._rows, self._tp
        )
        if self.position_weight is not None and self._positions is not None:
            hidden = hidden + self.position_weight[self._positions]
        return hidden


class Head(nn.Module):
    """Final norm and the linear onto this rank's share of the vocabulary.

    Args:
        vocab_size: Rows of the whole vocabulary.
        hidden_size: Width.
        norm_eps: Added to the mean square in the norm.
        groups: Groups of ranks.
        seed: Seed of the initial weights.
        dtype: Type of the weights.
        device: Where they live.
        tied: Embedding whose weight it shares; with `copy_of_embedding` a copy on another stage.
        copy_of_embedding: Whether to start from the embedding's values (tied over stages).
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        norm_eps: float,
        groups: ParallelGroups,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        tied: Embedding | None = None,
        copy_of_embedding: bool = False,
    ) -> None:
        super().__init__()
        self._tp = groups.tp
        self._norm_eps = norm_eps
        rows = vocabulary_range(vocab_size, tp=groups.tp.size, rank=groups.tp.rank)
        self.norm = nn.Parameter(torch.ones(hidden_size, dtype=dtype, device=device))
        if tied is not None:
            self.weight = tied.weight
        else:
            name = "embedding" if copy_of_embedding else "head"
            self.weight = nn.Parameter(
                _initial_rows(name, vocab_size, hidden_size, rows, seed=seed, device=device).to(
                    dtype
                )
            )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return this rank's logits, shape (b, s, v)."""
        normed = norm(hidden, self.norm, eps=self._norm_eps)
        shared: Tensor = _ReduceGradient.apply(normed, self._tp)  # type: ignore[no-untyped-call]
        return F.linear(shared, self.weight)


class CrossEntropy(nn.Module):
    """Mean cross entropy of a microbatch, from logits split over the vocabulary.

    The mean is over all tokens of the microbatch, so with context parallelism each rank returns its
    own tokens' share and the loss is the sum over the context-parallel ranks; gradients are then
    summed over them as well. Computed in fp32 (fp64 for fp64 logits).

    Args:
        vocab_size: Rows of the whole vocabulary.
        groups: Groups of ranks.
    """

    def __init__(self, vocab_size: int, groups: ParallelGroups) -> None:
        super().__init__()
        self._tp = groups.tp
        self._cp_size = groups.cp.size
        self._rows = vocabulary_range(vocab_size, tp=groups.tp.size, rank=groups.tp.rank)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return this rank's share of the mean, a scalar.

        Args:
            logits: Shape (b, s, v).
            targets: Token ids, shape (b, s); those equal to `IGNORED_TARGET` have no loss (but are
                counted among the tokens).
        """
        losses: Tensor = _TokenLosses.apply(  # type: ignore[no-untyped-call]
            logits, targets, self._rows, self._tp
        )
        return losses.sum() / (targets.numel() * self._cp_size)


class _Lookup(torch.autograd.Function):
    """Rows of a split embedding, summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, rows: range, tp: Communicator) -> Tensor:
        """Look up own tokens, zero elsewhere, and all-reduce."""
        mine = (tokens >= rows.start) & (tokens < rows.stop)
        local = (tokens - rows.start).where(mine, 0)
        ctx.save_for_backward(local, mine)
        ctx.num_rows = weight.shape[0]
        return tp.reduce_now(F.embedding(local, weight) * mine.unsqueeze(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Add up the gradients of own tokens."""
        local, mine = ctx.saved_tensors
        result = gradient.new_zeros((ctx.num_rows, gradient.shape[-1]))
        result.index_add_(0, local.flatten(), (gradient * mine.unsqueeze(-1)).flatten(0, -2))
        return result, None, None, None


class _ReduceGradient(torch.autograd.Function):
    """The identity, whose gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, tp: Communicator) -> Tensor:
        """Return the tensor."""
        ctx.tp = tp
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """All-reduce the gradient."""
        return ctx.tp.reduce_now(gradient.clone(memory_format=torch.contiguous_format)), None


class _TokenLosses(torch.autograd.Function):
    """Cross entropy of every token, logits split over the vocabulary."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, rows: range, tp: Communicator) -> Tensor:
        """Return losses of shape (b, s)."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        highest = tp.reduce_now(scores.amax(-1), dist.ReduceOp.MAX)
        mine = (targets >= rows.start) & (targets < rows.stop)
        local = (targets - rows.start).where(mine, 0)
        target_score = scores.gather(-1, local.unsqueeze(-1)).squeeze(-1).where(mine, 0.0)
        exponentials = scores.sub_(highest.unsqueeze(-1)).exp_()
        total, target_score = tp.reduce_now(
            torch.stack((exponentials.sum(-1), target_score))
        ).unbind(0)
        probabilities = exponentials.div_(total.unsqueeze(-1))
        counted = targets != IGNORED_TARGET
        ctx.save_for_backward(probabilities, local, mine, counted)
        ctx.dtype = logits.dtype
        return (total.log() + highest - target_score).where(counted, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return (probabilities - one-hot target) x gradient."""
        probabilities, local, mine, counted = ctx.saved_tensors
        scale = gradient.where(counted, 0.0)
        result = probabilities * scale.unsqueeze(-1)
        result.scatter_add_(-1, local.unsqueeze(-1), -scale.where(mine, 0.0).unsqueeze(-1))
        return result.to(ctx.dtype), None, None, None
