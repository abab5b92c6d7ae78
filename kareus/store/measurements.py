"""Measurements, each stored as it comes and exactly once; what the searches made of them."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import FailedMeasurement, Measurement, PartitionOption, SourceKind
from kareus.errors import MeasurementError, NotFoundError
from kareus.store.records import SearchRecord, now, to_json
from kareus.store.sqlite import Connections
from kareus.store.studies import require_study

Result = Measurement | FailedMeasurement

OPTIONS: TypeAdapter[tuple[PartitionOption, ...]] = TypeAdapter(tuple[PartitionOption, ...])

RESULT_COLUMNS = (
    "partition",
    "clock_mhz",
    "sm_allocation",
    "launch_point",
    "repeat",
    "time_s",
    "energy_j",
    "time_spread_s",
    "energy_spread_j",
    "source",
    "conditions",
    "failure",
)
_INSERT = (
    f"INSERT INTO measurements (study, seed, measured_at, {', '.join(RESULT_COLUMNS)})"
    f" VALUES (?, ?, ?{', ?' * len(RESULT_COLUMNS)})"
)


class MeasurementTable:
    """The part of the store that keeps measurements, searches and partition options."""

    _connections: Connections

    def add_measurements(
        self,
        study: str,
        results: Iterable[Result],
        *,
        seed: int | None = None,
        skip_known: bool = False,
    ) -> int:
        """Store results, all or none of them, in one transaction.

        Args:
            study: The study's id.
            results: Measurements and failures, in the order they came; any number, also one.
            seed: Seed of the source; None where there is none.
            skip_known: Leave out what is stored already for the same (partition, configuration,
                repeat); otherwise that is an error.

        Returns:
            How many were stored.

        Raises:
            MeasurementError: One is stored already, and `skip_known` is False.
            NotFoundError: There is no such study.
        """
        stamp = now()
        statement = _INSERT + (" ON CONFLICT DO NOTHING" if skip_known else "")
        stored = 0
        with self._connections.writing() as db:
            for result in results:
                try:
                    cursor = db.conn.execute(
                        statement, (study, seed, stamp, *result_values(result))
                    )
                except sqlite3.IntegrityError as error:
                    raise _refusal(error, study, result) from error
                stored += cursor.rowcount
        return stored

    def measurements(self, study: str, partition: str | None = None) -> tuple[Result, ...]:
        """Return a study's results, or those of one partition, in the order they came."""
        where, values = _where(study, partition)
        with self._connections.reading() as db:
            cursor = db.execute(
                f"SELECT {', '.join(RESULT_COLUMNS)} FROM measurements WHERE {where}"
                " ORDER BY sequence",
                values,
            )
            rows = cursor.fetchall()
        return tuple(result_of(row) for row in rows)

    def measurement_rows(self, study: str, partition: str | None = None) -> list[dict[str, Any]]:
        """Return the same as plain rows (with sequence, seed and measured_at), for data frames."""
        where, values = _where(study, partition)
        with self._connections.reading() as db:
            return list(
                db.query(
                    f"SELECT sequence, seed, measured_at, {', '.join(RESULT_COLUMNS)}"
                    f" FROM measurements WHERE {where} ORDER BY sequence",
                    values,
                )
            )

    def count_measurements(self, study: str) -> dict[str, int]:
        """Return how many results each partition of a study has."""
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT partition, count(*) FROM measurements WHERE study = ?"
                " GROUP BY partition ORDER BY min(sequence)",
                [study],
            ).fetchall()
        return dict(rows)

    def save_search(self, study: str, search: SearchRecord) -> None:
        """Store how far a partition's search is; replaces what was stored of it.

        Raises:
            NotFoundError: There is no such study.
        """
        with self._connections.writing() as db:
            require_study(db, study)
            db.execute(
                "INSERT OR REPLACE INTO searches"
                " (study, partition, state, planned, done, hypervolume)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [
                    study,
                    search.partition,
                    search.state,
                    search.planned,
                    search.done,
                    to_json(list(search.hypervolume)),
                ],
            )

    def searches(self, study: str) -> tuple[SearchRecord, ...]:
        """Return the searches of a study, in the order they were first stored."""
        with self._connections.reading() as db:
            rows = list(db.query("SELECT * FROM searches WHERE study = ? ORDER BY rowid", [study]))
        return tuple(
            SearchRecord(
                partition=row["partition"],
                state=row["state"],
                planned=row["planned"],
                done=row["done"],
                hypervolume=tuple(json.loads(row["hypervolume"])),
            )
            for row in rows
        )

    def save_options(self, study: str, options: Mapping[str, Sequence[PartitionOption]]) -> None:
        """Store the options the composition counts with, per partition; replaces them.

        Raises:
            NotFoundError: There is no such study.
        """
        with self._connections.writing() as db:
            require_study(db, study)
            for partition, values in options.items():
                db.execute(
                    "INSERT OR REPLACE INTO options (study, partition, options) VALUES (?, ?, ?)",
                    [study, partition, OPTIONS.dump_json(tuple(values)).decode()],
                )

    def load_options(self, study: str) -> dict[str, tuple[PartitionOption, ...]]:
        """Return the stored options per partition; empty where there are none yet."""
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT partition, options FROM options WHERE study = ? ORDER BY rowid", [study]
            ).fetchall()
        return {partition: OPTIONS.validate_json(text) for partition, text in rows}


def result_values(result: Result) -> tuple[object, ...]:
    """Return a result as the values of `RESULT_COLUMNS`."""
    configuration = result.configuration
    launch_point = configuration.launch_point
    place = (
        result.partition,
        configuration.clock_mhz,
        configuration.sm_allocation,
        launch_point.value if launch_point is not None else None,
        result.repeat,
    )
    if isinstance(result, FailedMeasurement):
        return (*place, None, None, None, None, None, "{}", result.reason)
    return (
        *place,
        result.time_s,
        result.energy_j,
        result.time_spread_s,
        result.energy_spread_j,
        result.source.value,
        to_json(result.conditions) if result.conditions else "{}",
        None,
    )


def result_of(row: Sequence[Any]) -> Result:
    """Return the result that the values of `RESULT_COLUMNS` stand for."""
    (partition, clock, sms, point, repeat, time_s, energy_j, time_spread, energy_spread) = row[:9]
    source, conditions, failure = row[9:]
    configuration = Configuration(
        clock_mhz=clock,
        sm_allocation=sms,
        launch_point=LaunchPoint(point) if point is not None else None,
    )
    if failure is not None:
        return FailedMeasurement(
            partition=partition, configuration=configuration, reason=failure, repeat=repeat
        )
    return Measurement(
        partition=partition,
        configuration=configuration,
        time_s=time_s,
        energy_j=energy_j,
        source=SourceKind(source),
        time_spread_s=time_spread,
        energy_spread_j=energy_spread,
        repeat=repeat,
        conditions={} if conditions == "{}" else json.loads(conditions),
    )


def _where(study: str, partition: str | None) -> tuple[str, list[str]]:
    if partition is None:
        return "study = ?", [study]
    return "study = ? AND partition = ?", [study, partition]


def _refusal(
    error: sqlite3.IntegrityError, study: str, result: Result
) -> NotFoundError | MeasurementError:
    """Say in the user's words why a result could not be stored."""
    if "FOREIGN KEY" in str(error):
        return NotFoundError(f"there is no study {study!r}: `kareus studies` lists them")
    configuration = result.configuration
    place = (
        f"{result.partition} at {configuration.clock_mhz} MHz, "
        f"{configuration.sm_allocation} SMs, launch point {configuration.launch_point}, "
        f"repeat {result.repeat}"
    )
    if "UNIQUE" in str(error):
        return MeasurementError(
            f"study {study} has a measurement of {place} already: number repeats 0, 1, 2, ..."
        )
    return MeasurementError(f"the measurement of {place} cannot be stored: {error}")
