"""Writes measurements as they come, in the layout that is read back (and that others write)."""

import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

from kareus.core.configuration import LaunchPoint
from kareus.core.measurement import FailedMeasurement, Measurement
from kareus.core.workload import Workload
from kareus.profiling.layout import (
    FAILURES_FILE,
    OUTSIDE_FOLDER,
    OUTSIDE_SUFFIX,
    OUTSIDE_UNITS,
    RESULTS_FILE,
    workload_folder,
)
from kareus.schedule.formats import THREADS_PER_BLOCK

_HEADER = (
    "time (s)",
    "total_energy (J)",
    "per_rank_energy (J)",
    "time_spread_s",
    "energy_spread_j",
    "conditions",
    "repeat",
)


class Recorder:
    """Appends measurements to the files of one workload, each at once and whole.

    Args:
        root: Folder below which `<model>/cp<C>-tp<T>-bs<B>-seq<S>` is made.
        workload: The workload measured.
    """

    def __init__(self, root: str | Path, workload: Workload) -> None:
        self.folder = workload_folder(Path(root), workload)
        self._num_ranks = workload.parallelism.tp * workload.parallelism.cp

    def write(self, result: Measurement | FailedMeasurement) -> Path:
        """Append one result and return the file it went to.

        Failures go to a file of their own, so that no reader takes them for measurements.
        """
        if isinstance(result, FailedMeasurement):
            path = self.folder / result.partition / FAILURES_FILE
            _append(path, json.dumps({**_place(result), "reason": result.reason}), header=None)
            return path
        if result.partition in OUTSIDE_UNITS:
            clock = str(result.configuration.clock_mhz)
            path = self.folder / OUTSIDE_FOLDER / clock / f"{result.partition}{OUTSIDE_SUFFIX}"
            _append(path, _csv_line(self._outside_cells(result)), header=_csv_line(_HEADER))
            return path
        path = self.folder / result.partition / RESULTS_FILE
        line = {
            **_place(result),
            "time_s": result.time_s,
            "energy_j": result.energy_j,
            "time_spread_s": result.time_spread_s,
            "energy_spread_j": result.energy_spread_j,
            "conditions": dict(result.conditions),
        }
        _append(path, json.dumps(line, allow_nan=False), header=None)
        return path

    def _outside_cells(self, result: Measurement) -> tuple[str, ...]:
        energy_j = result.energy_j
        return (
            repr(result.time_s),
            _text(energy_j * self._num_ranks if energy_j is not None else None),
            _text(energy_j),
            _text(result.time_spread_s),
            _text(result.energy_spread_j),
            json.dumps(dict(result.conditions), allow_nan=False),
            str(result.repeat),
        )


def write_recorded(
    root: str | Path, results: Iterable[Measurement | FailedMeasurement], *, workload: Workload
) -> Path:
    """Write results in the recorded layout and return the workload's folder.

    Args:
        root: Folder below which the workload's folder is made; existing files are appended to.
        results: What to write.
        workload: The workload measured.
    """
    recorder = Recorder(root, workload)
    for result in results:
        recorder.write(result)
    return recorder.folder


def _place(result: Measurement | FailedMeasurement) -> dict[str, object]:
    configuration = result.configuration
    point = configuration.launch_point
    return {
        "freq": configuration.clock_mhz,
        "overlap_start": point.value if point is not None else LaunchPoint.NONE.value,
        "overlap_end": LaunchPoint.NONE.value,
        "sm": configuration.sm_allocation,
        "block": THREADS_PER_BLOCK,
        "repeat": result.repeat,
    }


def _text(value: float | None) -> str:
    return repr(value) if value is not None else ""


def _csv_line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def _append(path: Path, line: str, *, header: str | None) -> None:
    """Append a whole line in one write; a line that a crash cut off before it stays apart."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        prefix = ""
        if file.seek(0, os.SEEK_END) == 0:
            prefix = f"{header}\n" if header is not None else ""
        else:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                prefix = "\n"
        file.write(f"{prefix}{line}\n".encode())
