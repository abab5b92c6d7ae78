"""Files a user gave us, kept in the home folder: calibrations, and records to validate against.

A calibration is `calibrations/NAME.json`, whoever wrote it there; records are a folder
`records/ID/` of CSV files with a `records.json` beside them. Nothing is kept that cannot be read.
"""

import datetime as dt
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kareus.errors import ConfigError, KareusError, MeasurementError, NotFoundError
from kareus.simulate.calibration import Calibration, MethodError, calibration_for, load_calibration
from kareus.simulate.records import read_sweep
from kareus.simulate.validate import load_replays
from kareus.workload.gpus import load_gpu

BUILT_IN = "built-in"
_DESCRIPTION = "records.json"
_FRONTIERS, _FREQUENCIES, _SWEEP = "frontiers.csv", "frequencies.csv", "sweep.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationView:
    """A calibration that can be chosen.

    Attributes:
        name: Its name; `built-in` for the one a GPU comes with.
        path: For `StudyRequest.calibration`; None for the built-in one.
        gpu: The GPU it is for.
        data: What it was fitted on, or carried over from.
        extrapolated: Whether its GPU was never measured.
        time_uncertainty: Relative error of times.
        energy_uncertainty: Relative error of energies.
        uncertainty_source: Where these two come from.
        fit: Errors on the data it was fitted on, per method.
        held_out: Leave-one-configuration-out errors, per method.
        warnings: What the fit could not determine.
    """

    name: str
    path: str | None
    gpu: str
    data: str
    extrapolated: bool
    time_uncertainty: float
    energy_uncertainty: float
    uncertainty_source: str
    fit: tuple[MethodError, ...]
    held_out: tuple[MethodError, ...]
    warnings: tuple[str, ...]


class RecordsKind(StrEnum):
    """What recorded data describes."""

    FRONTIERS = "frontiers"
    SWEEP = "sweep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Records:
    """Recorded data to hold the simulator against.

    Attributes:
        id: Short, without spaces; the same for the same content.
        name: As the user calls it.
        kind: Planned iterations, or a partition sweep.
        gpu: The GPU it was recorded on.
        clock_mhz: With a sweep: its clock; None for the top clock.
        created: UTC.
    """

    id: str
    name: str
    kind: RecordsKind
    gpu: str
    clock_mhz: int | None
    created: dt.datetime


_RECORDS: TypeAdapter[Records] = TypeAdapter(Records)


def describe(calibration: Calibration, name: str, path: Path | None) -> CalibrationView:
    """Return a calibration in the words of a page."""
    assumed = calibration.uncertainty
    return CalibrationView(
        name=name,
        path=None if path is None else str(path),
        gpu=calibration.gpu.name,
        data=calibration.data,
        extrapolated=calibration.extrapolated,
        time_uncertainty=assumed.time,
        energy_uncertainty=assumed.energy,
        uncertainty_source=assumed.source,
        fit=calibration.fit_errors,
        held_out=calibration.held_out_errors,
        warnings=calibration.warnings,
    )


def built_in_calibration(gpu: str) -> CalibrationView:
    """Return the calibration a GPU comes with.

    Raises:
        ConfigError: There is no such GPU.
    """
    return describe(calibration_for(load_gpu(gpu)), BUILT_IN, None)


