"""Imported recorded measurements, kept apart from studies until one replays them."""

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from kareus.core.measurement import Measurement
from kareus.errors import MeasurementError, NotFoundError
from kareus.store.measurements import RESULT_COLUMNS, result_of, result_values
from kareus.store.records import DatasetRecord, moment, new_id, now, to_json
from kareus.store.sqlite import Connections


class DatasetTable:
    """The part of the store that keeps imported measurements."""

    _connections: Connections

    def add_dataset(
        self,
        name: str,
        *,
        origin: str,
        workload: Mapping[str, object],
        report: Mapping[str, object],
        measurements: Iterable[Measurement],
    ) -> DatasetRecord:
        """Store imported measurements, all or none of them.

        Args:
            name: What its id is made of.
            origin: Where they were read from.
            workload: The workload's document.
            report: What was taken, repeated and refused.
            measurements: At least one.

        Raises:
            MeasurementError: There is none, or one appears twice.
        """
        rows = [result_values(measurement) for measurement in measurements]
        if not rows:
            raise MeasurementError(
                f"{origin} has no usable measurement: see the refused rows for the reasons"
            )
        dataset = new_id(name)
        columns = ", ".join(RESULT_COLUMNS)
        try:
            with self._connections.writing() as db:
                db.table("datasets").insert(
                    {
                        "id": dataset,
                        "name": name,
                        "origin": origin,
                        "workload": to_json(workload),
                        "report": to_json(report),
                        "created_at": now(),
                    }
                )
                db.conn.executemany(
                    f"INSERT INTO recorded (dataset, {columns})"
                    f" VALUES (?{', ?' * len(RESULT_COLUMNS)})",
                    [(dataset, *row) for row in rows],
                )
        except sqlite3.IntegrityError as error:
            raise MeasurementError(
                f"{origin} has two measurements with equal configuration and repeat: number "
                "repeats 0, 1, 2, ..."
            ) from error
        return self.dataset(dataset)

    def dataset(self, dataset: str) -> DatasetRecord:
        """Return one data set by its id.

        Raises:
            NotFoundError: There is none.
        """
        found = [record for record in self.datasets() if record.id == dataset]
        if not found:
            raise NotFoundError(f"there is no data set {dataset!r}: `kareus import PATH` makes one")
        return found[0]

    def datasets(self) -> tuple[DatasetRecord, ...]:
        """Return the data sets, newest first."""
        with self._connections.reading() as db:
            rows = list(
                db.query(
                    "SELECT d.*, (SELECT count(*) FROM recorded r WHERE r.dataset = d.id)"
                    " AS num_rows FROM datasets d ORDER BY created_at DESC, rowid DESC"
                )
            )
        return tuple(_dataset(row) for row in rows)

    def dataset_measurements(self, dataset: str) -> tuple[Measurement, ...]:
        """Return a data set's measurements in the order they were imported.

        Raises:
            NotFoundError: There is no such data set.
        """
        self.dataset(dataset)
        with self._connections.reading() as db:
            rows = db.execute(
                f"SELECT {', '.join(RESULT_COLUMNS)} FROM recorded WHERE dataset = ?"
                " ORDER BY sequence",
                [dataset],
            ).fetchall()
        results = (result_of(row) for row in rows)
        return tuple(result for result in results if isinstance(result, Measurement))


def _dataset(row: Mapping[str, Any]) -> DatasetRecord:
    return DatasetRecord(
        id=row["id"],
        name=row["name"],
        origin=row["origin"],
        workload=json.loads(row["workload"]),
        report=json.loads(row["report"]),
        created_at=moment(row["created_at"]),
        num_rows=row["num_rows"],
    )
