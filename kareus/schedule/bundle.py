"""The bundle: one schedule as a folder or .zip that can be launched, inspected and checked.

Written whole or not at all, byte for byte the same for the same schedule. Reading trusts nothing:
sizes are bounded, nothing is extracted or executed, every file is checked against the manifest, and
the list files against `schedule.json`.
"""

import hashlib
import io
import json
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from kareus.core.partition import Direction, Execution
from kareus.core.workload import Recompute
from kareus.errors import ScheduleError
from kareus.schedule.document import InstructionSetting, Schedule, parse_schedule
from kareus.schedule.formats import (
    NOT_OVERLAPPED,
    Clocks,
    Costs,
    LaunchEntry,
    Launches,
    PartitionLayout,
    decode,
    format_frequencies,
    format_launches,
    frequency_file_name,
    launch_file_name,
    parse_frequencies,
    parse_launches,
    partition_layout,
)
from kareus.schedule.launch_files import launch_sbatch, launch_sh, readme
from kareus.schedule.timeline import build_timeline, chrome_trace

SCHEDULE_NAME = "schedule.json"
MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = "kareus-bundle"
MAX_FILE_BYTES = 64 * 2**20
"""Largest file read from a bundle; `schedule.json` of 16 stages x 128 microbatches has 8 MiB."""
MAX_FILES = 64
_EXECUTABLE = ("launch.sh", "launch.sbatch")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def bundle_files(schedule: Schedule, *, cost_change_j: float = 0.0) -> dict[str, bytes]:
    """Return the bundle's files by name, the manifest last.

    Args:
        schedule: The schedule.
        cost_change_j: Effective energy above the next slower plan's of the same frontier, joules,
            for the list files' first comment; 0 for the most frugal plan.
    """
    plan = schedule.to_plan()
    costs = Costs(
        plan=plan.number,
        change_j=cost_change_j,
        effective_energy_j=plan.effective_energy_j,
        pipeline_energy_j=plan.pipeline_energy_j,
    )
    rows = build_timeline(
        plan, schedule.pipeline, static_power_w=schedule.provenance.static_power_w
    )
    title = f"Plan {plan.number} of study {schedule.provenance.study}"
    layout = _layout(schedule)
    texts = {
        SCHEDULE_NAME: schedule.to_json(),
        frequency_file_name(plan.number): format_frequencies(clocks_of(schedule), costs),
        launch_file_name(plan.number): format_launches(launches_of(schedule), layout, costs),
        "launch.sh": launch_sh(schedule),
        "launch.sbatch": launch_sbatch(schedule),
        "timeline.json": chrome_trace(rows, title=title),
        "README.md": readme(schedule),
    }
    files = {name: text.encode() for name, text in texts.items()}
    manifest = {
        "format": MANIFEST_FORMAT,
        "version": 1,
        "files": {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for name, data in files.items()
        },
    }
    files[MANIFEST_NAME] = (json.dumps(manifest, indent=1) + "\n").encode()
    return files


def bundle_bytes(schedule: Schedule, *, cost_change_j: float = 0.0) -> bytes:
    """Return the bundle as a .zip, the same bytes for the same schedule."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, data in bundle_files(schedule, cost_change_j=cost_change_j).items():
            info = zipfile.ZipInfo(name, date_time=_ZIP_TIME)
            info.create_system = 3  # Unix, so that the permission bits below are read
            info.external_attr = (stat.S_IFREG | _mode(name)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return buffer.getvalue()


def write_bundle(
    path: Path, schedule: Schedule, *, cost_change_j: float = 0.0, overwrite: bool = False
) -> Path:
    """Write the bundle as a folder, or as a .zip if the path ends so.

    It appears at its path complete or not at all.

    Args:
        path: Where; missing parent folders are made.
        schedule: The schedule.
        cost_change_j: See `bundle_files`.
        overwrite: Replace a .zip or a bundle folder that is there. A folder that holds anything
            but a bundle is never replaced.

    Returns:
        The path.

    Raises:
        ScheduleError: Something is there already, or it cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".zip":
            _write_zip(path, bundle_bytes(schedule, cost_change_j=cost_change_j), overwrite)
        else:
            _write_folder(path, bundle_files(schedule, cost_change_j=cost_change_j), overwrite)
    except OSError as error:
        raise ScheduleError(
            f"{path}: the bundle cannot be written: {error.strerror or error}"
        ) from error
    return path


