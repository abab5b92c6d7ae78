"""The ranks that measure together: started through torchrun, asked one thing at a time.

Whatever ends a rank, the others are ended and the reason is told within seconds: torchrun watches
its ranks, this side watches torchrun, and every rank watches both.
"""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from kareus.core.workload import Workload
from kareus.device.nvml import Device
from kareus.device.registry import ProcessId
from kareus.device.visible import ORDER_VARIABLE, VISIBLE_VARIABLE
from kareus.errors import DeviceError
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
from kareus.profiling.trial import DeviceKind

_START_S = 300.0
_POLL_S = 0.2
_END_S = 5.0
_LOG_FILE = "log"
# An entry of torchrun's table; its other lines name ranks and codes of different processes.
_ENDED = re.compile(r"^ *rank *: (\d+) \(local_rank: \d+\)\n *exitcode *: (-?\d+)", re.MULTILINE)


class RankGroup:
    """A running group of ranks; use it as a context.

    Args:
        num_ranks: How many.
        device: What is measured on.
        devices: The GPU of each rank; empty on a CPU.
        workload: What is measured; None for static power only.
        seed: Of weights and inputs.

    Raises:
        DeviceError: It did not come up; the message has the reason.
    """

    def __init__(
        self,
        num_ranks: int,
        *,
        device: DeviceKind,
        devices: Sequence[Device] = (),
        workload: Workload | None = None,
        seed: int = 0,
    ) -> None:
        self._num_ranks = num_ranks
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        with contextlib.ExitStack() as stack:
            self._folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="kareus-ranks-"))
            )
            (self._folder / SETUP_FILE).write_bytes(
                SETUP.dump_json(
                    Setup(device=device, workload=workload, owner=ProcessId.of(), seed=seed)
                )
            )
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(self._folder / SOCKET_FILE))
            listener.listen(1)
            stack.callback(self._end)
            self._process = self._start(_environment(device, devices, num_ranks))
            self._channel = stack.enter_context(contextlib.closing(self._accept(listener)))
            self._read(_START_S, "to start")
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def ask(self, request: Request, *, timeout_s: float) -> Reply:
        """Return the ranks' reply to a request.

        Args:
            request: What to do.
            timeout_s: How long it may take at most.

        Raises:
            DeviceError: A rank ended or did not answer; the group is then of no more use.
        """
        assert self._channel is not None, "the group is closed"
        try:
            self._channel.send(REQUEST.dump_json(request))
        except OSError:
            raise self._failure("while it was asked") from None
        return self._read(timeout_s, f"measuring {request.partition}" if request.partition else "")

    def close(self) -> None:
        """Stop the ranks; kill those that do not stop."""
        if self._channel is not None and self._process is not None:
            ranks = self._ranks()
            with contextlib.suppress(OSError):
                self._channel.send(REQUEST.dump_json(Request(task=Task.STOP)))
                psutil.wait_procs(ranks, timeout=_END_S)
            # Its ranks gone, torchrun has nothing left to do.
            self._process.kill()
        self._channel = None
        self._resources.close()

    def abort(self) -> None:
        """Kill the ranks at once; whoever waits for them, in whatever thread, gets an error."""
        for rank in self._ranks():
            with contextlib.suppress(psutil.Error):
                rank.kill()

    def _start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / _LOG_FILE).open("wb") as log:
            return subprocess.Popen(
                [
                    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nnodes=1",
                    f"--nproc-per-node={self._num_ranks}", "--max-restarts=0",
                    "--monitor-interval=0.1", "--local-addr=127.0.0.1",
                    "-m", "kareus.profiling.worker", str(self._folder),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is this process' to handle: it stops the ranks and releases the clocks.
                start_new_session=True,
                env=dict(environment),
            )  # fmt: skip

    def _accept(self, listener: socket.socket) -> Channel:
        deadline_s = time.monotonic() + _START_S
        while True:
            if select.select([listener], [], [], _POLL_S)[0]:
                return Channel(listener.accept()[0])
            self._check_process("while it started")
            if time.monotonic() > deadline_s:
                raise self._failure(f"by not starting within {_START_S:.0f} s")

    def _read(self, timeout_s: float, what: str) -> Reply:
        """The next reply, unless the ranks end or fall silent first."""
        assert self._channel is not None
        deadline_s = time.monotonic() + timeout_s
        while not select.select([self._channel], [], [], _POLL_S)[0]:
            self._check_process(f"while {what}" if what else "")
            if time.monotonic() > deadline_s:
                raise self._failure(f"by giving no answer for {timeout_s:.0f} s {what}".rstrip())
        line = self._channel.receive()
        if line is None:
            raise self._failure(f"while {what}" if what else "")
        return REPLY.validate_json(line)

    def _check_process(self, when: str) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise self._failure(when)

    def _failure(self, when: str) -> DeviceError:
        """The error for ranks that ended, once torchrun has said why, or was ended itself."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._end()
        return DeviceError(
            f"the measuring ranks failed {when}: {self._reason()}; what was measured before is kept"
        )

    def _reason(self) -> str:
        """Why they failed, in one line: what a rank said, what torchrun saw, the log's end."""
        said = [
            f"rank {path.stem.removeprefix('rank-')}: {path.read_text()}"
            for path in sorted(self._folder.glob("rank-*.error"))
        ]
        log = (self._folder / _LOG_FILE).read_text(errors="replace")
        killed = [
            f"rank {rank} was killed by signal {number}" for rank, number in killed_ranks(log)
        ]
        if killed or said:
            # The last in its table is what torchrun saw first.
            return "; ".join([*killed[-1:], *said[:1]])
        lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
        return lines[-1] if lines else "they left no message"

    def _ranks(self) -> list[psutil.Process]:
        """The processes that torchrun has started."""
        assert self._process is not None
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def _end(self) -> None:
        """Kill torchrun and its ranks, which live in sessions of their own."""
        process = self._process
        if process is None:
            return
        ranks = self._ranks()
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        for each in ranks:
            with contextlib.suppress(psutil.Error):
                each.kill()
        if process.poll() is None:
            process.kill()
        process.wait()


def killed_ranks(log: str) -> list[tuple[int, int]]:
    """Return (rank, signal) of the ranks that torchrun's log says were killed, as it lists them."""
    ended = [(int(match[1]), int(match[2])) for match in _ENDED.finditer(log)]
    # SIGTERM is how torchrun ends the others.
    return [(rank, -code) for rank, code in ended if code < 0 and code != -signal.SIGTERM]


def _environment(device: DeviceKind, devices: Sequence[Device], num_ranks: int) -> dict[str, str]:
    """What the ranks see: their GPUs by unique name, and a fair share of the cores."""
    environment = dict(os.environ)
    if device.uses_gpus:
        environment[VISIBLE_VARIABLE] = ",".join(each.uuid for each in devices)
        environment[ORDER_VARIABLE] = "PCI_BUS_ID"
    cores = len(os.sched_getaffinity(0))
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    # All ranks are on this machine, whatever its name resolves to.
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment
