"""Explorations: many layouts of one training step, and their joint frontier."""

import json
from collections.abc import Mapping
from typing import Any

from kareus.errors import NotFoundError
from kareus.store.records import ExplorationRecord, moment, new_id, now, to_json
from kareus.store.sqlite import Connections


class ExplorationTable:
    """The part of the store that keeps explorations."""

    _connections: Connections

    def create_exploration(
        self, name: str, *, request: Mapping[str, object], words: str = ""
    ) -> ExplorationRecord:
        """Add an exploration.

        Args:
            name: As the user calls it.
            request: The document it is asked for with; JSON values only.
            words: What its id is made of; the name if empty.
        """
        exploration = new_id(words or name, num_random=6)
        with self._connections.writing() as db:
            db.table("explorations").insert(
                {
                    "id": exploration,
                    "name": name,
                    "request": to_json(request),
                    "result": None,
                    "created_at": now(),
                }
            )
        return self.exploration(exploration)

    def exploration(self, exploration: str) -> ExplorationRecord:
        """Return one exploration by its id.

        Raises:
            NotFoundError: There is none.
        """
        with self._connections.reading() as db:
            rows = list(db.query("SELECT * FROM explorations WHERE id = ?", [exploration]))
        if not rows:
            raise NotFoundError(
                f"there is no exploration {exploration!r}: `kareus explore --list` lists them"
            )
        return _exploration(rows[0])

    def explorations(self) -> tuple[ExplorationRecord, ...]:
        """Return the explorations, newest first."""
        with self._connections.reading() as db:
            rows = list(db.query("SELECT * FROM explorations ORDER BY created_at DESC, rowid DESC"))
        return tuple(_exploration(row) for row in rows)

    def save_exploration(self, exploration: str, result: Mapping[str, object]) -> None:
        """Store what is known of an exploration's candidates; replaces what was stored.

        Raises:
            NotFoundError: There is no such exploration.
        """
        self.exploration(exploration)
        with self._connections.writing() as db:
            db.execute(
                "UPDATE explorations SET result = ? WHERE id = ?", [to_json(result), exploration]
            )


def _exploration(row: Mapping[str, Any]) -> ExplorationRecord:
    return ExplorationRecord(
        id=row["id"],
        name=row["name"],
        request=json.loads(row["request"]),
        result=json.loads(row["result"]) if row["result"] is not None else None,
        created_at=moment(row["created_at"]),
    )
