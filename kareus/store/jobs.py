"""Jobs and leases: the only place where the state of background work is kept.

Every change of state is a compare-and-set, so that a worker, a page and another machine may try
at the same time; exactly one of them succeeds.
"""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kareus.errors import JobError, NotFoundError, StoreError
from kareus.store.records import (
    PROGRESS,
    JobRecord,
    JobState,
    Progress,
    moment,
    new_id,
    now,
    optional_moment,
    to_json,
)
from kareus.store.sqlite import Connections

_ACTIVE = "('queued', 'running', 'cancelling')"


class JobTable:
    """The part of the store that keeps jobs and the leases they hold."""

    _connections: Connections

    def create_job(
        self,
        kind: str,
        *,
        study: str | None = None,
        request: Mapping[str, object] | None = None,
        resources: Sequence[str] = (),
        log_path: str | None = None,
    ) -> JobRecord:
        """Add a queued job (attempt 1).

        Args:
            kind: Which registered function it runs.
            study: The study it works on.
            request: Arguments of the function; JSON values only.
            resources: Names it must hold alone while it runs, such as `gpu:0`.
            log_path: Log file; `{job}` in it stands for the job's id.

        Raises:
            NotFoundError: There is no such study.
            JobError: An unfinished job works on the study already.
        """
        job = new_id(kind, num_random=6)
        row = {
            "id": job,
            "study": study,
            "kind": kind,
            "state": JobState.QUEUED.value,
            "attempt": 1,
            "request": to_json(request or {}),
            "resources": to_json(sorted(set(resources))),
            "log_path": log_path.replace("{job}", job) if log_path is not None else None,
            "created_at": now(),
        }
        try:
            with self._connections.writing() as db:
                busy = db.execute(
                    f"SELECT id FROM jobs WHERE study = ? AND state IN {_ACTIVE}", [study]
                ).fetchone()
                if busy is not None:
                    raise JobError(
                        f"study {study} is being worked on by job {busy[0]}: wait for it, or "
                        f"cancel it with `kareus jobs cancel {busy[0]}`"
                    )
                db.table("jobs").insert(row)
        except sqlite3.IntegrityError as error:
            if "FOREIGN KEY" in str(error):
                raise NotFoundError(
                    f"there is no study {study!r}: `kareus studies` lists them"
                ) from error
            raise StoreError(f"job {job} cannot be stored: {error}") from error
        return self.job(job)

    def job(self, job: str) -> JobRecord:
        """Return one job by its id.

        Raises:
            NotFoundError: There is none.
        """
        with self._connections.reading() as db:
            rows = list(db.query("SELECT * FROM jobs WHERE id = ?", [job]))
        if not rows:
            raise NotFoundError(f"there is no job {job!r}: `kareus jobs list` lists them")
        return _job(rows[0])

    def jobs(self, *, study: str | None = None, active: bool = False) -> tuple[JobRecord, ...]:
        """Return the jobs, newest first: all, those of a study, or only the unfinished ones."""
        wanted = f"state IN {_ACTIVE}" if active else "1"
        with self._connections.reading() as db:
            rows = list(
                db.query(
                    f"SELECT * FROM jobs WHERE {wanted} AND (:study IS NULL OR study = :study)"
                    " ORDER BY created_at DESC, rowid DESC",
                    {"study": study},
                )
            )
        return tuple(_job(row) for row in rows)

    def change_job(
        self,
        job: str,
        *,
        expected: Collection[JobState],
        state: JobState | None = None,
        attempt: int | None = None,
        **columns: object,
    ) -> bool:
        """Change a job if it is still in one of the expected states (and attempt).

        Leases are given back in the same transaction when the new state is a final one.

        Args:
            job: The job's id.
            expected: States in which the change is allowed.
            state: The new state; None keeps it.
            attempt: Only if this is the current attempt; None for any.
            columns: Further columns of the jobs table with their new values; `progress` as a
                `Progress`, `new_attempt` for the attempt.

        Returns:
            Whether the change was made.
        """
        changes = dict(columns)
        if isinstance(progress := changes.get("progress"), Progress):
            changes["progress"] = PROGRESS.dump_json(progress).decode()
        if state is not None:
            changes["state"] = state.value
        if "new_attempt" in changes:
            changes["attempt"] = changes.pop("new_attempt")
        assignments = ", ".join(f"{column} = :{column}" for column in changes)
        states = ", ".join(f"'{allowed.value}'" for allowed in expected)
        with self._connections.writing() as db:
            cursor = db.execute(
                f"UPDATE jobs SET {assignments} WHERE id = :this_job AND state IN ({states})"
                " AND (:this_attempt IS NULL OR attempt = :this_attempt)",
                {**changes, "this_job": job, "this_attempt": attempt},
            )
            changed = cursor.rowcount == 1
            if changed and state not in (None, *_HOLDING):
                db.execute("DELETE FROM leases WHERE job = ?", [job])
        return changed

    def beat(
        self, job: str, *, attempt: int, heartbeat_s: float, progress: Progress | None = None
    ) -> JobState | None:
        """Record a sign of life, and how far the job is if that is given.

        Args:
            job: The job's id.
            attempt: The attempt that lives.
            heartbeat_s: Seconds since the epoch.
            progress: How far it is; None keeps what is stored.

        Returns:
            The job's state; None if it is finished for everybody else or a later attempt took
            over: the caller has lost its right to work on it.
        """
        text = PROGRESS.dump_json(progress).decode() if progress is not None else None
        with self._connections.writing() as db:
            db.execute(
                "UPDATE jobs SET heartbeat_s = :heartbeat, progress = ifnull(:progress, progress)"
                f" WHERE id = :job AND attempt = :attempt AND state IN {_ACTIVE}",
                {"heartbeat": heartbeat_s, "progress": text, "job": job, "attempt": attempt},
            )
            row = db.execute(
                f"SELECT state FROM jobs WHERE id = ? AND attempt = ? AND state IN {_ACTIVE}",
                [job, attempt],
            ).fetchone()
        return JobState(row[0]) if row is not None else None

    def take_leases(self, job: str, *, attempt: int) -> tuple[str, ...] | None:
        """Take all of a queued job's resources, or none, in the order of submission.

        Args:
            job: The job's id.
            attempt: The attempt that asks; a later one has taken over otherwise.

        Returns:
            Ids of the jobs that stand in the way: holders of a resource, and earlier queued jobs
            that want one; empty if this job now holds everything. None if it is not queued (any
            more) or another attempt took over.
        """
        with self._connections.writing() as db:
            found = db.execute(
                "SELECT rowid, resources FROM jobs WHERE id = ? AND state = 'queued'"
                " AND attempt = ?",
                [job, attempt],
            ).fetchone()
            if found is None:
                return None
            wanted = set(json.loads(found[1]))
            held = db.execute("SELECT resource, job FROM leases WHERE job != ?", [job]).fetchall()
            blocking = {holder for resource, holder in held if resource in wanted}
            earlier = db.execute(
                "SELECT id, resources FROM jobs WHERE state = 'queued' AND rowid < ?", [found[0]]
            ).fetchall()
            blocking |= {other for other, names in earlier if wanted & set(json.loads(names))}
            if not blocking:
                for resource in sorted(wanted):
                    db.execute(
                        "INSERT OR REPLACE INTO leases (resource, job) VALUES (?, ?)",
                        [resource, job],
                    )
        return tuple(sorted(blocking))

    def leases(self) -> dict[str, str]:
        """Return which job holds each resource that is held."""
        with self._connections.reading() as db:
            return dict(db.execute("SELECT resource, job FROM leases").fetchall())


_HOLDING = (JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING)


def _job(row: Mapping[str, Any]) -> JobRecord:
    return JobRecord(
        id=row["id"],
        study=row["study"],
        kind=row["kind"],
        state=JobState(row["state"]),
        attempt=row["attempt"],
        request=json.loads(row["request"]),
        resources=tuple(json.loads(row["resources"])),
        pid=row["pid"],
        process_created_s=row["process_created_s"],
        host=row["host"],
        heartbeat_s=row["heartbeat_s"],
        progress=PROGRESS.validate_json(row["progress"]) if row["progress"] is not None else None,
        error=row["error"],
        traceback=row["traceback"],
        log_path=row["log_path"],
        created_at=moment(row["created_at"]),
        started_at=optional_moment(row["started_at"]),
        finished_at=optional_moment(row["finished_at"]),
    )
