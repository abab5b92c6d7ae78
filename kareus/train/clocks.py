"""Who is asked for a clock: a process of its own, which takes the milliseconds that costs.

A request is four bytes down a pipe. The process (`clock_process`) locks the newest clock asked for,
so it never falls behind, and writes down what it did. When this process ends, for whatever reason,
the pipe closes, and it releases the GPU; should it die itself, its watchdog does.
"""

import contextlib
import json
import os
import queue
import select
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kareus.errors import DeviceError

if TYPE_CHECKING:
    import torch

REQUEST = struct.Struct("=I")
_READY_S = 90.0
_CLOSE_S = 30.0


class ClockSink(Protocol):
    """Takes clocks in MHz."""

    def request(self, clock_mhz: int) -> None:
        """Ask for a clock and return at once."""

    def close(self) -> None:
        """Release what is held; nothing may be asked for afterwards."""


class RecordedClocks:
    """Takes clocks and does nothing but keep them, in order."""

    def __init__(self) -> None:
        self.requests_mhz: list[int] = []

    def request(self, clock_mhz: int) -> None:
        """Keep a clock."""
        self.requests_mhz.append(clock_mhz)

    def close(self) -> None:
        """Do nothing."""


class ClockProcess:
    """Locks the clock of one GPU through a process of its own.

    Args:
        device: Which of the GPUs this process sees (`CUDA_VISIBLE_DEVICES`), from 0.
        first_clock_mhz: Locked before this returns, so that a missing permission shows now.
        log: JSON-lines file of what was done and what the GPU read.

    Raises:
        DeviceError: The clock cannot be locked.
    """

    def __init__(self, *, device: int, first_clock_mhz: int, log: Path) -> None:
        self._log = log
        command = [
            sys.executable, "-m", "kareus.train.clock_process", "--device", str(device),
            "--clock", str(first_clock_mhz), "--log", str(log.resolve()),
        ]  # fmt: skip
        # A session of its own: what ends a job's processes group by group must not end this one
        # before it has released the clock.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._pipe = self._process.stdin.fileno()
        ready, _, _ = select.select([self._process.stdout], [], [], _READY_S)
        answer = self._process.stdout.readline() if ready else b""
        if answer.strip() != b"ready":
            self._process.kill()
            self._process.wait()
            self._close_pipes()
            raise DeviceError(_reason(answer))

    def request(self, clock_mhz: int) -> None:
        """Ask for a clock and return at once.

        Raises:
            DeviceError: The process has ended; the message says why.
        """
        try:
            os.write(self._pipe, REQUEST.pack(clock_mhz))
        except OSError as error:
            assert self._process.stdout is not None
            raise DeviceError(_reason(self._process.stdout.readline())) from error

    def close(self) -> None:
        """Let the process release the clock and end."""
        if self._process.poll() is None:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            try:
                self._process.wait(timeout=_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its watchdog resets the clock
                self._process.wait()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class ClockInStreamOrder:
    """Passes clocks on when the GPU gets there, not when the host does.

    The host queues work ahead of the GPU; a clock set at once would hit an earlier instruction. An
    event marks the place in the stream, and a thread waits for it.

    Args:
        sink: Who sets the clock.
    """

    def __init__(self, sink: ClockSink) -> None:
        self._sink = sink
        self._queue: queue.SimpleQueue[tuple[torch.cuda.Event, int] | None] = queue.SimpleQueue()
        self._error: DeviceError | None = None
        self._thread = threading.Thread(target=self._follow, name="clock-requests", daemon=True)
        self._thread.start()

    def request(self, clock_mhz: int) -> None:
        """Ask for a clock from this place in the stream on.

        Raises:
            DeviceError: An earlier request could not be passed on.
        """
        import torch

        if self._error is not None:
            raise self._error
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._queue.put((event, clock_mhz))

    def close(self) -> None:
        """Stop following and close the sink."""
        self._queue.put(None)
        self._thread.join(timeout=_CLOSE_S)
        self._sink.close()

    def _follow(self) -> None:
        while (entry := self._queue.get()) is not None:
            event, clock_mhz = entry
            event.synchronize()
            try:
                self._sink.request(clock_mhz)
            except DeviceError as error:
                self._error = error
                return


def _reason(answer: bytes) -> str:
    """What the process said before it ended."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return (
            "the process that sets clocks did not start, or died without a word: see its messages "
            "above, or train with --clocks log"
        )
