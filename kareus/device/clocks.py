"""Locks the SM clocks of a group of GPUs, and sees to it that they are released.

Order matters: a GPU is claimed in the registry and its watchdog runs before its clock is locked; it
is given back only after its clock was reset. Whatever ends this process in between, its watchdog
resets what the registry says it holds.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from kareus.device.nvml import ClockPermissionError, Device, find_devices
from kareus.device.registry import ClockClaim, ClockRegistry, ProcessId
from kareus.device.watchdog import Watchdog
from kareus.errors import DeviceError

_LOGGER = logging.getLogger(__name__)
CLOCK_TOLERANCE_MHZ = 15
"""A clock within one step of the devices' own grid counts as kept."""
_POLL_S = 0.02


class ClockKeeper:
    """Holds the clocks of some GPUs; use it as a context.

    Args:
        devices: The GPUs, which no other process may hold.
        registry: The claims of this machine; None for the usual place.
    """

    def __init__(self, devices: Sequence[Device], *, registry: ClockRegistry | None = None) -> None:
        self._devices = tuple(devices)
        self._registry = registry or ClockRegistry()
        self._owner = ProcessId.of()
        self._watchdog: Watchdog | None = None
        self._claimed: list[Device] = []
        self._untouched: set[str] = set()
        self._supported_mhz: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def claim(self) -> None:
        """Claim the GPUs for this process.

        Raises:
            DeviceError: Another process holds one of them, or the watchdog did not start.
        """
        if self._watchdog is None or not self._watchdog.alive:
            self._watchdog = Watchdog(self._registry)
            for device in self._claimed:
                self._registry.claim(device.identity, self._owner, self._watchdog.process)
        for device in self._devices:
            if device not in self._claimed:
                self._registry.claim(device.identity, self._owner, self._watchdog.process)
                self._claimed.append(device)
                self._untouched.add(device.uuid)

    def lock(self, clock_mhz: int, *, only: Device | None = None) -> None:
        """Lock the clock of all GPUs; `wait_settled` tells when it holds.

        Args:
            clock_mhz: The clock.
            only: The GPU to lock; None for all.

        Raises:
            ClockPermissionError: This process may not.
            DeviceError: A GPU does not support the clock, is held by another process, or refuses.
        """
        devices = self._devices if only is None else (only,)
        for device in devices:
            # A clock may change with every instruction of a training step: ask the GPU once.
            if device.uuid not in self._supported_mhz:
                self._supported_mhz[device.uuid] = device.supported_clocks_mhz()
            supported_mhz = self._supported_mhz[device.uuid]
            if clock_mhz not in supported_mhz:
                near = sorted(supported_mhz, key=lambda mhz: abs(mhz - clock_mhz))[:2]
                raise DeviceError(
                    f"GPU {device.index} ({device.name}) has no clock of {clock_mhz} MHz: "
                    f"the nearest are {' and '.join(map(str, sorted(near)))} MHz"
                )
        self.claim()
        for device in devices:
            if device.uuid in self._untouched:
                self._registry.note_clock(device.uuid, self._owner, clock_mhz)
            try:
                device.lock_clock(clock_mhz)
            except ClockPermissionError:
                # Refused before it did anything: there is nothing to reset.
                if device.uuid in self._untouched:
                    self._registry.give_back(device.uuid, self._owner)
                    self._claimed.remove(device)
                raise
            self._untouched.discard(device.uuid)

    def release(self) -> None:
        """Reset the clocks of all claimed GPUs and give them back.

        A GPU that refuses stays claimed; the watchdog tries again when it is let go, and
        `release_clocks` reports what is left.
        """
        for device in tuple(self._claimed):
            try:
                if device.uuid not in self._untouched:
                    device.reset_clock()
            except DeviceError:
                _LOGGER.exception("GPU %d: its clock could not be reset", device.index)
            else:
                self._registry.give_back(device.uuid, self._owner)
            self._claimed.remove(device)
        if self._watchdog is not None:
            self._watchdog.dismiss()
            self._watchdog = None


def wait_settled(device: Device, clock_mhz: int, *, timeout_s: float) -> int:
    """Wait until the clock of a GPU is not above what it was locked to, and return it.

    An idle GPU may rest below its lock; under load the clock is watched by every measurement.

    Args:
        device: The GPU.
        clock_mhz: What it was locked to.
        timeout_s: When to give up; the clock of that moment is returned.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        found_mhz = device.clock_mhz()
        if found_mhz <= clock_mhz + CLOCK_TOLERANCE_MHZ or time.monotonic() > deadline_s:
            return found_mhz
        time.sleep(_POLL_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedClock:
    """What releasing did to a GPU.

    Attributes:
        index: Its number for the driver.
        name: Its model.
        released: Whether its clock is its own again.
        reason: Why not, or what was released.
    """

    index: int
    name: str
    released: bool
    reason: str


def release_clocks(*, registry: ClockRegistry | None = None) -> tuple[ReleasedClock, ...]:
    """Reset the clocks of all GPUs of this machine but those a living process holds.

    Also what other programs locked, since a GPU does not say who did.

    Raises:
        DeviceError: There is no driver.
    """
    registry = registry or ClockRegistry()
    claims = {claim.uuid: claim for claim in settled_claims(registry)}
    results = []
    for device in find_devices():
        claim = claims.get(device.uuid)
        if claim is not None and not claim.stale:
            released, reason = False, f"{claim.describe()}; cancel that job first"
        else:
            try:
                device.reset_clock()
            except DeviceError as error:
                released, reason = False, str(error)
            else:
                released, reason = True, "reset"
                if claim is not None:
                    registry.give_back(claim.uuid, claim.owner)
                    reason = f"reset; left by process {claim.owner.pid}, which is gone"
        results.append(
            ReleasedClock(index=device.index, name=device.name, released=released, reason=reason)
        )
    return tuple(results)


def settled_claims(registry: ClockRegistry, *, timeout_s: float = 15.0) -> tuple[ClockClaim, ...]:
    """Return the claims once no watchdog is at work on a stale one."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        claims = registry.claims()
        at_work = any(
            claim.stale and claim.watchdog is not None and claim.watchdog.alive for claim in claims
        )
        if not at_work or time.monotonic() > deadline_s:
            return claims
        time.sleep(_POLL_S)
