"""Operators of a transformer block on one GPU: floating-point operations and memory traffic.

Legend: `T` tokens on this rank (sequences x seq_len / cp), `S` sequence length, `n` sequences,
`h` hidden size, `q` = heads x head_dim / tp and `kv` = KV heads x head_dim / tp (widths of queries
and of keys or values on this rank), `f` = FFN width / tp. All tensors are bf16 (2 bytes).

Conventions:

- Tensor parallel without sequence parallelism: norms and residuals cover the whole hidden size on
  every rank; linears, heads and activation are split.
- Bytes are what the kernels must read and write once; nothing is assumed to stay in cache between
  kernels. FLOPs count a multiply-add as two.
- Norm slot: residual add, then norm, two kernels: forward 3h + 2h elements per token, backward 3h
  (norm) + 3h (add of the residual gradient).
- Rope slot: QKV split, optional q/k norm, rotary embedding, each reading and writing what it
  touches; without rotary positions (family `gpt`) the split alone. Backward mirrors it, the norm
  reading its saved input as well.
- Linear backward is input gradient + weight gradient, twice the forward FLOPs; the weight gradient
  is accumulated into fp32 (read and written).
- Core attention is causal and fused (flash attention): half of the full score matrix, 4 x n x S x
  S x q / 2 FLOPs over cp ranks that share the causal work evenly (load-balanced halves); backward
  recomputes the scores: five matrix products for two, 2.5 x the forward. Under context parallelism
  a rank reads the gathered keys and values of the whole sequence.
- The vocabulary is padded to a multiple of 128 x tp, as Megatron-LM does.
"""

from dataclasses import dataclass
from enum import StrEnum

from kareus.core.partition import Operator, OperatorKind
from kareus.core.workload import Model

BF16_BYTES = 2
FP32_BYTES = 4

_NORM_FLOPS_PER_ELEMENT = 6  # add, square, sum, scale, weight; small beside the memory time
_ROPE_FLOPS_PER_ELEMENT = 6
_ACTIVATION_FLOPS_PER_ELEMENT = 8
_LOSS_FLOPS_PER_LOGIT = 6
_VOCAB_MULTIPLE = 128


class Part(StrEnum):
    """A stretch of a block's computation between two collectives."""

    FWD_ATTN = "fwd_attn"
    FWD_MLP = "fwd_mlp"
    FWD_QKV = "fwd_qkv"
    FWD_AO = "fwd_ao"
    BWD_MLP = "bwd_mlp"
    BWD_ATTN = "bwd_attn"
    BWD_O = "bwd_o"
    BWD_A = "bwd_a"
    BWD_QKV = "bwd_qkv"


