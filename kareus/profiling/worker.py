"""A rank that measures: `python -m torch.distributed.run ... -m kareus.profiling.worker FOLDER`.

It is told what to measure by the process that started it (see `protocol`) and never sets a clock:
that process does, so that nobody is left to lock one after a watchdog has released it. It ends when
that process does.
"""

import argparse
import contextlib
import datetime
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from kareus.core.configuration import Configuration
from kareus.core.workload import Parallelism
from kareus.device.energy import ProcessorCounter, processor_counter
from kareus.device.monitor import DeviceMonitor
from kareus.device.nvml import visible_devices
from kareus.device.registry import ProcessId
from kareus.errors import ConfigError, KareusError
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.partition_runner import PartitionRunner
from kareus.profiling.protocol import (
    REPLY,
    REQUEST,
    SETUP,
    SETUP_FILE,
    SOCKET_FILE,
    Channel,
    Reply,
    Request,
    Setup,
    Task,
)
from kareus.profiling.trial import DeviceKind, RankReading
from kareus.profiling.window import Synchroniser, measure_window

_IDLE = datetime.timedelta(days=30)  # A search may think for long between two requests.
_PARENT_POLL_S = 0.5
_BLOCKED_LEAD_S = 0.5


class Rank:
    """This rank's part of a group.

    Args:
        setup: What it is told.
        synchroniser: Over all ranks.
    """

    def __init__(self, setup: Setup, synchroniser: Synchroniser) -> None:
        self._synchroniser = synchroniser
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._device = torch.device("cpu")
        if setup.device is DeviceKind.CUDA:
            self._device = _gpu()
        self._monitor: DeviceMonitor | None = None
        self._processors: ProcessorCounter | None = None
        if setup.device.uses_gpus:
            self._monitor = DeviceMonitor(visible_devices()[local_rank])
        elif synchroniser.rank == 0:
            self._processors = processor_counter()
        self._runner: PartitionRunner | None = None
        if setup.workload is not None:
            self._runner = PartitionRunner(
                setup.workload,
                groups=self._groups(setup.workload.parallelism),
                device=self._device,
                seed=setup.seed,
            )

    def _groups(self, parallelism: Parallelism) -> ParallelGroups:
        if self._synchroniser.size == 1:
            return ParallelGroups.single(self._device)
        group = Parallelism(tp=parallelism.tp, cp=parallelism.cp)
        mesh = build_mesh(group, self._device.type)
        return ParallelGroups.from_mesh(mesh, self._device, average=True)

    def perform(self, request: Request) -> Reply:
        """Do what is asked for and return the reply of all ranks, the same on each."""
        if request.task is Task.STATIC_POWER:
            return self._collect(self._static_power(request.window_s), None)
        assert request.configuration is not None, "a measurement has a configuration"
        reading, refused = self._measure(request, request.configuration)
        return self._collect(reading, refused)

    def _measure(
        self, request: Request, configuration: Configuration
    ) -> tuple[RankReading | None, str | None]:
        """Measure one configuration, or say why it cannot be."""
        assert self._runner is not None, "only groups with a workload measure"
        refused = None
        try:
            run = self._runner.prepare(request.partition)
            # Refusals come before a unit's first operation, and on every rank alike.
            run(configuration)
        except ConfigError as error:
            refused = str(error)
        except torch.OutOfMemoryError as error:
            refused = f"out of memory: {str(error).splitlines()[0]}"
            self._runner.release()
        # A rank that fails alone must not leave the others in a collective.
        if any(self._synchroniser.collect(refused or "")):
            return None, refused
        time.sleep(request.cooldown_s)
        reading = measure_window(
            lambda: run(configuration),
            device=self._device,
            synchroniser=self._synchroniser,
            warmup_s=request.warmup_s,
            window_s=request.window_s,
            monitor=self._monitor,
            processors=self._processors,
        )
        applied = self._runner.applies_allocation
        return replace(reading, allocation_applied=applied), None

    def _static_power(self, window_s: float) -> RankReading | None:
        """Watch this GPU while it is blocked on a receive; rank 0 keeps the others waiting."""
        assert self._monitor is not None, "only GPUs have a static power"
        message = torch.zeros(1, device=self._device)
        others = range(1, self._synchroniser.size)
        if self._synchroniser.rank == 0:
            # A first message makes the communicators, for which NCCL blocks the host.
            for other in others:
                dist.send(message, dst=other)
            self._synchroniser.barrier()
            time.sleep(2 * _BLOCKED_LEAD_S + window_s)
            for other in others:
                dist.send(message, dst=other)
            return None
        dist.recv(message, src=0)
        self._synchroniser.barrier()
        work = dist.irecv(message, src=0)
        time.sleep(_BLOCKED_LEAD_S)
        self._monitor.begin()
        time.sleep(window_s)
        window = self._monitor.end()
        if work is not None:
            work.wait()
        return RankReading(
            rank=self._synchroniser.rank,
            time_s=window.duration_s,
            time_spread_s=None,
            num_executions=1,
            warmup_s=0.0,
            window=window,
        )

    def _collect(self, reading: RankReading | None, refused: str | None) -> Reply:
        own = REPLY.dump_json(
            Reply(readings=(reading,) if reading is not None else (), refused=refused)
        )
        replies = [REPLY.validate_json(text) for text in self._synchroniser.collect(own.decode())]
        return Reply(
            readings=tuple(reading for reply in replies for reading in reply.readings),
            refused=next((reply.refused for reply in replies if reply.refused), None),
        )


