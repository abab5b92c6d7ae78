"""Memory of each stage's GPUs, estimated from the shapes.

Conventions (Megatron-LM mixed precision, one GPU of a stage):

- Per parameter 2 bytes of bf16 weight, 4 of fp32 gradient (accumulated), 12 of optimizer state
  (fp32 master weight and Adam's two moments). Neither the optimizer nor gradients are sharded over
  data parallelism: a distributed optimizer needs less.
- Activations after Korthikanti et al. 2022 (arXiv 2205.05198) without sequence parallelism, adapted
  to flash attention (no score matrix), gated MLPs and grouped queries, without dropout masks. With
  full recompute each layer keeps its input for every microbatch in flight, and one layer is live in
  full; without it every layer is. The working set adds the gradients of one layer's widest part.
- In flight under 1F1B: min(stages - stage, microbatches).
- Head: logits in bf16 and fp32 (6 bytes each) for one microbatch, vocabulary padded and split over
  tp. Cross entropy works in place on the fp32 copy.
- Reserve: 2 GiB for the CUDA context, NCCL's buffers and the allocator's fragmentation.
- Tied embeddings count once, on the first stage; with more than one stage the last keeps a copy
  of the weight to compute with, listed apart (`tied_copy_bytes`).
"""

from dataclasses import dataclass

from kareus.core.workload import Recompute, Workload
from kareus.workload.blocks import BF16_BYTES, FP32_BYTES, padded_vocab_size
from kareus.workload.models import num_layer_parameters

RESERVE_BYTES = 2 * 2**30

_GRADIENT_BYTES = FP32_BYTES
_OPTIMIZER_BYTES = 3 * FP32_BYTES
_LOGIT_BYTES = BF16_BYTES + FP32_BYTES


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Memory of one GPU of a stage, in bytes.

    Attributes:
        stage: Index of the stage.
        num_layers: Its transformer blocks.
        num_in_flight: Microbatches whose activations it holds at once.
        num_parameters: Parameters this GPU owns.
        weights_bytes: bf16 weights.
        gradients_bytes: fp32 gradients.
        optimizer_bytes: fp32 master weights and moments.
        activations_bytes: What is kept for the microbatches in flight.
        working_bytes: The live layer and its gradients.
        logits_bytes: Logits of one microbatch; 0 but on the last stage.
        tied_copy_bytes: Weight and gradient of the copy of a tied embedding; 0 elsewhere.
        reserve_bytes: Context, communication buffers, fragmentation.
    """

    stage: int
    num_layers: int
    num_in_flight: int
    num_parameters: float
    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    working_bytes: float
    logits_bytes: float
    tied_copy_bytes: float
    reserve_bytes: float

    @property
    def total_bytes(self) -> float:
        """Everything together."""
        return (
            self.weights_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.working_bytes
            + self.logits_bytes
            + self.tied_copy_bytes
            + self.reserve_bytes
        )


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Memory of a workload.

    Attributes:
        stages: One entry per stage, first stage first.
        limit_bytes: Memory of the GPU.
    """

    stages: tuple[StageMemory, ...]
    limit_bytes: int

    @property
    def peak(self) -> StageMemory:
        """The stage that needs most; the first of equal ones."""
        return max(self.stages, key=lambda stage: stage.total_bytes)

    @property
    def peak_bytes(self) -> float:
        """What the fullest stage needs per GPU."""
        return self.peak.total_bytes

    @property
    def fits(self) -> bool:
        """Whether every stage fits into the GPU's memory."""
        return self.peak_bytes <= self.limit_bytes


def estimate_memory(workload: Workload) -> MemoryEstimate:
    """Return the memory each stage's GPUs need; see the module's conventions."""
    return MemoryEstimate(
        stages=tuple(_stage_memory(workload, stage) for stage in range(workload.parallelism.pp)),
        limit_bytes=workload.gpu.memory_bytes,
    )


def _stage_memory(workload: Workload, stage: int) -> StageMemory:
    """One stage's entry."""
    model, parallelism = workload.model, workload.parallelism
    tp = parallelism.tp
    first, last = stage == 0, stage == parallelism.pp - 1
    num_layers = workload.stage_layers[stage]
    num_in_flight = min(parallelism.pp - stage, workload.num_microbatches)
    num_tokens = workload.microbatch_size * workload.seq_len / parallelism.cp

    embedding = padded_vocab_size(model, tp) * model.hidden_size / tp
    num_parameters = num_layers * _layer_parameters_on_rank(workload)
    tied_copy_bytes = 0.0
    if first:
        num_parameters += embedding
    if last:
        num_parameters += model.hidden_size  # final norm
        if not model.tied_embeddings:
            num_parameters += embedding
        elif not first:
            tied_copy_bytes = embedding * (BF16_BYTES + _GRADIENT_BYTES)

    layer_bytes = num_tokens * _layer_activation_bytes_per_token(workload)
    if workload.recompute is Recompute.FULL:
        kept = num_tokens * model.hidden_size * BF16_BYTES * num_layers * num_in_flight
        working = layer_bytes
    else:
        kept = layer_bytes * num_layers * num_in_flight
        working = 0.0
    working += num_tokens * _layer_gradient_bytes_per_token(workload)
    logits = num_tokens * padded_vocab_size(model, tp) / tp * _LOGIT_BYTES if last else 0.0
    return StageMemory(
        stage=stage,
        num_layers=num_layers,
        num_in_flight=num_in_flight,
        num_parameters=num_parameters,
        weights_bytes=num_parameters * BF16_BYTES,
        gradients_bytes=num_parameters * _GRADIENT_BYTES,
        optimizer_bytes=num_parameters * _OPTIMIZER_BYTES,
        activations_bytes=kept,
        working_bytes=working,
        logits_bytes=logits,
        tied_copy_bytes=tied_copy_bytes,
        reserve_bytes=RESERVE_BYTES,
    )


def _layer_parameters_on_rank(workload: Workload) -> float:
    """A block's parameters on one rank: matrices split over tp, norms whole."""
    model, tp = workload.model, workload.parallelism.tp
    norms = 2 * model.hidden_size + (2 * model.head_dim if model.qk_norm else 0)
    return (num_layer_parameters(model) - norms) / tp + norms


def _layer_activation_bytes_per_token(workload: Workload) -> float:
    """What one layer saves for its backward, bytes per token of this rank.

    Residual stream before each norm and each norm's output (4h); queries, keys and values as the
    core attention takes them (keys and values of the whole sequence under context parallelism),
    its output and its fp32 log-sum-exp per head; what a q/k norm took; the MLP's first product and
    the activation's output.
    """
    model, tp, cp = workload.model, workload.parallelism.tp, workload.parallelism.cp
    queries = model.num_heads * model.head_dim / tp
    keys_or_values = model.num_kv_heads * model.head_dim / tp
    elements = 4 * model.hidden_size + 2 * queries + 2 * keys_or_values * cp
    if model.qk_norm:
        elements += queries + keys_or_values
    elements += model.ffn_hidden_size / tp * (3 if model.gated_mlp else 2)
    return elements * BF16_BYTES + FP32_BYTES * model.num_heads / tp


def _layer_gradient_bytes_per_token(workload: Workload) -> float:
    """Gradients live at the widest place of a layer's backward, bytes per token of this rank.

    The residual stream's and the norm output's (2h), the activation's output and the first
    product's.
    """
    model, tp = workload.model, workload.parallelism.tp
    mlp = model.ffn_hidden_size / tp * (3 if model.gated_mlp else 2)
    return BF16_BYTES * (2 * model.hidden_size + mlp)