def read_bundle(path: Path) -> Schedule:
    """Read and check a bundle, folder or .zip.

    Raises:
        ScheduleError: It is not a bundle, a file is missing or was altered, or its parts disagree.
    """
    path = Path(path)
    files = _read_folder(path) if path.is_dir() else _read_zip(path)
    for name in (MANIFEST_NAME, SCHEDULE_NAME):
        if name not in files:
            raise ScheduleError(f"{path}: not a bundle, {name} is missing; export the plan again")
    _check_manifest(files, path)
    schedule = parse_schedule(decode(files[SCHEDULE_NAME], SCHEDULE_NAME, MAX_FILE_BYTES))
    _check_agreement(schedule, files, path)
    return schedule


def clocks_of(schedule: Schedule) -> Clocks:
    """Return what the schedule's `freqs_` file holds."""
    return tuple(
        tuple((instruction.direction, instruction.clock_mhz) for instruction in stage.instructions)
        for stage in schedule.stages
    )


def launches_of(schedule: Schedule) -> Launches:
    """Return what the schedule's `scheds_` file holds.

    Raises:
        ScheduleError: An instruction lacks a partition that the file must list.
    """
    layout = _layout(schedule)
    return tuple(
        tuple(
            (
                instruction.direction,
                tuple(
                    _entry(instruction, name, stage.stage, position)
                    for name in layout.names(instruction.direction)
                ),
            )
            for position, instruction in enumerate(stage.instructions)
        )
        for stage in schedule.stages
    )


def _entry(instruction: InstructionSetting, name: str, stage: int, position: int) -> LaunchEntry:
    """Return one partition's string of an instruction."""
    if instruction.execution is Execution.SEQUENTIAL:
        return NOT_OVERLAPPED
    for setting in instruction.partitions:
        if setting.partition != name:
            continue
        if setting.launch_point is None or setting.sm_allocation is None:
            return NOT_OVERLAPPED  # no collective to place
        return LaunchEntry(launch_point=setting.launch_point, sm_allocation=setting.sm_allocation)
    raise ScheduleError(
        f"{SCHEDULE_NAME}, stage {stage}, position {position}: the {instruction.direction} lacks "
        f"partition {name}"
    )


def _layout(schedule: Schedule) -> PartitionLayout:
    """Return the layout of the schedule's `scheds_` file."""
    workload = schedule.workload
    return partition_layout(workload.recompute, cp=workload.parallelism.cp)


def _mode(name: str) -> int:
    """Return a file's permission bits."""
    return 0o755 if name in _EXECUTABLE else 0o644


def _write_zip(path: Path, data: bytes, overwrite: bool) -> None:
    """Write one file by way of a temporary one beside it."""
    if path.exists() and not overwrite:
        raise ScheduleError(f"{path}: exists already; choose another name or ask to overwrite")
    if path.is_dir():
        raise ScheduleError(f"{path}: is a folder; choose another name")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _write_folder(path: Path, files: Mapping[str, bytes], overwrite: bool) -> None:
    """Write a folder by way of a temporary one beside it."""
    if path.exists() and not path.is_dir():
        raise ScheduleError(f"{path}: is a file; choose another name, or one that ends in .zip")
    occupied = path.is_dir() and any(path.iterdir())
    if occupied and not overwrite:
        raise ScheduleError(
            f"{path}: the folder is not empty; choose another one or ask to overwrite"
        )
    if occupied and not (path / MANIFEST_NAME).is_file():
        raise ScheduleError(
            f"{path}: the folder holds something else than a bundle and is left alone; "
            "choose another one"
        )
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    aside = temporary.with_name(temporary.name + ".old")
    try:
        for name, data in files.items():
            (temporary / name).write_bytes(data)
            (temporary / name).chmod(_mode(name))
        temporary.chmod(0o755)
        if path.is_dir():
            path.rename(aside)
        try:
            temporary.rename(path)
        except OSError:
            if aside.is_dir():
                aside.rename(path)
            raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _read_folder(path: Path) -> dict[str, bytes]:
    """Return the folder's files that its manifest names; others (logs, say) are left alone."""
    manifest_path = path / MANIFEST_NAME
    if not manifest_path.is_file():
        return {}
    files = {MANIFEST_NAME: _bounded(manifest_path)}
    for name in _listed(files[MANIFEST_NAME], path):
        if (path / name).is_file():
            files[name] = _bounded(path / name)
    return files


