"""How context parallelism lays a sequence over its ranks.

The sequence is cut into 2 x cp equal chunks; rank r holds chunks r and 2 x cp - 1 - r, so that
every rank has the same share of the causal work. Legend: `C` tokens per chunk, `S` = 2 cp C tokens
in all, s = 2 C tokens on a rank (S where cp = 1, in one chunk).
"""

import torch
from torch import Tensor

from kareus.errors import ConfigError


def num_chunks(cp: int) -> int:
    """Return the number of chunks a sequence is cut into."""
    return 2 * cp if cp > 1 else 1


def local_chunks(cp: int, rank: int) -> tuple[int, ...]:
    """Return the chunks a rank holds, in the order it holds them."""
    return (rank, 2 * cp - 1 - rank) if cp > 1 else (0,)


def check_sequence(seq_len: int, cp: int) -> None:
    """Refuse a sequence that cannot be shared evenly.

    Raises:
        ConfigError: If it is not a multiple of the number of chunks.
    """
    if seq_len < 1 or seq_len % num_chunks(cp):
        raise ConfigError(
            f"sequence length {seq_len} cannot be shared by cp {cp}: "
            f"use a multiple of 2 x cp = {num_chunks(cp)}"
        )


def shard_sequence(full: Tensor, *, dim: int, cp: int, rank: int) -> Tensor:
    """Return a rank's tokens of a tensor over the whole sequence (S along `dim`), contiguous.

    Raises:
        ConfigError: If the sequence is not a multiple of the number of chunks.
    """
    if cp == 1:
        return full.contiguous()
    check_sequence(full.shape[dim], cp)
    chunks = full.chunk(num_chunks(cp), dim)
    return torch.cat([chunks[chunk] for chunk in local_chunks(cp, rank)], dim)


def local_positions(seq_len: int, *, cp: int, rank: int) -> Tensor:
    """Return the positions of a rank's tokens in the sequence, shape (s,), int64."""
    return shard_sequence(torch.arange(seq_len), dim=0, cp=cp, rank=rank)


def to_sequence_order(gathered: Tensor, *, dim: int, out: Tensor | None = None) -> Tensor:
    """Order gathered shards by position.

    Args:
        gathered: Shape (cp, ...) with s tokens along `dim` of the shard (not counting cp).
        dim: The sequence dimension of a shard.
        out: Where to write; a new tensor if None.

    Returns:
        Shape (...) with S tokens along `dim`.
    """
    early, late = gathered.chunk(2, dim + 1)
    pieces = [*early.unbind(0), *reversed(late.unbind(0))]
    return torch.cat(pieces, dim) if out is None else torch.cat(pieces, dim, out=out)


def to_rank_order(full: Tensor, *, dim: int, cp: int) -> Tensor:
    """Undo `to_sequence_order`: from S tokens along `dim` to (cp, ...) shards, contiguous."""
    chunks = full.chunk(num_chunks(cp), dim)
    return torch.stack(
        [torch.cat([chunks[c] for c in local_chunks(cp, rank)], dim) for rank in range(cp)]
    )
