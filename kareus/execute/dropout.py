"""Dropout whose mask is a function of where it stands, not of a generator's history.

The mask of a token's chunk depends on (call seed, site, sample, chunk of the sequence) only. So it
is the same when recomputed, whether or not the microbatch is split, and on every tensor-parallel
rank (which hold the same activations), and differs between context-parallel ranks. No generator
state has to be saved or restored. Attention probabilities are not dropped (Llama and Qwen do not).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kareus.errors import ConfigError

_MASK64 = (1 << 64) - 1


def mix_seed(*parts: int) -> int:
    """Return a well-mixed 63-bit seed from integers (splitmix64 over them in order)."""
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & _MASK64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK64
        state ^= state >> 31
    return state >> 1


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Dropout of one call of a stage.

    Attributes:
        rate: Probability that an element is zeroed; below 1.
        seed: Seed of the call: another one for every microbatch.
        chunks: Chunks of the sequence the local tokens consist of, in their order.
    """

    rate: float
    seed: int
    chunks: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if not 0.0 <= self.rate < 1.0:
            raise ConfigError(f"dropout rate {self.rate} is not in [0, 1): use for instance 0.1")

    def apply(self, tensor: Tensor, *, site: int, first_sample: int) -> Tensor:
        """Zero elements and scale the others; its own gradient, too, since it is linear.

        Args:
            tensor: Shape (samples, tokens, hidden).
            site: Which dropout of the network.
            first_sample: Index of the first sample in its microbatch.

        Returns:
            The tensor itself where the rate is 0.
        """
        if self.rate == 0.0:
            return tensor
        return tensor * self._scaled_mask(tensor, site=site, first_sample=first_sample)

    def _scaled_mask(self, like: Tensor, *, site: int, first_sample: int) -> Tensor:
        """1 / (1 - rate) where kept, 0 where dropped."""
        mask = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        generator = torch.Generator(device=like.device)
        for sample, of_sample in enumerate(mask, start=first_sample):
            for chunk, piece in zip(self.chunks, of_sample.chunk(len(self.chunks)), strict=True):
                generator.manual_seed(mix_seed(self.seed, site, sample, chunk))
                piece.bernoulli_(1.0 - self.rate, generator=generator)
        return mask.div_(1.0 - self.rate)