def list_calibrations(folder: Path) -> list[CalibrationView]:
    """Return the kept calibrations by name; files that cannot be read are left out."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(describe(load_calibration(path), path.stem, path))
        except KareusError:
            continue
    return found


def keep_calibration(folder: Path, file_name: str, content: bytes) -> CalibrationView:
    """Keep a calibration file under its own name.

    Raises:
        ConfigError: It is no calibration, or another one has its name.
    """
    name = _slug(Path(file_name).stem) or "calibration"
    with tempfile.TemporaryDirectory() as temporary:
        candidate = Path(temporary) / Path(file_name).name
        candidate.write_bytes(content)
        try:
            calibration = load_calibration(candidate)
        except ConfigError as error:
            raise ConfigError(_without_folder(error, temporary)) from error
    path = folder / f"{name}.json"
    if path.exists() and path.read_bytes() != content:
        raise ConfigError(
            f"there is another calibration {name!r} already: rename the file, or delete that one"
        )
    if name == BUILT_IN:
        raise ConfigError(f"{name!r} is the name of what a GPU comes with: rename the file")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return describe(calibration, name, path)


def delete_calibration(folder: Path, name: str) -> None:
    """Delete a kept calibration; studies made with it keep their results.

    Raises:
        NotFoundError: There is none of that name.
    """
    path = folder / f"{_slug(name)}.json"
    if not path.exists():
        raise NotFoundError(f"there is no calibration {name!r} in {folder}")
    path.unlink()


def list_records(folder: Path) -> list[Records]:
    """Return the kept records, newest first; folders that cannot be read are left out."""
    found = []
    for path in folder.glob(f"*/{_DESCRIPTION}"):
        try:
            found.append(_RECORDS.validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            continue
    return sorted(found, key=lambda records: records.created, reverse=True)


def find_records(folder: Path, records: str) -> Records:
    """Return records by their id.

    Raises:
        NotFoundError: There are none of that id.
    """
    for one in list_records(folder):
        if one.id == records:
            return one
    raise NotFoundError(f"there are no records {records!r} here: upload them, or choose others")


def keep_records(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    kind: RecordsKind,
    gpu: str,
    clock_mhz: int | None = None,
) -> Records:
    """Check recorded data row by row and keep it.

    Args:
        folder: Where records are kept.
        name: As the user calls them.
        files: Content by the user's file name: frontiers then frequencies, or the one sweep.
        kind: What they describe.
        gpu: The GPU they were recorded on.
        clock_mhz: With a sweep: its clock.

    Raises:
        MeasurementError: A file cannot be used; the message names file and row. Nothing is kept.
        ConfigError: There is no such GPU.
    """
    digest = hashlib.sha256(f"{kind}{gpu}{clock_mhz}".encode())
    for content in files.values():
        digest.update(hashlib.sha256(content).digest())
    _check_records(files, kind, gpu)
    records = Records(
        id=f"{_slug(name).lower()[:40] or kind.value}-{digest.hexdigest()[:8]}",
        name=name,
        kind=kind,
        gpu=gpu,
        clock_mhz=clock_mhz,
        created=dt.datetime.now(dt.UTC),
    )
    target = folder / records.id
    target.mkdir(parents=True, exist_ok=True)
    names = (_SWEEP,) if kind is RecordsKind.SWEEP else (_FRONTIERS, _FREQUENCIES)
    for kept, content in zip(names, files.values(), strict=True):
        (target / kept).write_bytes(content)
    document = _RECORDS.dump_python(records, mode="json")
    (target / _DESCRIPTION).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return records


def delete_records(folder: Path, records: str) -> None:
    """Delete kept records.

    Raises:
        NotFoundError: There are none of that id.
    """
    shutil.rmtree(folder / find_records(folder, records).id)


def frontier_files(folder: Path, records: Records) -> tuple[Path, Path]:
    """Return where the plans and the clocks of kept records are."""
    return folder / records.id / _FRONTIERS, folder / records.id / _FREQUENCIES


def sweep_file(folder: Path, records: Records) -> Path:
    """Return where a kept sweep is."""
    return folder / records.id / _SWEEP


def _check_records(files: Mapping[str, bytes], kind: RecordsKind, gpu: str) -> None:
    """Read every row once; errors name the user's files."""
    known = load_gpu(gpu)
    with tempfile.TemporaryDirectory() as temporary:
        paths = []
        for position, (file_name, content) in enumerate(files.items()):
            # A folder each, as two files may share a name.
            path = Path(temporary) / str(position) / (Path(file_name).name or "records.csv")
            path.parent.mkdir()
            path.write_bytes(content)
            paths.append(path)
        try:
            if kind is RecordsKind.SWEEP:
                read_sweep(paths[0], known)
            else:
                load_replays(paths[0], paths[1], known)
        except MeasurementError as error:
            raise MeasurementError(_without_folder(error, temporary)) from error


def _without_folder(error: Exception, folder: str) -> str:
    """An error's words with the user's file names, not where we put them for a moment."""
    return re.sub(re.escape(folder) + r"/(?:\d+/)?", "", str(error))


def _slug(text: str) -> str:
    """Letters, digits, dots and hyphens only: fit for file names and URLs."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")
