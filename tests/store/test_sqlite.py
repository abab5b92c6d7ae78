import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from sqlite_utils import Database

from kareus.core.measurement import SourceKind
from kareus.errors import StoreError
from kareus.store import Store, default_home, default_path
from kareus.store.migrations import MIGRATIONS
from tests.store.examples import measurement


def _run_at_once(programs: list[str]) -> list[int]:
    """Run programs as processes side by side and return their exit statuses."""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    return [process.wait(timeout=60) for process in processes]


def _schema(path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    finally:
        connection.close()


def test_a_new_file_gets_wal_strict_tables_and_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "kareus.db"
    with Store(path) as store:
        assert store.path == path
        with store._connections.reading() as db:
            assert db.journal_mode == "wal"
            tables = [t for t in db.tables if not t.name.startswith("_")]
            assert {t.name for t in tables} >= {"studies", "measurements", "plans", "jobs"}
            assert all(t.strict for t in tables)


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kareus.db"
    with Store(path) as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR)
    before = _schema(path)
    with Store(path) as store:
        assert store.study(study.id) == study
        with store._connections.reading() as db:
            assert MIGRATIONS.pending(db) == []
    assert _schema(path) == before


def test_a_database_stopped_between_migrations_is_brought_up_to_date(tmp_path: Path) -> None:
    path, whole = tmp_path / "old.db", tmp_path / "new.db"
    db = Database(path, strict=True)
    MIGRATIONS.apply(db, stop_before="0002_jobs")
    db.close()
    with Store(path) as store:
        store.create_job("a")
    Store(whole).close()
    # Migration records differ in their times only, so the schemas are equal.
    assert _schema(path) == _schema(whole)


def test_a_failed_migration_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kareus.db"

    def broken(db: object) -> None:
        db.execute("CREATE TABLE half (x INTEGER) STRICT")
        raise ZeroDivisionError

    monkeypatch.setattr(MIGRATIONS, "_migrations", list(MIGRATIONS._migrations))
    MIGRATIONS(name="9999_broken")(broken)
    with pytest.raises(ZeroDivisionError):
        Store(path)
    assert "half" not in {name for name, _ in _schema(path)}
    monkeypatch.undo()
    with Store(path) as store:
        assert store.studies() == ()


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "kareus.db"
    Store(path).close()
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
        " VALUES ('kareus', '0999_future', '')"
    )
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"newer version of kareus \(schema 0999_future\)"):
        Store(path)


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (x)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="belongs to another program"):
        Store(path)
    assert [name for name, _ in _schema(path)] == ["songs"]


@pytest.mark.parametrize(
    "content", [b"this is a text file, longer than a header\n" * 9, os.urandom(4096)]
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is not a database: name another file"):
        Store(path)
    assert path.read_bytes() == content


def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    path = tmp_path / "kareus.db"
    with Store(path) as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        store.add_measurements(study, [measurement(clock) for clock in range(900, 1900)])
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(path.read_bytes())
    data[8192:] = os.urandom(len(data) - 8192)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged|not a database"):
        Store(path).measurements(study)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder: name a file"):
        Store(tmp_path)


def test_a_place_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be created"):
        Store(tmp_path / "file" / "kareus.db")


def test_a_network_file_system_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mount:
        mountpoint, fstype = str(tmp_path), "nfs4"

    real = psutil.disk_partitions(all=True)
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: [*real, Mount()])
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*local disk"):
        Store(tmp_path / "kareus.db")
    assert not (tmp_path / "kareus.db").exists()


def test_a_lock_held_too_long_is_named_and_leaves_the_store_usable(tmp_path: Path) -> None:
    path = tmp_path / "kareus.db"
    with Store(path, busy_timeout_s=0.2) as store:
        blocker = sqlite3.connect(path)
        blocker.execute("BEGIN IMMEDIATE")
        assert store.studies() == ()  # Readers are not blocked by a writer.
        with pytest.raises(StoreError, match=r"in use by another program for more than 0\.2 s"):
            store.create_study("n", request={}, source=SourceKind.SIMULATOR)
        blocker.rollback()
        blocker.close()
        assert store.create_study("n", request={}, source=SourceKind.SIMULATOR)


def test_an_exception_inside_a_transaction_undoes_all_of_it(tmp_path: Path) -> None:
    with Store(tmp_path / "kareus.db") as store:
        with pytest.raises(ZeroDivisionError), store._connections.writing() as db:
            db.execute(
                "INSERT INTO datasets VALUES ('a', 'a', 'a', '{}', '{}', '2026-01-01T00:00:00Z')"
            )
            raise ZeroDivisionError
        assert store.datasets() == ()


