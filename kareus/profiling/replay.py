"""Recorded measurements: reading them with every flaw reported by row, and replaying them.

Reading yields everything that can be used or nothing at all; the caller stores it in one step.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.core.partition import Partition
from kareus.core.workload import Gpu, Workload
from kareus.errors import MeasurementError
from kareus.profiling.layout import RecordedFile, find_files, parse_shape, shape_of
from kareus.profiling.recorder import write_recorded
from kareus.profiling.rows import RefusedRowError, Row, parse_json_row, parse_outside_row
from kareus.workload.names import normalized

__all__ = [
    "RecordedMeasurements",
    "Refusal",
    "ReplaySource",
    "read_recorded",
    "write_recorded",
]

# Within one partition times differ by a few times over all configurations; a thousand is a unit.
_OUTLIER_RATIO = 300.0
_MIN_ROWS_FOR_OUTLIERS = 5
_BOM = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_OUTSIDE_COLUMNS = ("time (s)", "total_energy (J)", "per_rank_energy (J)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """Rows that were not taken.

    Attributes:
        file: The file, relative to what was read.
        line: The line, from 1; None where the whole file was refused.
        reason: Why, in one line.
        num_rows: How many rows that concerns.
    """

    file: str
    line: int | None
    reason: str
    num_rows: int = 1

    def __str__(self) -> str:
        """Return it as one line."""
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        return f"{place}: {self.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedMeasurements:
    """What was read from recorded measurements.

    Every row counts once: taken, repeated or refused.

    Attributes:
        measurements: What can be replayed, in the order of the files; several of one
            configuration as repeats 0, 1, 2, ...
        refusals: What was not taken, with file, line and reason.
        num_taken: Rows that were the first of their configuration.
        num_repeated: Further rows of a configuration; those that say exactly the same again are
            counted but not kept.
        num_refused: Rows refused.
        notes: What else the reader should know, in words.
    """

    measurements: tuple[Measurement, ...]
    refusals: tuple[Refusal, ...]
    num_taken: int
    num_repeated: int
    num_refused: int
    notes: tuple[str, ...] = ()

    def report(self) -> dict[str, object]:
        """Return counts, refusals and notes as a JSON document."""
        return {
            "taken": self.num_taken,
            "repeated": self.num_repeated,
            "refused": self.num_refused,
            "refusals": [
                {
                    "file": refusal.file,
                    "line": refusal.line,
                    "reason": refusal.reason,
                    "rows": refusal.num_rows,
                }
                for refusal in self.refusals
            ],
            "notes": list(self.notes),
        }


def read_recorded(
    path: str | Path, partitions: Mapping[str, Partition], *, workload: Workload | None = None
) -> RecordedMeasurements:
    """Read recorded measurements, from any folder at or above one workload's, or from one file.

    Args:
        path: The folder or file.
        partitions: The workload's partitions and other units, by name.
        workload: The workload: chooses its folder among several, and lets units be checked
            against the GPU's power and speed; None to check only what is impossible anywhere.

    Returns:
        What can be used, and a reason for each row that cannot.

    Raises:
        MeasurementError: There is no such path, no recorded measurement in it, several workloads'
            and no telling which, or only other workloads'.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise MeasurementError(
            f"there is nothing at {path}: name a folder or an eval_results.jsonl"
        )
    files = list(find_files(place))
    if not files:
        raise MeasurementError(
            f"{path} has no recorded measurements: expected "
            "cp<C>-tp<T>-bs<B>-seq<S>/<partition>/eval_results.jsonl in or below it"
        )
    files, notes = _of_workload(files, place, workload)
    root = place.resolve() if place.is_dir() else place.resolve().parent
    reading = _Reading(partitions, workload.gpu if workload is not None else None, root)
    for file in files:
        try:
            data = file.path.read_bytes()
        except OSError as error:
            raise MeasurementError(f"{file.path} cannot be read: {error.strerror}") from error
        reading.read(file, data)
    return reading.result(notes)


