"""Real processes over gloo for tests: a function runs on every rank and returns its results."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")
# Imported once by the fork server; every rank is then a cheap fork of it.
_CONTEXT.set_forkserver_preload(["tests.execute.preload"])

Target = Callable[..., Any]


def run_world(
    num_ranks: int,
    target: Target,
    *args: Any,
    timeout_s: float = 240.0,
    may_die: bool = False,
) -> list[Any]:
    """Return what `target(*args)` returned on each rank of a gloo world.

    With `may_die` a rank that dies without a word returned None.

    Raises:
        AssertionError: With the traceback of the first rank that failed, or on a timeout.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        processes, pipes = [], []
        for rank in range(num_ranks):
            receiver, sender = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(
                target=_run_rank, args=(rank, num_ranks, str(store), sender, target, args, may_die)
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        try:
            return _collect(pipes, timeout_s, may_die=may_die)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(pipes: list[Connection], timeout_s: float, *, may_die: bool) -> list[Any]:
    """Receive one result per rank; stop at the first failure."""
    results: dict[int, Any] = {}
    waiting = dict(enumerate(pipes))
    while waiting:
        ready = wait(list(waiting.values()), timeout_s)
        if not ready:
            raise AssertionError(f"ranks {sorted(waiting)} gave no result in {timeout_s} s")
        for rank, pipe in list(waiting.items()):
            if pipe not in ready:
                continue
            del waiting[rank]
            try:
                failure, results[rank] = pipe.recv()
            except EOFError:
                failure = None if may_die else "it died without a word"
                results[rank] = None
            if failure is not None:
                raise AssertionError(f"rank {rank} failed: {failure}")
    return [results[rank] for rank in range(len(pipes))]


def _run_rank(
    rank: int,
    num_ranks: int,
    store: str,
    sender: Connection,
    target: Target,
    args: tuple[Any, ...],
    may_die: bool,
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=num_ranks
        )
        result = target(*args)
        if not may_die:
            dist.barrier()
        sender.send((None, result))
        dist.destroy_process_group()
    except BaseException:
        sender.send((traceback.format_exc(), None))
        raise