def _bounded(path: Path) -> bytes:
    """Return a file's contents, up to the limit."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScheduleError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ScheduleError(f"{path}: larger than {MAX_FILE_BYTES // 2**20} MiB, not of a bundle")
    return data


def _read_zip(path: Path) -> dict[str, bytes]:
    """Return the archive's files, in memory: nothing is extracted."""
    if not path.exists():
        raise ScheduleError(f"{path}: there is no such bundle")
    files: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            if len(members) > MAX_FILES:
                raise ScheduleError(
                    f"{path}: holds {len(members)} files, a bundle at most {MAX_FILES}"
                )
            for info in members:
                parts = PurePosixPath(info.filename.replace("\\", "/")).parts
                if ".." in parts or parts[0].endswith((":", "/")):
                    raise ScheduleError(f"{path}: {info.filename!r} points outside the bundle")
                # Archivers often add the folder itself: one level of it is fine.
                if len(parts) > 2:
                    continue
                if parts[-1] in files:
                    raise ScheduleError(f"{path}: holds {parts[-1]} twice")
                with archive.open(info) as member:
                    data = member.read(MAX_FILE_BYTES + 1)
                if len(data) > MAX_FILE_BYTES:
                    raise ScheduleError(
                        f"{path}: {info.filename} is larger than {MAX_FILE_BYTES // 2**20} MiB"
                    )
                files[parts[-1]] = data
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as error:
        raise ScheduleError(f"{path}: not a readable .zip ({error})") from error
    return files


def _listed(manifest: bytes, path: Path) -> dict[str, tuple[str, int]]:
    """Return (SHA-256, bytes) by file name from a manifest."""
    try:
        data = json.loads(manifest)
        if data["format"] != MANIFEST_FORMAT or data["version"] != 1:
            raise ValueError
        listed = {
            str(name): (str(entry["sha256"]), int(entry["bytes"]))
            for name, entry in data["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ScheduleError(f"{path}: {MANIFEST_NAME} is not one of a bundle") from error
    for name in listed:
        if name != PurePosixPath(name).name or "\\" in name or name in ("", ".", ".."):
            raise ScheduleError(f"{path}: {MANIFEST_NAME} names {name!r}, outside the bundle")
    return listed


def _check_manifest(files: Mapping[str, bytes], path: Path) -> None:
    """Refuse missing and altered files."""
    listed = _listed(files[MANIFEST_NAME], path)
    if SCHEDULE_NAME not in listed:
        raise ScheduleError(f"{path}: {MANIFEST_NAME} does not list {SCHEDULE_NAME}")
    for name, (digest, size) in listed.items():
        if name not in files:
            raise ScheduleError(f"{path}: {name} is missing; export the plan again")
        data = files[name]
        if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
            raise ScheduleError(
                f"{path}: {name} was altered (its checksum is not the manifest's); "
                "export the plan again"
            )


def _check_agreement(schedule: Schedule, files: Mapping[str, bytes], path: Path) -> None:
    """Refuse list files that say something else than `schedule.json`."""
    frequencies, launches = frequency_file_name(schedule.plan), launch_file_name(schedule.plan)
    for name in (frequencies, launches):
        if name not in files:
            raise ScheduleError(f"{path}: {name} is missing; export the plan again")
    pipeline = schedule.pipeline
    clocks = parse_frequencies(decode(files[frequencies], frequencies), frequencies, pipeline)
    _compare(clocks.clocks, clocks_of(schedule), frequencies)
    layout = _layout(schedule)
    found = parse_launches(decode(files[launches], launches), launches, pipeline)
    if found.layout != layout:
        kind = "with" if layout.recompute is Recompute.FULL else "without"
        raise ScheduleError(
            f"{launches}: lists other partitions than a workload {kind} recompute and "
            f"cp = {schedule.workload.parallelism.cp} has"
        )
    _compare(found.launches, launches_of(schedule), launches)


def _compare(found: Clocks | Launches, expected: Clocks | Launches, name: str) -> None:
    """Refuse the first instruction that differs."""
    for stage, (found_stage, expected_stage) in enumerate(zip(found, expected, strict=True)):
        for position, (a, b) in enumerate(zip(found_stage, expected_stage, strict=True)):
            if a != b:
                raise ScheduleError(
                    f"{name}, stage {stage}, position {position}: {_words(*a)} "
                    f"where {SCHEDULE_NAME} has {_words(*b)}"
                )


def _words(direction: Direction, value: object) -> str:
    """Return an instruction of a list file in words: with its clock, or with its strings."""
    if isinstance(value, tuple):
        return f"{direction} {' '.join(str(entry) for entry in value)}"
    return f"{direction} at {value} MHz"
