"""Tokens to train on: a memory-mapped file, or synthetic ones that can be learnt.

A sequence is a function of (seed, its number) alone, and its number of (step, place in the global
batch). So the same steps train on the same tokens whatever tp, cp, pp and dp, and after a resume.

Legend: S tokens per sequence (one more is read, as the last target), M microbatches, b sequences
per microbatch, D data-parallel replicas.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from kareus.core.workload import Workload
from kareus.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_NUM_MOTIFS, _MOTIF_LENGTH = 64, 16


class TokenSource(Protocol):
    """Gives numbered sequences."""

    def sequence(self, number: int) -> NDArray[np.int64]:
        """Return a sequence, shape (S + 1,)."""


class SyntheticTokens:
    """Sequences pieced together from a few motifs, frequent ones more often.

    A model learns first which tokens occur at all, then how each motif goes on.

    Args:
        vocab_size: Tokens are below it.
        seq_len: S.
        seed: Another one, other motifs and sequences.
    """

    def __init__(self, *, vocab_size: int, seq_len: int, seed: int) -> None:
        self._length = seq_len + 1
        self._seed = seed
        generator = np.random.default_rng([seed, 0])
        weights = 1.0 / (1.0 + np.arange(_NUM_MOTIFS))
        self._weights = weights / weights.sum()
        self._motifs = generator.integers(vocab_size, size=(_NUM_MOTIFS, _MOTIF_LENGTH))

    def sequence(self, number: int) -> NDArray[np.int64]:
        """Return a sequence, shape (S + 1,)."""
        generator = np.random.default_rng([self._seed, 1, number])
        num_motifs = self._length // _MOTIF_LENGTH + 2
        chosen = generator.choice(_NUM_MOTIFS, size=num_motifs, p=self._weights)
        start = int(generator.integers(_MOTIF_LENGTH))
        tokens: NDArray[np.int64] = self._motifs[chosen].reshape(-1)[start : start + self._length]
        return tokens


class TokenFile:
    """Sequences of a file of tokens, each once per epoch in an order of the epoch's own.

    Args:
        path: A `.npy` array of integers, or a raw file of little-endian uint16 (uint32 for
            vocabularies above 65536 tokens).
        vocab_size: Tokens must be below it.
        seq_len: S.
        seed: Of the order.

    Raises:
        ConfigError: The file cannot be read, or is shorter than one sequence.
    """

    def __init__(self, path: Path, *, vocab_size: int, seq_len: int, seed: int) -> None:
        self._path = path
        self._vocab_size = vocab_size
        self._seq_len = seq_len
        self._seed = seed
        self._tokens = _map_tokens(path, vocab_size)
        self._num_sequences = (len(self._tokens) - 1) // seq_len
        if self._num_sequences < 1:
            raise ConfigError(
                f"{path}: holds {len(self._tokens)} tokens, one sequence needs {seq_len + 1}: "
                f"use a longer file or shorter sequences"
            )
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def sequence(self, number: int) -> NDArray[np.int64]:
        """Return a sequence, shape (S + 1,).

        Raises:
            ConfigError: A token in it is not of the vocabulary.
        """
        epoch, place = divmod(number, self._num_sequences)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, 2, epoch])
            self._epoch, self._order = epoch, generator.permutation(self._num_sequences)
        start = int(self._order[place]) * self._seq_len
        tokens = np.asarray(self._tokens[start : start + self._seq_len + 1]).astype(np.int64)
        wrong = np.flatnonzero((tokens < 0) | (tokens >= self._vocab_size))
        if len(wrong):
            raise ConfigError(
                f"{self._path}: token {tokens[wrong[0]]} at position {start + wrong[0]} is not of "
                f"the model's vocabulary of {self._vocab_size}: tokenise for this model, or check "
                f"that the file holds {_raw_type(self._vocab_size).name}"
            )
        return tokens


def open_tokens(path: Path | None, workload: Workload, *, seed: int) -> TokenSource:
    """Return the source of a file, or of synthetic tokens without one.

    Raises:
        ConfigError: The file cannot be used.
    """
    vocab_size, seq_len = workload.model.vocab_size, workload.seq_len
    if path is None:
        return SyntheticTokens(vocab_size=vocab_size, seq_len=seq_len, seed=seed)
    return TokenFile(path, vocab_size=vocab_size, seq_len=seq_len, seed=seed)


def load_batch(
    source: TokenSource, workload: Workload, *, step: int, dp_rank: int
) -> "tuple[Tensor, Tensor]":
    """Return a replica's tokens and targets of a step, shape (M b, S) each, int64.

    Args:
        source: Where they come from.
        workload: Its batch sizes.
        step: From 1.
        dp_rank: The replica.
    """
    # Only here: a launcher looks at the data without torch.
    import torch

    num_own = workload.num_microbatches * workload.microbatch_size
    first = ((step - 1) * workload.parallelism.dp + dp_rank) * num_own
    sequences = np.stack([source.sequence(first + i) for i in range(num_own)])
    tokens = torch.from_numpy(sequences)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _map_tokens(path: Path, vocab_size: int) -> NDArray[np.integer]:
    """Map a file into memory."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = np.memmap(path, dtype=_raw_type(vocab_size), mode="r")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: not a readable file of tokens ({error}): give a one-dimensional .npy of "
            f"integers, or a raw .bin of {_raw_type(vocab_size).name}"
        ) from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ConfigError(
            f"{path}: holds {array.dtype} of shape {array.shape}: give a one-dimensional array of "
            "integers"
        )
    tokens: NDArray[np.integer] = array
    return tokens


def _raw_type(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")
