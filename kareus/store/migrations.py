"""The schema, as numbered migrations; each is committed together with the record of it.

Times are UTC ISO 8601 text, heartbeats seconds since the epoch, documents JSON text.
"""

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from kareus.errors import DatabaseFileError, StoreError

MIGRATIONS = Migrations("kareus")

_RESULT_COLUMNS = """
    partition TEXT NOT NULL,
    clock_mhz INTEGER NOT NULL,
    sm_allocation INTEGER,
    launch_point TEXT,
    repeat INTEGER NOT NULL,
    time_s REAL,
    energy_j REAL,
    time_spread_s REAL,
    energy_spread_j REAL,
    source TEXT,
    conditions TEXT NOT NULL,
    failure TEXT,
    CHECK ((failure IS NULL) = (time_s IS NOT NULL))
"""
_CONFIGURATION = "partition, clock_mhz, ifnull(launch_point, ''), ifnull(sm_allocation, -1), repeat"


def migrate(db: Database, *, name: str) -> None:
    """Bring a database to this version's schema; several processes may try at once.

    Args:
        db: An open connection, outside any transaction.
        name: What messages call the database.

    Raises:
        StoreError: It belongs to another program, or to a newer version of this one.
    """
    _refuse_foreign(db, name)
    if not MIGRATIONS.pending(db):
        return
    # The lock comes first, then the question what is pending: two processes must not both
    # apply the same migration.
    db.execute("BEGIN IMMEDIATE")
    try:
        _refuse_foreign(db, name)
        MIGRATIONS.apply(db)
        db.commit()
    except BaseException:
        db.rollback()
        raise


def _refuse_foreign(db: Database, name: str) -> None:
    known = {migration.name for migration in MIGRATIONS._migrations}
    applied = {migration.name for migration in MIGRATIONS.applied(db)}
    if newer := sorted(applied - known):
        raise StoreError(
            f"{name} was written by a newer version of kareus (schema {newer[-1]}): "
            "update kareus, or name another file with --db"
        )
    if not applied and (tables := [t for t in db.table_names() if t != "_sqlite_migrations"]):
        raise DatabaseFileError(
            f"{name} belongs to another program (it has a table {tables[0]}): "
            "name another file with --db"
        )


@MIGRATIONS(name="0001_studies")
def _studies(db: Database) -> None:
    db.executescript(
        f"""
        CREATE TABLE studies (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            state TEXT NOT NULL,
            source TEXT NOT NULL,
            extrapolated INTEGER NOT NULL DEFAULT 0,
            archived INTEGER NOT NULL DEFAULT 0,
            request TEXT NOT NULL,
            notes TEXT NOT NULL,
            versions TEXT NOT NULL,
            summary TEXT,
            error TEXT,
            created_at TEXT NOT NULL,
            finished_at TEXT
        ) STRICT;
        CREATE INDEX studies_created ON studies (created_at);

        CREATE TABLE measurements (
            sequence INTEGER PRIMARY KEY,
            study TEXT NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
            seed INTEGER,
            measured_at TEXT NOT NULL,
            {_RESULT_COLUMNS}
        ) STRICT;
        CREATE UNIQUE INDEX measurements_once ON measurements (study, {_CONFIGURATION});

        CREATE TABLE searches (
            study TEXT NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
            partition TEXT NOT NULL,
            state TEXT NOT NULL,
            planned INTEGER NOT NULL,
            done INTEGER NOT NULL,
            hypervolume TEXT NOT NULL,
            PRIMARY KEY (study, partition)
        ) STRICT;

        CREATE TABLE options (
            study TEXT NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
            partition TEXT NOT NULL,
            options TEXT NOT NULL,
            PRIMARY KEY (study, partition)
        ) STRICT;

        CREATE TABLE frontiers (
            study TEXT NOT NULL REFERENCES studies (id) ON DELETE CASCADE,
            method TEXT NOT NULL,
            options TEXT NOT NULL,
            PRIMARY KEY (study, method)
        ) STRICT;

        CREATE TABLE plans (
            study TEXT NOT NULL,
            method TEXT NOT NULL,
            number INTEGER NOT NULL,
            iteration_time_s REAL NOT NULL,
            effective_energy_j REAL NOT NULL,
            pipeline_energy_j REAL NOT NULL,
            bound_j REAL,
            choices TEXT NOT NULL,
            PRIMARY KEY (study, method, number),
            FOREIGN KEY (study, method) REFERENCES frontiers (study, method) ON DELETE CASCADE
        ) STRICT;
        """
    )


@MIGRATIONS(name="0002_jobs")
def _jobs(db: Database) -> None:
    db.executescript(
        """
        CREATE TABLE jobs (
            id TEXT PRIMARY KEY,
            study TEXT REFERENCES studies (id) ON DELETE SET NULL,
            kind TEXT NOT NULL,
            state TEXT NOT NULL,
            attempt INTEGER NOT NULL DEFAULT 0,
            request TEXT NOT NULL,
            resources TEXT NOT NULL,
            pid INTEGER,
            process_created_s REAL,
            host TEXT,
            heartbeat_s REAL,
            progress TEXT,
            error TEXT,
            traceback TEXT,
            log_path TEXT,
            created_at TEXT NOT NULL,
            started_at TEXT,
            finished_at TEXT
        ) STRICT;
        CREATE INDEX jobs_by_study ON jobs (study);
        CREATE INDEX jobs_by_state ON jobs (state);

        CREATE TABLE leases (
            resource TEXT PRIMARY KEY,
            job TEXT NOT NULL REFERENCES jobs (id) ON DELETE CASCADE
        ) STRICT;
        """
    )


@MIGRATIONS(name="0003_datasets")
def _datasets(db: Database) -> None:
    db.executescript(
        f"""
        CREATE TABLE datasets (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            origin TEXT NOT NULL,
            workload TEXT NOT NULL,
            report TEXT NOT NULL,
            created_at TEXT NOT NULL
        ) STRICT;

        CREATE TABLE recorded (
            sequence INTEGER PRIMARY KEY,
            dataset TEXT NOT NULL REFERENCES datasets (id) ON DELETE CASCADE,
            {_RESULT_COLUMNS}
        ) STRICT;
        CREATE UNIQUE INDEX recorded_once ON recorded (dataset, {_CONFIGURATION});
        """
    )


@MIGRATIONS(name="0004_explorations")
def _explorations(db: Database) -> None:
    db.executescript(
        """
        CREATE TABLE explorations (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            request TEXT NOT NULL,
            result TEXT,
            created_at TEXT NOT NULL
        ) STRICT;
        """
    )