def _gpu() -> torch.device:
    """This rank's GPU, made the current one."""
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def _world(setup: Setup) -> Iterator[Synchroniser]:
    """Join the other ranks that torchrun has started."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Synchroniser(None)
        return
    if setup.device is DeviceKind.CUDA:
        dist.init_process_group("nccl", device_id=_gpu())
    else:
        dist.init_process_group("gloo")
    try:
        yield Synchroniser(dist.new_group(backend="gloo", timeout=_IDLE))
    finally:
        dist.destroy_process_group()


def _end_with(owner: ProcessId) -> None:
    """End this process as soon as the asking process, or torchrun, is gone."""
    agent = os.getppid()

    def watch() -> None:
        while os.getppid() == agent and owner.alive:
            time.sleep(_PARENT_POLL_S)
        os._exit(3)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _serve(setup: Setup, folder: Path) -> None:
    """Answer requests until told to stop."""
    with _world(setup) as synchroniser, contextlib.ExitStack() as stack:
        channel: Channel | None = None
        if synchroniser.rank == 0:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(folder / SOCKET_FILE))
            channel = stack.enter_context(contextlib.closing(Channel(connection)))
        rank = Rank(setup, synchroniser)
        synchroniser.barrier()
        if channel is not None:
            channel.send(REPLY.dump_json(Reply()))
        while True:
            line = None
            if channel is not None:
                line = channel.receive() or REQUEST.dump_json(Request(task=Task.STOP))
            request = REQUEST.validate_json(synchroniser.share(line.decode() if line else None))
            if request.task is Task.STOP:
                return
            reply = rank.perform(request)
            if channel is not None:
                channel.send(REPLY.dump_json(reply))


def main() -> int:
    """Run one rank."""
    parser = argparse.ArgumentParser(prog="python -m kareus.profiling.worker")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    setup = SETUP.validate_json((folder / SETUP_FILE).read_bytes())
    _end_with(setup.owner)
    rank = os.environ.get("RANK", "0")
    try:
        _serve(setup, folder)
    except BaseException as error:
        what = str(error) if isinstance(error, KareusError) else f"{type(error).__name__}: {error}"
        (folder / f"rank-{rank}.error").write_text(" ".join(what.split()))
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is said and closed; taking torch down in order would only take seconds.
    os._exit(status)
