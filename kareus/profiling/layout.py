"""Where recorded measurements lie on disk.

    <model>/cp<C>-tp<T>-bs<B>-seq<S>/<partition>/eval_results.jsonl
    <model>/cp<C>-tp<T>-bs<B>-seq<S>/nonpartition/<clock>/<unit>_energy.csv

B is the microbatch size, S the sequence length, the clock in MHz. Units of our own (`seq_*`,
leads and trails) stand beside the partitions, in folders of their names.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kareus.core.workload import Workload

RESULTS_FILE = "eval_results.jsonl"
FAILURES_FILE = "failures.jsonl"
OUTSIDE_FOLDER = "nonpartition"
OUTSIDE_SUFFIX = "_energy.csv"
OUTSIDE_UNITS = ("preprocess", "postprocess", "loss", "preprocess_backward", "postprocess_backward")

_SHAPE = re.compile(r"cp(?P<cp>\d+)-tp(?P<tp>\d+)-bs(?P<bs>\d+)-seq(?P<seq>\d+)(?P<k>k?)", re.I)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadShape:
    """What the name of a workload's folder says."""

    cp: int
    tp: int
    microbatch_size: int
    seq_len: int

    def __str__(self) -> str:
        """Return the folder's name."""
        return f"cp{self.cp}-tp{self.tp}-bs{self.microbatch_size}-seq{self.seq_len}"


def shape_of(workload: Workload) -> WorkloadShape:
    """Return the shape whose folder a workload's measurements lie in."""
    return WorkloadShape(
        cp=workload.parallelism.cp,
        tp=workload.parallelism.tp,
        microbatch_size=workload.microbatch_size,
        seq_len=workload.seq_len,
    )


def parse_shape(name: str) -> WorkloadShape | None:
    """Return the shape a folder's name says; None if it is no such name."""
    match = _SHAPE.fullmatch(name)
    if match is None:
        return None
    return WorkloadShape(
        cp=int(match["cp"]),
        tp=int(match["tp"]),
        microbatch_size=int(match["bs"]),
        seq_len=int(match["seq"]) * (1024 if match["k"] else 1),
    )


def workload_folder(root: Path, workload: Workload) -> Path:
    """Return the folder of a workload's measurements below a root."""
    model = re.sub(r"[^\w.-]+", "_", workload.model.name).strip(".") or "model"
    return root / model / str(shape_of(workload))


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedFile:
    """A file of recorded measurements.

    Attributes:
        path: The file.
        folder: Its workload's folder.
        unit: Name of the partition or unit, as the layout says.
        clock: Name of the clock's folder, for work outside partitions; None otherwise.
    """

    path: Path
    folder: Path
    unit: str
    clock: str | None


def find_files(path: Path) -> Iterator[RecordedFile]:
    """Yield the files of recorded measurements at or below a path, in order of their names."""
    if path.is_file():
        candidates = [path.resolve()]
    else:
        candidates = sorted(
            [*path.resolve().rglob(RESULTS_FILE), *path.resolve().rglob(f"*{OUTSIDE_SUFFIX}")]
        )
    for file in candidates:
        if file.name == RESULTS_FILE:
            yield RecordedFile(path=file, folder=file.parents[1], unit=file.parent.name, clock=None)
        elif file.name.endswith(OUTSIDE_SUFFIX) and file.parents[1].name == OUTSIDE_FOLDER:
            yield RecordedFile(
                path=file,
                folder=file.parents[2],
                unit=file.name.removesuffix(OUTSIDE_SUFFIX),
                clock=file.parent.name,
            )
