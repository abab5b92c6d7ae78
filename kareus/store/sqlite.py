"""Connections to the database: one per thread and process, write-ahead log, short transactions.

Every table module reads through `Connections.reading` and writes through `Connections.writing`;
both turn the database's own errors into `StoreError`, with the path and the remedy.
"""

import contextlib
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
from sqlite_utils import Database

from kareus.errors import DatabaseFileError, StoreError
from kareus.store.migrations import migrate

BUSY_TIMEOUT_S = 30.0
_LEAST_VERSION = (3, 37, 0)  # The first with STRICT tables.

# The write-ahead log needs memory shared by all processes and locks that work: network file
# systems give neither, and the damage shows only later (sqlite.org/wal.html, section 1).
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "afs", "ncpfs", "fuse.sshfs"}
)
_LOCAL_DISK = "use a folder on a local disk (--db PATH or KAREUS_HOME)"


class _Handle:
    """A connection with the process it belongs to; closed when the last user lets go of it."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.process = os.getpid()

    def __del__(self) -> None:
        if self.process == os.getpid():
            self.db.close()


# SQLite forbids closing, in a forked child, a connection of the parent: they are kept for ever.
_INHERITED: list[_Handle] = []


class Connections:
    """Opens one connection per thread and process to one database.

    Args:
        path: The file; created with its folder if absent. None for a database in memory, which
            all threads of this object share one at a time.
        busy_timeout_s: How long a writer waits for another one, in seconds.
    """

    def __init__(self, path: Path | None, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        if sqlite3.sqlite_version_info < _LEAST_VERSION:
            raise StoreError(
                f"SQLite {sqlite3.sqlite_version} is too old, 3.37 is needed: use a newer Python"
            )
        self.path = path
        self.busy_timeout_s = busy_timeout_s
        self._local = threading.local()
        self._generation = 0
        self._memory_lock = threading.RLock()
        self._memory: _Handle | None = None
        if path is None:
            self._memory = self._open(f"file:kareus-{uuid.uuid4().hex}?mode=memory", uri=True)
        else:
            _check_place(path)
            self._handle()

    @contextlib.contextmanager
    def reading(self) -> Iterator[Database]:
        """Give this thread's connection for reading; each statement sees committed data.

        Raises:
            StoreError: The database cannot be read.
        """
        with self._exclusive(), self._translated():
            yield self._handle().db

    @contextlib.contextmanager
    def writing(self) -> Iterator[Database]:
        """Give this thread's connection inside one write transaction; nests as savepoints.

        The write lock is taken at the start (`BEGIN IMMEDIATE`): a transaction that reads first
        and writes later would fail at once, whatever the busy timeout, if another process wrote
        in between.

        Raises:
            StoreError: The database is locked for too long or cannot be written.
        """
        with self._exclusive(), self._translated():
            db = self._handle().db
            if db.conn.in_transaction:
                with db.atomic():
                    yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            try:
                db.commit()
            except BaseException:
                db.rollback()
                raise

    def close(self) -> None:
        """Close this thread's connection; other threads' close as they end or next use them."""
        self._generation += 1
        handle = getattr(self._local, "handle", None)
        self._local.handle = None
        for closing in (handle, self._memory):
            if closing is not None and closing.process == os.getpid():
                closing.db.close()

    @property
    def name(self) -> str:
        """What messages call this database."""
        return str(self.path) if self.path is not None else "the database in memory"

    def _exclusive(self) -> contextlib.AbstractContextManager[object]:
        """Let one thread at a time use a database in memory; files need no such lock."""
        return self._memory_lock if self._memory is not None else contextlib.nullcontext()

    def _handle(self) -> _Handle:
        """This thread's connection, opened at first use and again after a fork or a close."""
        if self._memory is not None:
            return self._memory
        handle: _Handle | None = getattr(self._local, "handle", None)
        if handle is not None and handle.process != os.getpid():
            _INHERITED.append(handle)
        # Another thread's close must not take the connection out of a transaction.
        elif handle is not None and (
            handle.db.conn.in_transaction or self._local.generation == self._generation
        ):
            return handle
        handle = self._open(str(self.path), uri=False)
        self._local.handle = handle
        self._local.generation = self._generation
        return handle

    def _open(self, target: str, *, uri: bool) -> _Handle:
        with self._translated():
            connection = sqlite3.connect(
                target, uri=uri, timeout=self.busy_timeout_s, check_same_thread=False
            )
            handle = _Handle(Database(connection, strict=True))
            self._set_up(handle.db)
        return handle

    def _set_up(self, db: Database) -> None:
        """Set the connection's modes and bring the schema up to date."""
        if self.path is not None:
            # Switching a new file to WAL does not honour the busy timeout.
            deadline = time.monotonic() + self.busy_timeout_s
            while True:
                try:
                    db.enable_wal()
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            if db.journal_mode != "wal":
                raise StoreError(
                    f"{self.path} cannot keep a write-ahead log on its file system: {_LOCAL_DISK}"
                )
        # With WAL, NORMAL loses at most the last commits at a power cut, never consistency, and
        # nothing when a process dies.
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA foreign_keys=ON")
        migrate(db, name=self.name)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the database's errors into one-line `StoreError`s."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            kind = DatabaseFileError if "not a database" in str(error) else StoreError
            raise kind(self._explain(error)) from error

    def _explain(self, error: sqlite3.Error) -> str:
        text = str(error)
        remedies = {
            "locked": f"is in use by another program for more than {self.busy_timeout_s:g} s: "
            "close what holds it (a database browser, a copy under way) and try again",
            "not a database": "is not a database: name another file with --db, or move it away",
            "malformed": "is damaged: restore a copy, or move it away to start a new one",
            "unable to open": "cannot be opened: check that the folder exists and that you may "
            "write to it, or set KAREUS_HOME",
            "readonly": "may not be written: check its permissions and its folder's, or set "
            "KAREUS_HOME",
            "locking protocol": f"cannot be locked on its file system: {_LOCAL_DISK}",
            "disk I/O": f"cannot be read or written ({text}): check the disk, and {_LOCAL_DISK}",
            "full": "cannot grow, the disk is full: free some space",
            "Cannot operate on a closed": "was closed already: open the store again",
        }
        for part, remedy in remedies.items():
            if part in text:
                return f"{self.name} {remedy}"
        return f"{self.name} failed: {text}"


def _check_place(path: Path) -> None:
    """Create the folder; refuse folders as files, and network file systems.

    Raises:
        StoreError: The place cannot hold the database.
    """
    if path.is_dir():
        raise DatabaseFileError(f"{path} is a folder: name a file, such as {path / 'kareus.db'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"folder {path.parent} cannot be created ({error.strerror}): set KAREUS_HOME to one "
            "you may write to"
        ) from error
    kind = file_system(path.parent)
    if kind in _NETWORK_FILE_SYSTEMS:
        raise StoreError(f"{path} is on a network file system ({kind}): {_LOCAL_DISK}")


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds a folder, such as `ext4`; '' if unknown."""
    place = folder.resolve()
    best, kind = -1, ""
    for mount in psutil.disk_partitions(all=True):
        point = Path(mount.mountpoint)
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), mount.fstype
    return kind
