"""Logs of training runs: where they lie, and those a user hands in with a bundle.

Runs log to `kareus-logs/` in the folder they are started in; what is uploaded is kept under the
same name in the home folder, and a bundle under `bundles/`. Equal content is kept once.
"""

import datetime as dt
import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.errors import ConfigError, NotFoundError, ScheduleError
from kareus.schedule.bundle import read_bundle
from kareus.train.log import rank_files, read_log

MAX_LOGS = 40
_LOG_FILE = re.compile(r"(rank|clocks)-\d{1,9}\.jsonl")
_HEAD_BYTES = 1 << 20  # the first line of a log, settings included, is a few thousand bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingLog:
    """The log of a training run, as a list shows it.

    Attributes:
        path: Its folder.
        updated: When a rank last wrote, UTC.
        num_ranks: Ranks that wrote.
        device: `cpu` or `cuda`; None where its first line cannot be read.
        bundle: The bundle it was launched with, if that is still there.
        plan: The plan's number, as the log says.
        study: The plan's study, likewise.
    """

    path: str
    updated: dt.datetime
    num_ranks: int
    device: str | None = None
    bundle: str | None = None
    plan: int | None = None
    study: str | None = None

    @property
    def name(self) -> str:
        """The folder's own name."""
        return Path(self.path).name


def list_logs(folders: Iterable[Path]) -> list[TrainingLog]:
    """Return the newest logs right below some folders, newest first."""
    found: dict[Path, float] = {}
    for folder in folders:
        for path in folder.glob("*/rank-*.jsonl"):
            place = path.parent.resolve()
            found[place] = max(found.get(place, 0.0), path.stat().st_mtime)
    newest = sorted(found, key=lambda place: found[place], reverse=True)[:MAX_LOGS]
    return [describe_log(place) for place in newest]


def describe_log(folder: Path) -> TrainingLog:
    """Return what a list shows of one log.

    Raises:
        NotFoundError: There is none in the folder.
    """
    files = rank_files(folder) if folder.is_dir() else []
    if not files:
        raise NotFoundError(
            f"{folder}: holds no training log (rank-00000.jsonl, ...); give the folder that "
            "'kareus launch' named"
        )
    head = _head(files[0][1])
    details = _part(head, "details")
    settings = _part(details, "settings")
    bundle, device = settings.get("bundle"), head.get("device")
    plan, study = details.get("plan"), details.get("study")
    return TrainingLog(
        path=str(folder),
        updated=dt.datetime.fromtimestamp(newest_s(folder), dt.UTC),
        num_ranks=len(files),
        device=device if isinstance(device, str) else None,
        bundle=bundle if isinstance(bundle, str) and Path(bundle).exists() else None,
        plan=plan if isinstance(plan, int) else None,
        study=study if isinstance(study, str) else None,
    )


def newest_s(folder: Path) -> float:
    """Return when a log was last written to, in seconds of the file system's clock."""
    return max((path.stat().st_mtime for path in folder.glob("*.jsonl")), default=0.0)


def keep_log(folder: Path, files: Sequence[tuple[str, bytes]]) -> str:
    """Keep uploaded log files as one log and return its folder.

    Args:
        folder: Where logs are kept.
        files: (File name, content) of every rank's file, and of the clocks' where there are any.

    Raises:
        ConfigError: A file is none of a log, or two have one name.
        NotFoundError: No rank says who it is.
    """
    names = [name for name, _ in files]
    for name in names:
        if _LOG_FILE.fullmatch(name) is None:
            raise ConfigError(
                f"{name} is none of a training log: give rank-00000.jsonl, ... and, if there are "
                "any, clocks-00000.jsonl, ..."
            )
        if names.count(name) > 1:
            raise ConfigError(f"{name} was given twice: give the files of one run")
    digest = hashlib.sha256()
    for name, content in sorted(files):
        digest.update(name.encode() + hashlib.sha256(content).digest())
    with tempfile.TemporaryDirectory() as temporary:
        _write(Path(temporary), files)
        try:
            read_log(Path(temporary))
        except NotFoundError as error:
            raise NotFoundError(
                f"no rank's file among {', '.join(sorted(names)) or 'nothing'} says whose it is: "
                "give rank-00000.jsonl, ... as they were written"
            ) from error
    target = folder / f"uploaded-{digest.hexdigest()[:8]}"
    if not target.exists():
        target.mkdir(parents=True)
        _write(target, files)
    return str(target)


def keep_bundle(folder: Path, name: str, content: bytes) -> str:
    """Keep an uploaded bundle and return its path.

    Raises:
        ScheduleError: It is no bundle, or was altered.
    """
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", Path(name).stem).strip("-.")[:60] or "bundle"
    target = folder / f"{stem}-{hashlib.sha256(content).hexdigest()[:8]}.zip"
    with tempfile.TemporaryDirectory() as temporary:
        candidate = Path(temporary) / "bundle.zip"
        candidate.write_bytes(content)
        try:
            read_bundle(candidate)
        except ScheduleError as error:
            raise ScheduleError(str(error).replace(str(candidate), name)) from error
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return str(target)


def _write(folder: Path, files: Sequence[tuple[str, bytes]]) -> None:
    for name, content in files:
        (folder / name).write_bytes(content)


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a document; empty where it is none."""
    part = values.get(name)
    return part if isinstance(part, dict) else {}


def _head(path: Path) -> dict[str, Any]:
    """The first line of a rank's file; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            values = json.loads(file.readline(_HEAD_BYTES))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
