"""What the process that asks and the ranks that measure say to each other: JSON, a line each.

The asking process listens on a socket in a folder of its own; rank 0 connects, passes every request
on to the other ranks and answers with one line.
"""

import socket
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import TypeAdapter

from kareus.core.configuration import Configuration
from kareus.core.workload import Workload
from kareus.device.registry import ProcessId
from kareus.profiling.trial import DeviceKind, RankReading

SOCKET_FILE = "socket"
SETUP_FILE = "setup.json"


class Task(StrEnum):
    """What is asked for."""

    MEASURE = "measure"
    STATIC_POWER = "static-power"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What every rank is told at its start.

    Attributes:
        device: What is measured on.
        workload: The workload; None where only static power is measured.
        owner: The process that asks; ranks end with it.
        seed: Of weights and inputs.
    """

    device: DeviceKind
    workload: Workload | None
    owner: ProcessId
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the ranks should do next.

    Attributes:
        task: What.
        partition: The unit to measure.
        configuration: Its configuration; the clock is locked already.
        cooldown_s: Rest before warming up.
        warmup_s: Warm-up, at least.
        window_s: The window.
    """

    task: Task
    partition: str = ""
    configuration: Configuration | None = None
    cooldown_s: float = 0.0
    warmup_s: float = 0.0
    window_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the ranks answer.

    Attributes:
        readings: One per rank that measured.
        refused: Why the configuration cannot be measured; None if it was.
    """

    readings: tuple[RankReading, ...] = field(default=())
    refused: str | None = None


SETUP = TypeAdapter(Setup)
REQUEST = TypeAdapter(Request)
REPLY = TypeAdapter(Reply)


class Channel:
    """Lines over a connected socket.

    Args:
        connection: The socket, which this closes.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = connection.makefile("rb")

    def fileno(self) -> int:
        """Return what `select` waits for: one line is read per answer, so none lies buffered."""
        return self._connection.fileno()

    def send(self, line: bytes) -> None:
        """Send a line.

        Raises:
            OSError: The other side is gone.
        """
        self._connection.sendall(line + b"\n")

    def receive(self) -> bytes | None:
        """Return the next line, waiting for it; None once the other side is gone."""
        try:
            line = self._reader.readline()
        except OSError:
            return None
        return line if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close the socket."""
        self._reader.close()
        self._connection.close()
