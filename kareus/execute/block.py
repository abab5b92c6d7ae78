"""A Llama/Qwen-style transformer block: shapes, weights and plain operators.

RMSNorm, grouped-query attention with rotary positions and optional q/k norm, SwiGLU; the `gpt`
family has GELU and no rotary positions. Legend: `b` sequences, `s` tokens on this rank, `h` hidden
size, `n` query and `m` key/value heads on this rank, `d` head width, `f` FFN width on this rank.

Column-parallel weights (`qkv`, `fc1`) are split by rows, row-parallel ones (`proj`, `fc2`) by
columns; `qkv` holds a rank's queries, keys and values one below the other, `fc1` its gate and up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kareus.core.workload import Model
from kareus.errors import ConfigError
from kareus.execute.dropout import Dropout, mix_seed
from kareus.execute.sequence import check_sequence, local_positions

INIT_STD = 0.02


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """One rank's share of a block.

    Attributes:
        model: The model.
        seq_len: Tokens per sequence over all ranks.
        tp: Tensor-parallel degree.
        tp_rank: This rank in it.
        cp: Context-parallel degree.
        cp_rank: This rank in it.
        rope_theta: Base of the rotary frequencies (Llama 3: 500 000).
        norm_eps: Added to the mean square in RMSNorm.
    """

    model: Model
    seq_len: int
    tp: int = 1
    tp_rank: int = 0
    cp: int = 1
    cp_rank: int = 0
    rope_theta: float = 500_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        model = self.model
        for what, size in (
            ("attention heads", model.num_heads),
            ("key/value heads", model.num_kv_heads),
            ("FFN width", model.ffn_hidden_size),
        ):
            if size % self.tp:
                raise ConfigError(
                    f"tp {self.tp} does not divide the {size} {what} of {model.name}: "
                    f"use a tp that divides {size}"
                )
        if model.num_heads % model.num_kv_heads:
            raise ConfigError(
                f"{model.name} has {model.num_heads} attention heads, not a multiple of its "
                f"{model.num_kv_heads} key/value heads: correct the model's configuration"
            )
        if self.rotary and model.head_dim % 2:
            raise ConfigError(
                f"head width {model.head_dim} of {model.name} is odd, rotary positions need pairs: "
                f"use an even width"
            )
        check_sequence(self.seq_len, self.cp)

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are rotated by position."""
        return self.model.family != "gpt"

    @property
    def num_heads(self) -> int:
        """Query heads on this rank."""
        return self.model.num_heads // self.tp

    @property
    def num_kv_heads(self) -> int:
        """Key/value heads on this rank."""
        return self.model.num_kv_heads // self.tp

    @property
    def local_seq_len(self) -> int:
        """Tokens of a sequence on this rank."""
        return self.seq_len // self.cp


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """A weight matrix or vector of the block, before it is split.

    Attributes:
        name: Its name.
        pieces: Shapes of the full matrices it is made of, stacked by rows.
        shard_dim: Dimension along which each piece is split over tp; None if replicated.
        std: Standard deviation of the initial values; None for ones.
        partial_gradient: Whether each tp rank's gradient is a part of a sum although the weight is
            replicated (it acts on heads of this rank only).
    """

    name: str
    pieces: tuple[tuple[int, ...], ...]
    shard_dim: int | None = None
    std: float | None = None
    partial_gradient: bool = False

    def shard(self, full: Tensor, *, tp: int, rank: int) -> Tensor:
        """Return a rank's part of the full weight (pieces stacked by rows)."""
        if self.shard_dim is None or tp == 1:
            return full
        pieces = torch.split_with_sizes(full, [piece[0] for piece in self.pieces])
        return torch.cat([piece.chunk(tp, self.shard_dim)[rank] for piece in pieces])


