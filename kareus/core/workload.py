"""The workload: model, GPU, parallelism and batch, as values.

Built and checked by `kareus.workload`.
"""

from dataclasses import dataclass
from enum import StrEnum


class Recompute(StrEnum):
    """Whether a backward instruction recomputes the forward activations."""

    FULL = "full"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A dense transformer's shape.

    Attributes:
        name: Catalogue name, or that of the configuration it was read from.
        family: `llama`, `mistral`, `qwen2`, `qwen3` or `gpt`.
        num_layers: Transformer blocks.
        hidden_size: Width of the residual stream.
        ffn_hidden_size: Width inside the MLP.
        num_heads: Attention heads.
        num_kv_heads: Key/value heads.
        head_dim: Width of one head (not always hidden_size / num_heads).
        vocab_size: Rows of the embedding.
        gated_mlp: SwiGLU (three matrices) rather than a plain MLP (two).
        qk_norm: Whether queries and keys are normalised per head.
        tied_embeddings: Whether embedding and head share their weight.
        assumptions: What was not stated by its configuration and had to be assumed, in words.
    """

    name: str
    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    gated_mlp: bool = True
    qk_norm: bool = False
    tied_embeddings: bool = False
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as the engine sees it.

    Attributes:
        name: Catalogue name, such as `A100-SXM4-40GB`.
        num_sms: Streaming multiprocessors.
        clocks_mhz: SM clocks searched, ascending.
        static_power_w: Power drawn while blocked on communication.
        static_power_measured: False where that figure is an assumption.
        power_limit_w: Board power limit.
        memory_bytes: GPU memory.
        peak_flops: Dense bf16 tensor throughput at the top clock, FLOP/s.
        memory_bandwidth_bytes_s: Peak memory bandwidth.
        link_bandwidth_bytes_s: Bandwidth to the other GPUs of the node, one direction.
        calibrated: Whether the simulator was calibrated on measurements of this GPU.
    """

    name: str
    num_sms: int
    clocks_mhz: tuple[int, ...]
    static_power_w: float
    static_power_measured: bool
    power_limit_w: float
    memory_bytes: int
    peak_flops: float
    memory_bandwidth_bytes_s: float
    link_bandwidth_bytes_s: float
    calibrated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """Degrees of tensor, context, pipeline and data parallelism."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of the job."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def gpus_per_stage(self) -> int:
        """GPUs that execute one stage: job energy = pipeline energy times this."""
        return self.tp * self.cp * self.dp


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Everything that fixes what one iteration computes.

    Attributes:
        model: The model.
        gpu: The GPU.
        parallelism: The degrees of parallelism.
        microbatch_size: Sequences per microbatch, at least 1.
        seq_len: Tokens per sequence.
        num_microbatches: Microbatches per iteration and pipeline.
        stage_layers: Transformer blocks per stage, first stage first; sums to the model's layers.
        recompute: Full or none.
    """

    model: Model
    gpu: Gpu
    parallelism: Parallelism
    microbatch_size: int
    seq_len: int
    num_microbatches: int
    stage_layers: tuple[int, ...]
    recompute: Recompute = Recompute.FULL

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens one iteration trains on, over all data-parallel replicas."""
        return self.microbatch_size * self.seq_len * self.num_microbatches * self.parallelism.dp
