"""AdamW over a stage's parameters: gradient norm over the mesh, learning rate, master weights.

Parameters in bf16 are trained through fp32 copies, since an update is mostly smaller than the
spacing of bf16 values; their gradients are summed over microbatches in fp32, for the same reason.
The global norm counts every weight of the model once: weights split over
tensor-parallel ranks on every rank, replicated ones on one rank, and a tied embedding's copy on the
last stage not at all.
"""

import logging
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kareus.execute.block import weight_specs
from kareus.execute.stage import Stage

_LOGGER = logging.getLogger(__name__)
BETAS = (0.9, 0.95)
EPSILON = 1e-8
_FINAL_SHARE = 0.1


def learning_rate_at(step: int, *, highest: float, warmup_steps: int, decay_steps: int) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine down to a tenth.

    Args:
        step: From 1.
        highest: The learning rate after the warm-up.
        warmup_steps: Steps of the warm-up.
        decay_steps: Step at which the tenth is reached; it stays there.
    """
    if step <= warmup_steps:
        return highest * step / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, decay_steps - warmup_steps))
    share = _FINAL_SHARE + (1 - _FINAL_SHARE) * (1 + math.cos(math.pi * progress)) / 2
    return highest * share


class StageOptimizer:
    """AdamW over one stage.

    Args:
        stage: The stage; its gradients are complete (`Stage.reduce_gradients`) when used.
        weight_decay: For matrices; vectors (norms) do not decay.
        counts_replicated: Whether this rank counts its replicated weights in the norm: true on one
            rank of each stage.
        counts_split: Whether it counts its split ones: true where cp and dp ranks are 0.
    """

    def __init__(
        self, stage: Stage, *, weight_decay: float, counts_replicated: bool, counts_split: bool
    ) -> None:
        self._names, self._parameters = zip(*stage.named_parameters(), strict=True)
        counted = dict(_counted(stage, counts_replicated, counts_split))
        self._counted = [p for name, p in stage.named_parameters() if counted[name]]
        self._masters: list[Tensor] = [
            p if p.dtype in (torch.float32, torch.float64) else _master(p) for p in self._parameters
        ]
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                _sum_gradients_in_fp32(parameter)
        matrices = [m for m in self._masters if m.dim() >= 2]
        vectors = [m for m in self._masters if m.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            betas=BETAS,
            eps=EPSILON,
            fused=self._parameters[0].is_cuda,
        )

    def squared_norm(self) -> Tensor:
        """Return this rank's share of the squared global norm, a scalar in fp64."""
        total = torch.zeros((), dtype=torch.float64, device=self._parameters[0].device)
        gradients = [p.grad for p in self._counted if p.grad is not None]
        for norm in torch._foreach_norm(gradients) if gradients else ():
            total += norm.double() ** 2
        return total

    def step(self, *, learning_rate: float, scale: float) -> None:
        """Update the weights and forget the gradients.

        Args:
            learning_rate: Of this step.
            scale: What the gradients are multiplied by first (clipping).
        """
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if parameter.grad is None:
                continue
            if master is not parameter:
                master.grad = parameter.grad.float()
            assert master.grad is not None
            if scale != 1.0:
                master.grad.mul_(scale)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        with torch.no_grad():
            for parameter, master in zip(self._parameters, self._masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)
                    master.grad = None
                parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return weights and moments by name; loading writes into these same tensors.

        The moments exist from the first call on, as zeros before the first step.
        """
        tensors: dict[str, Tensor] = {}
        for name, parameter, master in zip(
            self._names, self._parameters, self._masters, strict=True
        ):
            state = self._adamw.state[master]
            if not state:
                state["step"] = torch.zeros(
                    (), dtype=torch.float32, device=master.device if master.is_cuda else "cpu"
                )
                state["exp_avg"] = torch.zeros_like(master)
                state["exp_avg_sq"] = torch.zeros_like(master)
            tensors[name] = master.detach()
            tensors.update({f"{name}.{key}": value for key, value in state.items()})
            assert parameter.shape == master.shape
        return tensors

    @torch.no_grad()
    def loaded(self) -> None:
        """Make the parameters follow loaded master weights."""
        for parameter, master in zip(self._parameters, self._masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)


def clip_scale(norm: float, clip_norm: float) -> float:
    """Return what to multiply gradients by so that their norm is at most `clip_norm` (0: any)."""
    return min(1.0, clip_norm / (norm + 1e-6)) if clip_norm else 1.0


def _sum_gradients_in_fp32(parameter: nn.Parameter) -> None:
    """Let autograd add up a bf16 weight's gradients in fp32, where torch can (since 2.10)."""
    if hasattr(torch.Tensor, "grad_dtype"):
        parameter.grad_dtype = torch.float32
    else:
        _LOGGER.warning("this torch sums gradients in %s; use 2.10 or later", parameter.dtype)


def _master(parameter: nn.Parameter) -> Tensor:
    return parameter.detach().float().requires_grad_()


def _counted(stage: Stage, replicated: bool, split: bool) -> Iterator[tuple[str, bool]]:
    """For each parameter by name, whether this rank counts it in the global norm."""
    specs = {spec.name: spec.shard_dim is not None for spec in weight_specs(stage.workload.model)}
    tied_copy = stage.workload.model.tied_embeddings and stage.last and not stage.first
    for name, _ in stage.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if name.startswith("blocks."):
            is_split = specs[leaf]
        else:
            is_split = leaf == "weight"
            if tied_copy and name == "head.weight":
                yield name, False
                continue
        yield name, split if is_split else replicated
