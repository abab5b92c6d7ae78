"""A job's log: one JSON object per line, readable back as text."""

import datetime as dt
import json
import logging
import os
from collections import deque
from pathlib import Path

from kareus.store import JobRecord


class JsonLines(logging.Formatter):
    """Formats records as JSON lines that carry the job and its study.

    Args:
        job: The job's id.
        study: The study it works on, if any.
    """

    def __init__(self, *, job: str, study: str | None) -> None:
        super().__init__()
        self._fields = {"job": job, "study": study, "pid": os.getpid()}

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        line: dict[str, object] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._fields,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(path: Path, *, job: str, study: str | None) -> None:
    """Send this process's log to a file, appending; for entry points only.

    Our own records from INFO on, other packages' and Python's warnings from WARNING on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(JsonLines(job=job, study=study))
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("kareus").setLevel(logging.INFO)
    logging.captureWarnings(True)


def tail(path: Path, *, num_lines: int = 200) -> list[str]:
    """Return the last lines of a log as readable text, oldest first; empty if there is none.

    Lines that are no records, such as what a library printed, are returned as they are.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, maxlen=num_lines)
    except FileNotFoundError:
        return []
    return [text for line in lines for text in _readable(line.rstrip("\n"))]


def _readable(line: str) -> list[str]:
    try:
        record = json.loads(line)
        time, level = record["time"], record["level"]
        text = f"{time[:19].replace('T', ' ')} {level.lower()}: {record['message']}"
    except (ValueError, KeyError, TypeError):
        return [line]
    return [text, *str(record.get("traceback", "")).splitlines()]


def tail_of(job: JobRecord, *, num_lines: int = 200) -> list[str]:
    """Return the last lines of a job's log as readable text; empty if it has none."""
    return tail(Path(job.log_path), num_lines=num_lines) if job.log_path is not None else []
