"""The store: one object for everything that is kept, opened on one database file."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import platformdirs

import kareus
from kareus.store.datasets import DatasetTable
from kareus.store.explorations import ExplorationTable
from kareus.store.frontiers import FrontierTable
from kareus.store.jobs import JobTable
from kareus.store.measurements import MeasurementTable
from kareus.store.sqlite import BUSY_TIMEOUT_S, Connections
from kareus.store.studies import StudyTable


class Store(StudyTable, MeasurementTable, FrontierTable, DatasetTable, ExplorationTable, JobTable):
    """Studies, measurements, searches, frontiers, plans, data sets and jobs in one SQLite file.

    May be used from several threads; each gets a connection of its own, as does a forked child.
    Several processes may open the same file. Every method is one short transaction.

    Args:
        path: The database file, created if absent; None for `default_path()`.
        busy_timeout_s: How long to wait for another writer, in seconds.

    Raises:
        StoreError: The file cannot be opened, is no database, belongs to another program or to a
            newer version, or lies on a network file system.
    """

    def __init__(
        self, path: str | Path | None = None, *, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        place = Path(path).expanduser().absolute() if path is not None else default_path()
        self._connections = Connections(place, busy_timeout_s=busy_timeout_s)

    @classmethod
    def in_memory(cls) -> Self:
        """Return a store that lasts as long as the object; other processes cannot see it."""
        store = cls.__new__(cls)
        store._connections = Connections(None)
        return store

    @property
    def path(self) -> Path | None:
        """The database file; None in memory."""
        return self._connections.path

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything done inside one transaction of this thread: all of it or nothing.

        Keep it short: other writers wait meanwhile.
        """
        with self._connections.writing():
            yield

    def close(self) -> None:
        """Close this thread's connection; using the store again opens a new one."""
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def default_home() -> Path:
    """Return the folder for database and artifacts.

    KAREUS_HOME if set; `runs/` of a checkout; else the user's data folder.
    """
    if home := os.environ.get("KAREUS_HOME"):
        return Path(home).expanduser().absolute()
    checkout = Path(kareus.__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "runs").is_dir():
        return checkout / "runs"
    return Path(platformdirs.user_data_dir("kareus"))


def default_path() -> Path:
    """Return the database file used where none is named."""
    return default_home() / "kareus.db"