def weight_specs(model: Model) -> tuple[WeightSpec, ...]:
    """Return the weights of a block in the order in which they are passed around."""
    h, d, f = model.hidden_size, model.head_dim, model.ffn_hidden_size
    q, kv = (model.num_heads * d, h), (model.num_kv_heads * d, h)
    out_std = INIT_STD / (2 * model.num_layers) ** 0.5  # GPT-2's rule for residual projections
    specs = [
        WeightSpec(name="attn_norm", pieces=((h,),)),
        WeightSpec(name="qkv", pieces=(q, kv, kv), shard_dim=0, std=INIT_STD),
        WeightSpec(name="proj", pieces=((h, q[0]),), shard_dim=1, std=out_std),
        WeightSpec(name="mlp_norm", pieces=((h,),)),
        WeightSpec(
            name="fc1", pieces=((f, h),) * (2 if model.gated_mlp else 1), shard_dim=0, std=INIT_STD
        ),
        WeightSpec(name="fc2", pieces=((h, f),), shard_dim=1, std=out_std),
    ]
    if model.qk_norm:
        specs += [
            WeightSpec(name=name, pieces=((d,),), partial_gradient=True)
            for name in ("q_norm", "k_norm")
        ]
    return tuple(specs)


def initial_weight(
    spec: WeightSpec, *, seed: int, layer: int, tp: int, rank: int, device: torch.device
) -> Tensor:
    """Return a rank's part of an initial weight, fp32.

    The full weight is drawn from (seed, layer, name) and then split, so it does not depend on tp.
    """
    parts = []
    for number, piece in enumerate(spec.pieces):
        if spec.std is None:
            full = torch.ones(piece, device=device)
        else:
            generator = torch.Generator(device=device)
            generator.manual_seed(
                mix_seed(seed, layer, number, int.from_bytes(spec.name.encode(), "big"))
            )
            full = torch.randn(piece, generator=generator, device=device) * spec.std
        parts.append(full if spec.shard_dim is None else full.chunk(tp, spec.shard_dim)[rank])
    return torch.cat(parts).contiguous()


@dataclass(frozen=True, kw_only=True)
class RotaryTable:
    """Cosines and sines of this rank's positions, each of shape (s, d / 2)."""

    cos: Tensor
    sin: Tensor


def rotary_table(shape: BlockShape, *, dtype: torch.dtype, device: torch.device) -> RotaryTable:
    """Return the rotary table of a rank's positions, computed in fp64 and rounded to `dtype`."""
    half = shape.model.head_dim // 2
    positions = local_positions(shape.seq_len, cp=shape.cp, rank=shape.cp_rank)
    frequencies = shape.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(positions.to(torch.float64), frequencies)
    return RotaryTable(
        cos=angles.cos().to(device=device, dtype=dtype),
        sin=angles.sin().to(device=device, dtype=dtype),
    )


def norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """RMSNorm over the last dimension."""
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)


def split_heads(
    qkv: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    *,
    shape: BlockShape,
    rotary: RotaryTable,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split the projection into heads, normalise and rotate queries and keys.

    Args:
        qkv: Shape (b, s, (n + 2 m) d).
        q_norm: Weight of the query norm, shape (d,); None without one.
        k_norm: Likewise for keys.
        shape: The rank's share of the block.
        rotary: Its rotary table.

    Returns:
        Queries (b, n, s, d), keys and values (b, m, s, d).
    """
    b, s, _ = qkv.shape
    n, m, d = shape.num_heads, shape.num_kv_heads, shape.model.head_dim
    q, k, v = (
        part.view(b, s, -1, d).transpose(1, 2)
        for part in torch.split_with_sizes(qkv, [n * d, m * d, m * d], dim=-1)
    )
    if q_norm is not None and k_norm is not None:
        q, k = norm(q, q_norm, eps=shape.norm_eps), norm(k, k_norm, eps=shape.norm_eps)
    if shape.rotary:
        q, k = rotate(q, rotary), rotate(k, rotary)
    return q, k, v


def rotate(x: Tensor, rotary: RotaryTable) -> Tensor:
    """Rotate pairs (i, i + d/2) of the last dimension by position; x has shape (..., s, d)."""
    cos, sin = rotary.cos.to(x.dtype), rotary.sin.to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of all positions; heads are merged: shape (b, s, n d)."""
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
    )
    return merge_heads(out)