class ReplaySource:
    """Gives recorded measurements again; what was not recorded fails, saying so.

    Args:
        measurements: What was recorded, such as `RecordedMeasurements.measurements`.
    """

    def __init__(self, measurements: Iterable[Measurement]) -> None:
        self._recorded: dict[str, dict[Configuration, dict[int, Measurement]]] = {}
        for measurement in measurements:
            known = self._recorded.setdefault(measurement.partition, {})
            repeats = known.setdefault(measurement.configuration, {})
            repeats[measurement.repeat] = replace(measurement, source=SourceKind.REPLAY)

    @property
    def kind(self) -> SourceKind:
        """Return `replay`."""
        return SourceKind.REPLAY

    @property
    def repeatable(self) -> bool:
        """Return False: a record holds what it holds."""
        return False

    def space(self, partition: Partition) -> tuple[Configuration, ...]:
        """Return the configurations of the partition that were recorded, sorted."""
        return tuple(
            sorted(self._recorded.get(partition.name, {}), key=lambda found: found.sort_key())
        )

    def measure(
        self, partition: Partition, configurations: Sequence[Configuration], *, repeat: int = 0
    ) -> Iterator[Measurement | FailedMeasurement]:
        """Yield what was recorded of each configuration, in order."""
        known = self._recorded.get(partition.name, {})
        for configuration in configurations:
            repeats = known.get(configuration, {})
            if repeat in repeats:
                yield repeats[repeat]
                continue
            reason = "was not recorded"
            if not known:
                reason = f"no measurement of {partition.name} was recorded"
            elif repeats:
                reason = f"was recorded {len(repeats)} times, repeat {repeat} is not among them"
            yield FailedMeasurement(
                partition=partition.name,
                configuration=configuration,
                reason=reason,
                repeat=repeat,
            )


def _of_workload(
    files: list[RecordedFile], place: Path, workload: Workload | None
) -> tuple[list[RecordedFile], tuple[str, ...]]:
    """Return the files of the one workload that is meant, and remarks on the choice."""
    folders = sorted({file.folder for file in files})
    if workload is None:
        if len(folders) > 1:
            raise MeasurementError(
                f"{place} has measurements of {len(folders)} workloads ({_names(folders)}): name "
                "one of these folders, or the workload"
            )
        return files, ()
    shape = shape_of(workload)
    model = normalized(workload.model.name)
    fitting = [folder for folder in folders if parse_shape(folder.name) in (shape, None)]
    if not fitting:
        raise MeasurementError(
            f"{place} has no measurements of {shape}, but of {_names(folders)}: check --cp, --tp, "
            "--microbatch-size and --seq-len"
        )
    named = [folder for folder in fitting if normalized(folder.parent.name) == model]
    chosen = named or fitting
    if len(chosen) > 1:
        raise MeasurementError(
            f"{place} has {len(chosen)} folders that may be {workload.model.name}, {shape} "
            f"({_names(chosen)}): name one of them"
        )
    folder = chosen[0]
    notes = []
    if parse_shape(folder.name) is None:
        notes.append(f"folder {folder.name} does not say which workload it is of: taken as {shape}")
    elif not named:
        notes.append(
            f"folder {folder.parent.name} is not named after the model: taken as "
            f"{workload.model.name}"
        )
    return [file for file in files if file.folder == folder], tuple(notes)


def _names(folders: Sequence[Path]) -> str:
    shown = ", ".join(f"{folder.parent.name}/{folder.name}" for folder in folders[:4])
    return f"{shown}, ..." if len(folders) > 4 else shown


