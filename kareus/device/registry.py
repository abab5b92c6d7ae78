"""Who holds which GPU's clock: one small file per GPU, shared by all processes of the machine.

NVML cannot say whether, by whom or to what a clock was locked, and a lock outlives its program. So
a process claims a GPU here before it locks its clock and gives it back after resetting it. A claim
whose process is gone is stale: its clock may still be locked. Claims are exclusive, so two
measurements never share a GPU.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from pydantic import TypeAdapter, ValidationError

from kareus.device.visible import DeviceIdentity
from kareus.errors import DeviceError

FOLDER_VARIABLE = "KAREUS_CLOCK_LOCKS"
# Creation times are kept in clock ticks; reading one twice may differ in the last of them.
_CREATION_TOLERANCE_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessId:
    """A process, told from a later one of the same number.

    Attributes:
        pid: Its number.
        created_s: When it was created, seconds since the epoch.
    """

    pid: int
    created_s: float

    @staticmethod
    def of(pid: int | None = None) -> "ProcessId":
        """Return the identity of a living process; this one if no number is given."""
        process = psutil.Process(pid)
        return ProcessId(pid=process.pid, created_s=process.create_time())

    @property
    def alive(self) -> bool:
        """Whether it lives."""
        try:
            process = psutil.Process(self.pid)
            return (
                abs(process.create_time() - self.created_s) < _CREATION_TOLERANCE_S
                and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockClaim:
    """A GPU in somebody's hands.

    Attributes:
        uuid: The GPU.
        index: Its number for the driver when it was claimed.
        owner: The process that locks its clock.
        watchdog: The process that resets it should the owner end; None before there is one.
        clock_mhz: What it was first locked to; None if it was not locked yet.
        since_s: When it was claimed, seconds since the epoch.
    """

    uuid: str
    index: int
    owner: ProcessId
    watchdog: ProcessId | None
    clock_mhz: int | None
    since_s: float

    @property
    def stale(self) -> bool:
        """Whether its owner is gone."""
        return not self.owner.alive

    def describe(self) -> str:
        """Return what is known of it in words."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since_s))
        locked = f", locked (first to {self.clock_mhz} MHz)" if self.clock_mhz is not None else ""
        return f"GPU {self.index}: held by process {self.owner.pid} since {since}{locked}"


_CLAIM = TypeAdapter(ClockClaim)


class ClockRegistry:
    """The claims of this machine.

    Args:
        folder: Where they lie; None for `KAREUS_CLOCK_LOCKS`, else a folder that all users share.
    """

    def __init__(self, folder: Path | None = None) -> None:
        named = os.environ.get(FOLDER_VARIABLE)
        self.folder = folder or (
            Path(named) if named else Path(tempfile.gettempdir()) / "kareus-clock-locks"
        )

    def claims(self) -> tuple[ClockClaim, ...]:
        """Return all claims, by GPU number."""
        with self._exclusive():
            return self._read()

    def claim(self, device: DeviceIdentity, owner: ProcessId, watchdog: ProcessId | None) -> None:
        """Claim a GPU for a process; a stale claim is taken over, one's own gets a new watchdog.

        Raises:
            DeviceError: A living process holds it.
        """
        with self._exclusive():
            for claim in self._read():
                if claim.uuid != device.uuid:
                    continue
                if claim.owner == owner:
                    self._write(replace(claim, watchdog=watchdog))
                    return
                if not claim.stale:
                    raise DeviceError(
                        f"{claim.describe()}: two measurements on one GPU spoil each other's "
                        "energy; wait for that one, or cancel it"
                    )
            self._write(
                ClockClaim(
                    uuid=device.uuid,
                    index=device.index,
                    owner=owner,
                    watchdog=watchdog,
                    clock_mhz=None,
                    since_s=time.time(),
                )
            )

    def note_clock(self, uuid: str, owner: ProcessId, clock_mhz: int) -> None:
        """Note that an owner is about to lock its GPU's clock.

        Raises:
            DeviceError: It does not hold that GPU.
        """
        with self._exclusive():
            for claim in self._read():
                if claim.uuid == uuid and claim.owner == owner:
                    self._write(replace(claim, clock_mhz=clock_mhz))
                    return
        raise DeviceError(f"GPU {uuid} was given back: claim it before locking its clock")

    def give_back(self, uuid: str, owner: ProcessId) -> None:
        """Remove an owner's claim; its clock must have been reset."""
        with self._exclusive():
            for claim in self._read():
                if claim.uuid == uuid and claim.owner == owner:
                    with self._for_other_users(claim):
                        self._path(uuid).unlink(missing_ok=True)

    def _read(self) -> tuple[ClockClaim, ...]:
        claims = []
        for path in self.folder.glob("*.json"):
            try:
                claims.append(_CLAIM.validate_json(path.read_bytes()))
            except FileNotFoundError:
                continue
            except (OSError, ValidationError) as error:
                raise DeviceError(
                    f"{path} does not say who holds a GPU ({type(error).__name__}): release clocks "
                    "with nvidia-smi --reset-gpu-clocks, then remove the file"
                ) from error
        return tuple(sorted(claims, key=lambda claim: claim.index))

    def _write(self, claim: ClockClaim) -> None:
        handle, unfinished = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            file.write(_CLAIM.dump_json(claim))
            os.fchmod(handle, 0o644)
        with self._for_other_users(claim):
            Path(unfinished).replace(self._path(claim.uuid))

    def _path(self, uuid: str) -> Path:
        return self.folder / f"{uuid}.json"

    @contextlib.contextmanager
    def _for_other_users(self, claim: ClockClaim) -> Iterator[None]:
        """Say whose a claim is that this user may not change."""
        try:
            yield
        except PermissionError as error:
            raise DeviceError(
                f"{claim.describe()}, by another user: release it as root with "
                "kareus doctor --release-clocks"
            ) from error

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other processes out; ends with the process at the latest."""
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True, exist_ok=True)
                self.folder.chmod(0o1777)
            handle = _open_lock(self.folder / "lock")
        except OSError as error:
            raise DeviceError(
                f"{self.folder}: the list of locked clocks cannot be kept there "
                f"({error.strerror}); set {FOLDER_VARIABLE} to a folder you may write to"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _open_lock(path: Path) -> int:
    """Open the file that is locked; its owner may be another user."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        pass
    try:
        # Not at once: creating is refused where the file is there and another user's.
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags)
