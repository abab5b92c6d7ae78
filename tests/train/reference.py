"""Training as anyone would write it: one process, no schedule, torch's own parts."""

from dataclasses import replace

import torch

from kareus.core.workload import Parallelism, Recompute, Workload
from kareus.execute.parallel import ParallelGroups
from kareus.execute.stage import Stage
from kareus.train.data import SyntheticTokens, TokenSource, load_batch
from kareus.train.optimizer import learning_rate_at


def reference_losses(
    workload: Workload, num_steps: int, *, decay_steps: int | None = None
) -> list[float]:
    """Loss of every step with the trainer's defaults."""
    return [loss for loss, _ in reference_steps(workload, num_steps, decay_steps=decay_steps)]


def reference_steps(
    workload: Workload,
    num_steps: int,
    *,
    decay_steps: int | None = None,
    source: TokenSource | None = None,
) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step."""
    dp = workload.parallelism.dp
    single = replace(
        workload,
        parallelism=Parallelism(),
        stage_layers=(workload.model.num_layers,),
        recompute=Recompute.NONE,
    )
    device = torch.device("cpu")
    stage = Stage(
        single, 0, groups=ParallelGroups.single(device), device=device, dtype=torch.float32
    )
    parameters = list(stage.parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
    )
    source = source or SyntheticTokens(
        vocab_size=workload.model.vocab_size, seq_len=workload.seq_len, seed=0
    )
    steps = []
    for step in range(1, num_steps + 1):
        batches = [load_batch(source, workload, step=step, dp_rank=rank) for rank in range(dp)]
        tokens, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        loss = stage.loss(stage(tokens), targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(
                step, highest=1e-3, warmup_steps=2, decay_steps=decay_steps or num_steps
            )
        optimizer.step()
        steps.append((loss.item(), norm.item()))
    return steps