class _Reading:
    """Collects rows over all files of one workload."""

    def __init__(self, partitions: Mapping[str, Partition], gpu: Gpu | None, root: Path) -> None:
        self._partitions = partitions
        self._gpu = gpu
        self._root = root
        self._measurements: list[Measurement] = []
        self._refusals: list[Refusal] = []
        self._notations: dict[tuple[str, Configuration], tuple[str, str, str]] = {}
        self._num_repeats: dict[tuple[str, Configuration], int] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._num_taken = 0
        self._num_repeated = 0

    def read(self, file: RecordedFile, data: bytes) -> None:
        """Take the rows of one file."""
        name = str(file.path.relative_to(self._root))
        lines = data.removeprefix(_BOM).split(b"\n")
        num_rows = sum(bool(line.strip()) for line in lines)
        partition = self._partitions.get(file.unit)
        if data.startswith(_UTF16_MARKS):
            self._refuse(name, None, "encoded as UTF-16: save it as UTF-8", num_rows)
        elif partition is None:
            reason = f"unknown partition {file.unit!r}: known are {', '.join(self._partitions)}"
            self._refuse(name, None, reason, num_rows - (file.clock is not None))
        elif file.clock is None:
            self._read_json(name, lines, partition)
        else:
            self._read_outside(name, data, partition, file.clock)

    def result(self, notes: tuple[str, ...]) -> RecordedMeasurements:
        """Return everything that was read."""
        flagged = [m for m in self._measurements if m.conditions.get("flags")]
        if flagged:
            flags = flagged[0].conditions["flags"]
            assert isinstance(flags, list)
            notes = (*notes, f"{len(flagged)} measurements are doubtful, the first: {flags[0]}")
        return RecordedMeasurements(
            measurements=tuple(self._measurements),
            refusals=tuple(self._refusals),
            num_taken=self._num_taken,
            num_repeated=self._num_repeated,
            num_refused=sum(refusal.num_rows for refusal in self._refusals),
            notes=notes,
        )

    def _read_json(self, name: str, lines: list[bytes], partition: Partition) -> None:
        rows: list[tuple[int, Row]] = []
        for number, raw in enumerate(lines, start=1):
            line = raw.strip()
            if not line:
                continue
            try:
                row = parse_json_row(line, partition, self._gpu, cut_off=number == len(lines))
            except RefusedRowError as error:
                self._refuse(name, number, str(error))
            else:
                rows.append((number, row))
        self._take_all(name, rows)

    def _read_outside(self, name: str, data: bytes, partition: Partition, clock: str) -> None:
        try:
            text = data.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            self._refuse(name, None, f"no UTF-8 text: {error}", data.count(b"\n"))
            return
        reader = csv.reader(io.StringIO(text, newline=""))
        header: list[str] = []
        rows: list[tuple[int, Row]] = []
        try:
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                if not header:
                    header = [cell.strip() for cell in cells]
                    if missing := [column for column in _OUTSIDE_COLUMNS if column not in header]:
                        self._refuse(name, 1, f"no column {missing[0]!r}", max(text.count("\n"), 1))
                        return
                    continue
                number = reader.line_num
                if [cell.strip() for cell in cells] == header:
                    continue  # The header of a second run that was appended.
                try:
                    if len(cells) != len(header):
                        raise RefusedRowError(
                            f"{len(cells)} cells instead of {len(header)}: cut off?"
                        )
                    values = dict(zip(header, cells, strict=True))
                    row = parse_outside_row(values, clock, partition, self._gpu)
                except RefusedRowError as error:
                    self._refuse(name, number, str(error))
                else:
                    rows.append((number, row))
        except csv.Error as error:
            self._refuse(name, reader.line_num, f"no CSV: {error}")
        self._take_all(name, rows)

    def _take_all(self, name: str, rows: list[tuple[int, Row]]) -> None:
        """Take a file's rows, but for those whose time is far from all the others'."""
        if not rows:
            return
        median_s = statistics.median(row.measurement.time_s for _, row in rows)
        for number, row in rows:
            ratio = row.measurement.time_s / median_s
            if len(rows) >= _MIN_ROWS_FOR_OUTLIERS and not (
                1 / _OUTLIER_RATIO < ratio < _OUTLIER_RATIO
            ):
                self._refuse(
                    name,
                    number,
                    f"time {row.measurement.time_s:g} s is {ratio:.3g} times the file's median: "
                    "ms and s mixed?",
                )
            else:
                self._take(name, number, row)

    def _take(self, name: str, number: int, row: Row) -> None:
        measurement = row.measurement
        key = (measurement.partition, measurement.configuration)
        if row.notation != self._notations.setdefault(key, row.notation):
            known = "-".join(self._notations[key])
            self._refuse(
                name,
                number,
                f"overlap {'-'.join(row.notation)} is the same configuration here as {known}, "
                "which an earlier row measured",
            )
            return
        repeat = self._num_repeats.get(key, 0)
        if repeat:
            self._num_repeated += 1
        else:
            self._num_taken += 1
        said = (key, measurement.time_s, measurement.energy_j, row.repeat)
        if said in self._seen:
            return
        self._seen.add(said)
        self._num_repeats[key] = repeat + 1
        self._measurements.append(replace(measurement, repeat=repeat))

    def _refuse(self, name: str, line: int | None, reason: str, num_rows: int = 1) -> None:
        self._refusals.append(Refusal(file=name, line=line, reason=reason, num_rows=num_rows))