def padded_vocab_size(model: Model, tp: int) -> int:
    """Return the vocabulary as stored: padded to a multiple of 128 x tp (Megatron-LM's rule)."""
    multiple = _VOCAB_MULTIPLE * tp
    return -(-model.vocab_size // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """One rank's share of a block for a number of sequences.

    Attributes:
        model: The model.
        num_sequences: Sequences computed at once (a nanobatch or a microbatch).
        seq_len: Tokens per sequence, over all context-parallel ranks.
        tp: Tensor-parallel degree; divides heads, KV heads and FFN width.
        cp: Context-parallel degree; divides the sequence length.
    """

    model: Model
    num_sequences: float
    seq_len: int
    tp: int = 1
    cp: int = 1

    @property
    def num_tokens(self) -> float:
        """Tokens on this rank."""
        return self.num_sequences * self.seq_len / self.cp

    @property
    def query_width(self) -> float:
        """Width of the queries on this rank."""
        return self.model.num_heads * self.model.head_dim / self.tp

    @property
    def kv_width(self) -> float:
        """Width of the keys, or of the values, on this rank."""
        return self.model.num_kv_heads * self.model.head_dim / self.tp

    @property
    def ffn_width(self) -> float:
        """Width inside the MLP on this rank."""
        return self.model.ffn_hidden_size / self.tp

    @property
    def vocab_width(self) -> float:
        """Rows of the padded embedding on this rank."""
        return padded_vocab_size(self.model, self.tp) / self.tp

    @property
    def residual_bytes(self) -> float:
        """Size of the residual stream: what tensor-parallel all-reduces carry."""
        return self.num_tokens * self.model.hidden_size * BF16_BYTES

    @property
    def gathered_kv_bytes(self) -> float:
        """Size of keys and values of the whole sequence: what context parallelism gathers."""
        return self.num_sequences * self.seq_len * 2 * self.kv_width * BF16_BYTES


def part_operators(part: Part, shape: BlockShape) -> tuple[Operator, ...]:
    """Return a part's operators in order of execution, named by their slots.

    The first linear met is `linear_0`, the next `linear_1`; backward parts run in reverse order,
    so there `linear_0` is the output projection or the down projection.
    """
    model = shape.model
    h, q, kv, f = model.hidden_size, shape.query_width, shape.kv_width, shape.ffn_width
    qkv = (h, q + 2 * kv)
    proj = (q, h)
    fc1 = (h, f * (2 if model.gated_mlp else 1))
    fc2 = (f, h)
    match part:
        case Part.FWD_ATTN:
            return (
                _norm(shape),
                _linear("linear_0", shape, *qkv),
                _rope(shape),
                _attention(shape),
                _linear("linear_1", shape, *proj),
            )
        case Part.FWD_MLP:
            return (
                _norm(shape),
                _linear("linear_0", shape, *fc1),
                _activation(shape),
                _linear("linear_1", shape, *fc2),
            )
        case Part.FWD_QKV:
            return (_norm(shape), _linear("linear_0", shape, *qkv), _rope(shape))
        case Part.FWD_AO:
            return (_attention(shape), _linear("linear_0", shape, *proj))
        case Part.BWD_MLP:
            return (
                _norm(shape, backward=True),
                _linear("linear_0", shape, *fc2, backward=True),
                _activation(shape, backward=True),
                _linear("linear_1", shape, *fc1, backward=True),
            )
        case Part.BWD_ATTN:
            return (
                _norm(shape, backward=True),
                _linear("linear_0", shape, *proj, backward=True),
                _attention(shape, backward=True),
                _rope(shape, backward=True),
                _linear("linear_1", shape, *qkv, backward=True),
            )
        case Part.BWD_O:
            return (
                _norm(shape, backward=True),
                _linear("linear_0", shape, *proj, backward=True),
            )
        case Part.BWD_A:
            return (_attention(shape, backward=True),)
        case Part.BWD_QKV:
            return (
                _rope(shape, backward=True),
                _linear("linear_0", shape, *qkv, backward=True),
            )


def embedding_operators(shape: BlockShape, *, backward: bool = False) -> tuple[Operator, ...]:
    """Return the embedding look-up of a vocabulary split over tp, or its gradient.

    Forward reads this rank's share of the rows, masks the others and writes the residual stream;
    backward reads the gradient and accumulates this rank's rows into fp32.
    """
    elements = shape.num_tokens * shape.model.hidden_size
    if backward:
        flops = elements / shape.tp
        num_bytes = elements * BF16_BYTES + 2 * FP32_BYTES * elements / shape.tp
    else:
        flops = 0.0
        num_bytes = BF16_BYTES * elements * (1 / shape.tp + 1)
    return (
        Operator(
            slot="embedding", kind=OperatorKind.EMBEDDING, flops=flops, memory_bytes=num_bytes
        ),
    )


def head_operators(shape: BlockShape, *, backward: bool = False) -> tuple[Operator, ...]:
    """Return the final norm and the head (a linear onto this rank's share of the vocabulary).

    Backward includes the loss's own backward, which comes first.
    """
    head = (shape.model.hidden_size, shape.vocab_width)
    if backward:
        return (
            _loss(shape, backward=True),
            _linear("linear_0", shape, *head, backward=True),
            _norm(shape, backward=True),
        )
    return (_norm(shape), _linear("linear_0", shape, *head))


def loss_operators(shape: BlockShape) -> tuple[Operator, ...]:
    """Return the cross entropy over this rank's share of the vocabulary, forward, in fp32."""
    return (_loss(shape),)


def _norm(shape: BlockShape, *, backward: bool = False) -> Operator:
    """Residual add and norm, or their gradients."""
    elements = shape.num_tokens * shape.model.hidden_size
    return Operator(
        slot="norm_0",
        kind=OperatorKind.NORM,
        flops=_NORM_FLOPS_PER_ELEMENT * elements * (2 if backward else 1),
        memory_bytes=BF16_BYTES * elements * (6 if backward else 5),
    )


def _linear(
    slot: str, shape: BlockShape, width_in: float, width_out: float, *, backward: bool = False
) -> Operator:
    """A matrix product of T tokens, or its two gradients."""
    tokens = shape.num_tokens
    product_bytes = BF16_BYTES * (tokens * width_in + width_in * width_out + tokens * width_out)
    if backward:
        weight_gradient_bytes = (
            BF16_BYTES * tokens * (width_in + width_out) + 2 * FP32_BYTES * width_in * width_out
        )
        product_bytes += weight_gradient_bytes
    return Operator(
        slot=slot,
        kind=OperatorKind.LINEAR,
        flops=2 * tokens * width_in * width_out * (2 if backward else 1),
        memory_bytes=product_bytes,
    )


def _rope(shape: BlockShape, *, backward: bool = False) -> Operator:
    """QKV split, q/k norm where the model has one, and rotary positions where it has them."""
    model = shape.model
    queries_and_keys = shape.query_width + shape.kv_width
    elements = 2 * (shape.query_width + 2 * shape.kv_width)
    flops = 0.0
    if model.qk_norm:
        elements += (3 if backward else 2) * queries_and_keys
        flops += _NORM_FLOPS_PER_ELEMENT * queries_and_keys * (2 if backward else 1)
    if model.family != "gpt":
        elements += 2 * queries_and_keys
        flops += _ROPE_FLOPS_PER_ELEMENT * queries_and_keys
    return Operator(
        slot="rope_0",
        kind=OperatorKind.ROPE,
        flops=flops * shape.num_tokens,
        memory_bytes=BF16_BYTES * elements * shape.num_tokens,
    )


def _attention(shape: BlockShape, *, backward: bool = False) -> Operator:
    """Causal core attention of this rank's queries over the whole sequence's keys and values."""
    flops = 2 * shape.num_tokens * shape.seq_len * shape.query_width
    queries = shape.num_tokens * shape.query_width
    keys_and_values = shape.num_sequences * shape.seq_len * 2 * shape.kv_width
    # Forward: q in, output out, k and v in. Backward: q, output, its gradient in, q's gradient out;
    # k and v in, their gradients out.
    elements = 4 * queries + 2 * keys_and_values if backward else 2 * queries + keys_and_values
    return Operator(
        slot="attn_0",
        kind=OperatorKind.ATTENTION,
        flops=flops * (2.5 if backward else 1),
        memory_bytes=BF16_BYTES * elements,
    )


def _activation(shape: BlockShape, *, backward: bool = False) -> Operator:
    """SwiGLU (two inputs, one output) or GELU (one and one), or the gradient."""
    inputs = 2 if shape.model.gated_mlp else 1
    # Backward: the output's gradient and the saved inputs in, the inputs' gradients out.
    tensors = 1 + 2 * inputs if backward else inputs + 1
    elements = shape.num_tokens * shape.ffn_width
    return Operator(
        slot="activation_0",
        kind=OperatorKind.ACTIVATION,
        flops=_ACTIVATION_FLOPS_PER_ELEMENT * elements * (2 if backward else 1),
        memory_bytes=BF16_BYTES * elements * tensors,
    )


def _loss(shape: BlockShape, *, backward: bool = False) -> Operator:
    """Cross entropy on fp32 logits, vocabulary split over tp (Megatron-LM's kernels).

    Forward: cast (2 + 4 bytes per logit), maximum (4), subtract and exponentiate in place (8), sum
    (4), normalise in place (8). Backward: gradient in place (8), cast to bf16 (4 + 2).
    """
    logits = shape.num_tokens * shape.vocab_width
    return Operator(
        slot="loss",
        kind=OperatorKind.LOSS,
        flops=_LOSS_FLOPS_PER_LOGIT * logits / (2 if backward else 1),
        memory_bytes=logits * (14 if backward else 30),
    )
