"""Checkpoints: every rank's share of weights and moments, by `torch.distributed.checkpoint`.

    <folder>/step-00000120/   one checkpoint; torch writes `.metadata` last, so one without it was
                              cut off and is passed over

A checkpoint belongs to a way of sharing the model out (pp, tp, layers per stage), not to a plan:
training may go on under another schedule, or with other numbers of replicas.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from kareus.core.workload import Workload
from kareus.errors import ConfigError, NotFoundError

_DESCRIPTION = "kareus.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint.

    Attributes:
        path: Its folder.
        step: Steps trained.
        description: What it was made with.
    """

    path: Path
    step: int
    description: dict[str, Any]


def describe_run(
    workload: Workload, *, seed: int, dtype: str, data: str | None, decay_steps: int
) -> dict[str, Any]:
    """Return what a checkpoint says about the run it comes from."""
    model = workload.model
    return {
        "model": model.name,
        "model_shape": [
            model.num_layers, model.hidden_size, model.ffn_hidden_size, model.num_heads,
            model.num_kv_heads, model.head_dim, model.vocab_size,
        ],
        "pp": workload.parallelism.pp,
        "tp": workload.parallelism.tp,
        "stage_layers": list(workload.stage_layers),
        "global_batch": workload.microbatch_size
        * workload.num_microbatches
        * workload.parallelism.dp,
        "seq_len": workload.seq_len,
        "dtype": dtype,
        "seed": seed,
        "data": data,
        "decay_steps": decay_steps,
    }  # fmt: skip


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a folder, oldest first."""
    found = []
    for path in sorted(folder.glob("step-*")):
        if not (path / ".metadata").is_file():
            continue
        try:
            description = json.loads((path / _DESCRIPTION).read_text())
            step = int(path.name.removeprefix("step-"))
        except (OSError, ValueError):
            continue
        found.append(Checkpoint(path=path, step=step, description=description))
    return found


def newest_checkpoint(folder: Path) -> Checkpoint:
    """Return the newest complete checkpoint.

    Raises:
        NotFoundError: There is none.
    """
    found = find_checkpoints(folder)
    if not found:
        raise NotFoundError(
            f"{folder}: holds no complete checkpoint to resume from; start without --resume, or "
            "give the right --checkpoint-dir"
        )
    return found[-1]


def check_checkpoint(checkpoint: Checkpoint, description: dict[str, Any]) -> None:
    """Refuse a checkpoint of another run than the one described.

    Raises:
        ConfigError: Naming what differs.
    """
    for name, wanted in description.items():
        found = checkpoint.description.get(name)
        if name != "decay_steps" and found != wanted:
            raise ConfigError(
                f"{checkpoint.path}: was made with {name} {found}, this run has {wanted}: resume "
                f"with {name} {found}, or start a new run in another --checkpoint-dir"
            )


def save_checkpoint(
    folder: Path,
    step: int,
    state: dict[str, Tensor],
    *,
    description: dict[str, Any],
    prefix: str,
    keep: int,
) -> Path:
    """Write a checkpoint; every rank must call it.

    Args:
        folder: Folder of the checkpoints.
        step: Steps trained.
        state: This rank's tensors by name.
        description: See `describe_run`.
        prefix: Tells tensors of this rank from those of others that hold something else; ranks
            with the same prefix hold the same.
        keep: How many of the newest to keep.

    Returns:
        The checkpoint's folder.
    """
    path = folder / f"step-{step:08d}"
    is_first = dist.get_rank() == 0
    if is_first:
        shutil.rmtree(path, ignore_errors=True)  # one that was cut off
        path.mkdir(parents=True, exist_ok=True)
        (path / _DESCRIPTION).write_text(json.dumps(description) + "\n")
    dist.barrier()
    save({f"{prefix}{name}": tensor for name, tensor in state.items()}, checkpoint_id=path)
    if is_first:
        for old in find_checkpoints(folder)[:-keep]:
            shutil.rmtree(old.path, ignore_errors=True)
    return path


def load_checkpoint(checkpoint: Checkpoint, state: dict[str, Tensor], *, prefix: str) -> None:
    """Read a checkpoint into this rank's tensors; every rank must call it.

    Raises:
        ConfigError: It lacks something, or cannot be read.
    """
    try:
        load(
            {f"{prefix}{name}": tensor for name, tensor in state.items()},
            checkpoint_id=checkpoint.path,
        )
    except (CheckpointException, RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ConfigError(
            f"{checkpoint.path}: cannot be loaded ({reason}); remove it to resume from the one "
            "before"
        ) from error