def attention_of_chunks(q: Tensor, kv: Tensor, *, chunks: tuple[int, ...]) -> Tensor:
    """Causal attention of this rank's chunks over the gathered keys and values.

    Each chunk of queries sees the keys up to its own end, aligned to the lower right corner, which
    keeps fused kernels usable (an arbitrary mask would not).

    Args:
        q: Shape (b, n, s, d), the local chunks one after the other.
        kv: Keys and values of the whole sequence, shape (2, b, m, S, d).
        chunks: Which chunks of the sequence they are.

    Returns:
        Shape (b, s, n d).
    """
    keys, values = kv.unbind(0)
    outputs = []
    for chunk, query in zip(chunks, q.chunk(len(chunks), 2), strict=True):
        end = (chunk + 1) * query.shape[2]
        outputs.append(
            F.scaled_dot_product_attention(
                query,
                keys[:, :, :end],
                values[:, :, :end],
                attn_mask=_lower_right(query.shape[2], end),
                enable_gqa=q.shape[1] != keys.shape[1],
            )
        )
    return merge_heads(torch.cat(outputs, 2))


@lru_cache(maxsize=64)
def _lower_right(num_queries: int, num_keys: int) -> Tensor:
    """The mask aligned to the lower right corner; made once, it holds no memory."""
    # Only context parallelism needs it, and it brings torch's compiler along (seconds).
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right(num_queries, num_keys)


def merge_heads(x: Tensor) -> Tensor:
    """From (b, n, s, d) to (b, s, n d)."""
    return x.transpose(1, 2).flatten(2)


def activation(x: Tensor, *, gated: bool) -> Tensor:
    """SwiGLU of the gate and up halves, or GELU."""
    if not gated:
        return F.gelu(x, approximate="tanh")
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


class Block(nn.Module):
    """Holds a rank's weights of one block; its `forward` is the plain, unsplit block.

    Training and profiling execute the block through `kareus.execute.engine`; the plain forward is
    what that is compared with, and needs the whole weights (tp = cp = 1).

    Args:
        shape: The rank's share.
        layer: Index of the block in the model.
        seed: Seed of the initial weights.
        dtype: Type of the weights.
        device: Where they live.
    """

    def __init__(
        self,
        shape: BlockShape,
        *,
        layer: int,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.layer = layer
        for spec in weight_specs(shape.model):
            value = initial_weight(
                spec, seed=seed, layer=layer, tp=shape.tp, rank=shape.tp_rank, device=device
            )
            self.register_parameter(spec.name, nn.Parameter(value.to(dtype)))

    def weights(self) -> Mapping[str, Tensor]:
        """Return the weights by name, in the order of `weight_specs`."""
        return dict(self.named_parameters(recurse=False))

    def forward(self, hidden: Tensor, rotary: RotaryTable, dropout: Dropout) -> Tensor:
        """Return the block's output, as one would write it without partitions.

        Args:
            hidden: Shape (b, S, h).
            rotary: Rotary table of all positions.
            dropout: Dropout of this call.
        """
        if self.shape.tp > 1 or self.shape.cp > 1:
            raise ConfigError(
                f"the plain block needs whole weights and sequences, not tp {self.shape.tp} and "
                f"cp {self.shape.cp}: execute it through a BlockStack"
            )
        w, eps = self.weights(), self.shape.norm_eps
        qkv = F.linear(norm(hidden, w["attn_norm"], eps=eps), w["qkv"])
        q, k, v = split_heads(
            qkv, w.get("q_norm"), w.get("k_norm"), shape=self.shape, rotary=rotary
        )
        attended = F.linear(attention(q, k, v), w["proj"])
        hidden = hidden + dropout.apply(attended, site=2 * self.layer, first_sample=0)
        inner = F.linear(norm(hidden, w["mlp_norm"], eps=eps), w["fc1"])
        output = F.linear(activation(inner, gated=self.shape.model.gated_mlp), w["fc2"])
        return hidden + dropout.apply(output, site=2 * self.layer + 1, first_sample=0)
