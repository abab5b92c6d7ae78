"""What all use cases share: one database, opened at the first use."""

from pathlib import Path

from kareus.jobs.manager import JobManager
from kareus.store import Store, default_home


class Base:
    """A database, opened at the first use.

    Args:
        database: Its file; None for kareus.db in $KAREUS_HOME, else in the checkout's runs/.
    """

    def __init__(self, database: Path | None = None) -> None:
        self._database = database
        self._opened: Store | None = None

    @property
    def store(self) -> Store:
        """The database, opened at the first use."""
        if self._opened is None:
            self._opened = Store(self._database)
        return self._opened

    @property
    def home(self) -> Path:
        """The folder for what is kept beside the database."""
        return self._database.parent if self._database is not None else default_home()

    @property
    def manager(self) -> JobManager:
        """Starts and watches jobs."""
        return JobManager(self.store)
