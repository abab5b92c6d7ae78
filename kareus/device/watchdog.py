"""A process of its own that resets clocks when their owner ends, for whatever reason.

    owner ──starts──> watchdog            owner ends (SIGKILL included)
      │ claims GPUs, locks clocks           │
      └──── pipe, held open ────────────────┴─> end of file: reset what the owner still holds

It lives in a session of its own, so neither Ctrl-C nor the end of a terminal reaches it, and
carries no mark of a job, so that ending a job's processes spares it. What to reset it reads from
the registry when the time has come; an owner that gave everything back leaves it nothing to do.
"""

import argparse
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from kareus.device.nvml import device_by_uuid
from kareus.device.registry import ClockClaim, ClockRegistry, ProcessId
from kareus.errors import DeviceError

_LOGGER = logging.getLogger(__name__)
_JOB_VARIABLE = "KAREUS_JOB"  # Marks a job's processes, all of which are ended with it.
_READY_S = 60.0
_ATTEMPTS, _PAUSE_S = 20, 0.5
_POLL_S = 0.5


class Watchdog:
    """The owner's side: starts the process and keeps its pipe open.

    Args:
        registry: Where the owner's claims lie.

    Raises:
        DeviceError: It did not come up; no clock may then be locked.
    """

    def __init__(self, registry: ClockRegistry) -> None:
        owner = ProcessId.of()
        environment = {name: v for name, v in os.environ.items() if name != _JOB_VARIABLE}
        process = subprocess.Popen(
            [
                sys.executable, "-m", __name__, "--owner", str(owner.pid),
                "--created", repr(owner.created_s), "--folder", str(registry.folder.resolve()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        self._pipe = process.stdin
        with process.stdout as answer:
            ready, _, _ = select.select([answer], [], [], _READY_S)
            said = answer.readline().split() if ready else []
        # What answers is a child of that process, which has done its part.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=10.0)
        if len(said) != 1 or not said[0].isdigit():
            process.kill()
            process.wait()
            self._pipe.close()
            raise DeviceError(
                "the watchdog that would release the clocks did not start, so none is locked: "
                "check that this Python can start processes, and its messages above"
            )
        self.process = ProcessId.of(int(said[0]))

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self.process.alive

    def dismiss(self, *, timeout_s: float = 15.0) -> None:
        """Let it go, and wait until it has reset what its owner still holds."""
        with contextlib.suppress(OSError):
            self._pipe.close()
        deadline_s = time.monotonic() + timeout_s
        while self.process.alive and time.monotonic() < deadline_s:
            time.sleep(0.02)


def reset_claimed(registry: ClockRegistry, claims: list[ClockClaim]) -> list[ClockClaim]:
    """Reset the clocks of claimed GPUs, give them back, and return those that refused."""
    refused = []
    for claim in claims:
        try:
            if claim.clock_mhz is not None:
                device_by_uuid(claim.uuid).reset_clock()
        except DeviceError:
            _LOGGER.exception("GPU %d: its clock could not be reset", claim.index)
            refused.append(claim)
        else:
            registry.give_back(claim.uuid, claim.owner)
    return refused


def _watch(owner: ProcessId, registry: ClockRegistry) -> int:
    """Wait for the owner's end, then reset what it holds."""
    while owner.alive:
        ready, _, _ = select.select([0], [], [], _POLL_S)
        # Nothing is ever written: readable means closed.
        if ready and not os.read(0, 64):
            break
    me = os.getpid()
    for attempt in range(_ATTEMPTS):
        # An owner that lives on dismissed this watchdog only; it may hold other GPUs with others.
        left = [
            claim
            for claim in registry.claims()
            if claim.owner == owner
            and (claim.stale or (claim.watchdog is not None and claim.watchdog.pid == me))
        ]
        if not left or not reset_claimed(registry, left):
            return 0
        _LOGGER.warning("attempt %d of %d failed", attempt + 1, _ATTEMPTS)
        time.sleep(_PAUSE_S)
    return 1


def main() -> int:
    """Run the watchdog's process: detach, say that it is there, watch."""
    parser = argparse.ArgumentParser(prog="python -m kareus.device.watchdog")
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--created", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        # Orphaned, it is nobody's child: ending a process with its children spares it.
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="kareus watchdog: %(message)s")
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    # The owner reads no further; a closed pipe must not end the watchdog.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return _watch(
        ProcessId(pid=options.owner, created_s=options.created), ClockRegistry(options.folder)
    )


if __name__ == "__main__":
    sys.exit(main())