def test_threads_share_a_store(tmp_path: Path) -> None:
    with Store(tmp_path / "kareus.db") as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        errors: list[BaseException] = []

        def write(part: int) -> None:
            try:
                for index in range(50):
                    store.add_measurements(study, [measurement(1000 + 100 * part + index)])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(store.measurements(study)) == 200


def test_memory_is_shared_by_threads_and_by_nothing_else() -> None:
    store = Store.in_memory()
    thread = threading.Thread(
        target=lambda: store.create_study("n", request={}, source=SourceKind.SIMULATOR)
    )
    thread.start()
    thread.join()
    assert len(store.studies()) == 1
    assert Store.in_memory().studies() == ()


def test_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kareus.db"
    program = """
from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, SourceKind
from kareus.store import Store
with Store({path!r}) as store:
    for index in range(150):
        store.add_measurements({study!r}, [Measurement(
            partition="p{part}", configuration=Configuration(clock_mhz=1000 + index),
            time_s=1.0, energy_j=1.0, source=SourceKind.SIMULATOR)])
        store.count_measurements({study!r})
"""
    with Store(path) as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        programs = [program.format(path=str(path), study=study, part=part) for part in range(2)]
        assert _run_at_once(programs) == [0, 0]
        assert store.count_measurements(study) == {"p0": 150, "p1": 150}


def test_processes_may_create_the_same_database_at_once(tmp_path: Path) -> None:
    path = tmp_path / "kareus.db"
    program = f"from kareus.store import Store; Store({str(path)!r}).close()"
    assert _run_at_once([program] * 3) == [0] * 3
    with Store(path) as store, store._connections.reading() as db:
        assert len(MIGRATIONS.applied(db)) == len(MIGRATIONS._migrations)


def test_threads_may_create_the_same_database_at_once(tmp_path: Path) -> None:
    for attempt in range(10):
        path = tmp_path / f"{attempt}.db"
        errors: list[BaseException] = []
        barrier = threading.Barrier(6)

        def create(path: Path, barrier: threading.Barrier, errors: list[BaseException]) -> None:
            barrier.wait()
            try:
                Store(path).close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=create, args=(path, barrier, errors)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


def test_a_forked_child_gets_a_connection_of_its_own(tmp_path: Path) -> None:
    with Store(tmp_path / "kareus.db") as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        child = os.fork()
        if child == 0:
            try:
                store.add_measurements(study, [measurement()])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        store.add_measurements(study, [measurement(930)])
        assert len(store.measurements(study)) == 2


def test_a_closed_store_opens_again_when_used(tmp_path: Path) -> None:
    store = Store(tmp_path / "kareus.db")
    store.close()
    assert store.studies() == ()
    store.close()


def test_the_default_place_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAREUS_HOME", str(tmp_path / "home"))
    assert default_path() == tmp_path / "home" / "kareus.db"
    monkeypatch.delenv("KAREUS_HOME")
    assert default_home().is_absolute()


def test_fifty_studies_are_listed_quickly(tmp_path: Path) -> None:
    with Store(tmp_path / "kareus.db") as store:
        for index in range(60):
            study = store.create_study(
                str(index), request={"x": list(range(100))}, source=SourceKind.SIMULATOR
            ).id
            store.describe_study(study, summary={"hypervolume": {"kareus": 1.0}})
        start = time.perf_counter()
        assert len(store.studies()) == 60
        assert time.perf_counter() - start < 0.2


def test_closing_in_one_thread_does_not_break_anothers_transaction(tmp_path: Path) -> None:
    with Store(tmp_path / "kareus.db", busy_timeout_s=0.5) as store:
        with store.transaction():
            study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
            thread = threading.Thread(target=store.close)
            thread.start()
            thread.join()
            store.add_measurements(study, [measurement()])
        assert len(store.measurements(study)) == 1


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StoreError, match=r"3\.37 is needed"):
        Store.in_memory()


def test_connections_of_ended_threads_are_closed(tmp_path: Path) -> None:
    with Store(tmp_path / "kareus.db") as store:
        files = psutil.Process().num_fds()
        for _ in range(20):
            thread = threading.Thread(target=store.studies)
            thread.start()
            thread.join()
        assert psutil.Process().num_fds() <= files + 3
