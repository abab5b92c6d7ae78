"""Studies: what was asked for, how far it is, and the headline it ended with."""

import difflib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from sqlite_utils import Database

from kareus.core.measurement import SourceKind
from kareus.errors import JobError, NotFoundError, StoreError
from kareus.store.records import (
    StudyRecord,
    StudyState,
    moment,
    new_id,
    now,
    optional_moment,
    to_json,
)
from kareus.store.sqlite import Connections

_FINISHED = (StudyState.DONE, StudyState.FAILED, StudyState.CANCELLED)
_ACTIVE_JOB = "('queued', 'running', 'cancelling')"


class StudyTable:
    """The part of the store that keeps studies."""

    _connections: Connections

    def create_study(
        self,
        name: str,
        *,
        request: Mapping[str, object],
        source: SourceKind,
        words: str = "",
        extrapolated: bool = False,
        notes: Sequence[str] = (),
        versions: Mapping[str, object] | None = None,
        state: StudyState = StudyState.QUEUED,
    ) -> StudyRecord:
        """Add a study.

        Args:
            name: As the user calls it.
            request: The document it is asked for with; JSON values only.
            source: Where its measurements will come from.
            words: What its id is made of, such as `llama3.2-3b-tp8-pp2`; the name if empty.
            extrapolated: Whether the simulator has no calibration for the GPU.
            notes: Assumptions and warnings, in words.
            versions: Of the package and what matters beside it.
            state: How far it is.

        Returns:
            The study, with an id of its own.

        Raises:
            StoreError: The request is no JSON document, or the database cannot be written.
        """
        row = {
            "name": name,
            "state": state.value,
            "source": source.value,
            "extrapolated": int(extrapolated),
            "request": to_json(request),
            "notes": to_json(list(notes)),
            "versions": to_json(versions or {}),
            "created_at": now(),
        }
        for num_random in (4, 4, 6, 8):
            study = new_id(words or name, num_random=num_random)
            try:
                with self._connections.writing() as db:
                    db.table("studies").insert({"id": study, **row})
            except sqlite3.IntegrityError:
                continue
            return self.study(study)
        raise StoreError(f"no free id for study {name!r}: choose another name")

    def study(self, study: str) -> StudyRecord:
        """Return one study by its id.

        Raises:
            NotFoundError: There is none.
        """
        with self._connections.reading() as db:
            rows = list(db.query("SELECT * FROM studies WHERE id = ?", [study]))
        if not rows:
            raise NotFoundError(self._unknown_study(study))
        return _study(rows[0])

    def find_study(self, text: str) -> StudyRecord:
        """Return the study a user means: by id, by name if only one has it, or by id's beginning.

        Raises:
            NotFoundError: None or several match.
        """
        with self._connections.reading() as db:
            rows = list(
                db.query(
                    "SELECT *, CASE WHEN id = :text THEN 0 WHEN name = :text THEN 1 ELSE 2 END"
                    " AS rank FROM studies WHERE id = :text OR name = :text"
                    " OR substr(id, 1, length(:text)) = :text ORDER BY rank, created_at",
                    {"text": text},
                )
            )
        if not text or not rows:
            raise NotFoundError(self._unknown_study(text))
        best = [row for row in rows if row["rank"] == rows[0]["rank"]]
        if len(best) > 1:
            ids = ", ".join(row["id"] for row in best[:5])
            raise NotFoundError(f"{text!r} means {len(best)} studies ({ids}): give the whole id")
        return _study(best[0])

    def studies(self, *, archived: bool | None = False) -> tuple[StudyRecord, ...]:
        """Return the studies, newest first; archived ones only, or both with None."""
        where = "" if archived is None else f"WHERE archived = {int(archived)}"
        with self._connections.reading() as db:
            rows = list(
                db.query(f"SELECT * FROM studies {where} ORDER BY created_at DESC, rowid DESC")
            )
        return tuple(_study(row) for row in rows)

    def set_study_state(self, study: str, state: StudyState, *, error: str | None = None) -> None:
        """Record how far a study is; a finished one gets its time, any other loses it.

        Raises:
            NotFoundError: There is no such study.
        """
        self._change_study(
            study,
            state=state.value,
            error=error,
            finished_at=now() if state in _FINISHED else None,
        )

    def describe_study(
        self,
        study: str,
        *,
        name: str | None = None,
        notes: Sequence[str] | None = None,
        versions: Mapping[str, object] | None = None,
        extrapolated: bool | None = None,
        summary: Mapping[str, object] | None = None,
        archived: bool | None = None,
    ) -> None:
        """Change what is said about a study; None leaves as it is.

        Raises:
            NotFoundError: There is no such study.
        """
        changes: dict[str, object] = {}
        if name is not None:
            changes["name"] = name
        if notes is not None:
            changes["notes"] = to_json(list(notes))
        if versions is not None:
            changes["versions"] = to_json(versions)
        if extrapolated is not None:
            changes["extrapolated"] = int(extrapolated)
        if summary is not None:
            changes["summary"] = to_json(summary)
        if archived is not None:
            changes["archived"] = int(archived)
        if changes:
            self._change_study(study, **changes)

    def delete_study(self, study: str) -> None:
        """Delete a study with its measurements, searches, frontiers, plans and finished jobs.

        Raises:
            NotFoundError: There is no such study.
            JobError: A job is working on it.
        """
        self.study(study)
        with self._connections.writing() as db:
            jobs = list(
                db.query(f"SELECT id FROM jobs WHERE study = ? AND state IN {_ACTIVE_JOB}", [study])
            )
            if jobs:
                raise JobError(
                    f"study {study} is being worked on by job {jobs[0]['id']}: cancel it first"
                )
            # A job without its study could never be resumed.
            db.execute("DELETE FROM jobs WHERE study = ?", [study])
            db.execute("DELETE FROM studies WHERE id = ?", [study])

    def _change_study(self, study: str, **changes: object) -> None:
        assignments = ", ".join(f"{column} = :{column}" for column in changes)
        with self._connections.writing() as db:
            cursor = db.execute(
                f"UPDATE studies SET {assignments} WHERE id = :id", {**changes, "id": study}
            )
            changed = cursor.rowcount
        if not changed:
            raise NotFoundError(self._unknown_study(study))

    def _unknown_study(self, text: str) -> str:
        with self._connections.reading() as db:
            ids = [row["id"] for row in db.query("SELECT id FROM studies")]
        near = difflib.get_close_matches(text, ids, n=1)
        hint = f"did you mean {near[0]}?" if near else "`kareus studies` lists them"
        return f"there is no study {text!r}: {hint}"


def require_study(db: Database, study: str) -> None:
    """Check, inside a transaction, that a study exists.

    Raises:
        NotFoundError: There is no such study.
    """
    if not db.execute("SELECT 1 FROM studies WHERE id = ?", [study]).fetchone():
        raise NotFoundError(f"there is no study {study!r}: `kareus studies` lists them")


def _study(row: Mapping[str, Any]) -> StudyRecord:
    return StudyRecord(
        id=row["id"],
        name=row["name"],
        state=StudyState(row["state"]),
        source=SourceKind(row["source"]),
        extrapolated=bool(row["extrapolated"]),
        archived=bool(row["archived"]),
        request=json.loads(row["request"]),
        notes=tuple(json.loads(row["notes"])),
        versions=json.loads(row["versions"]),
        summary=json.loads(row["summary"]) if row["summary"] is not None else None,
        error=row["error"],
        created_at=moment(row["created_at"]),
        finished_at=optional_moment(row["finished_at"]),
    )
