"""Checks a bundle against the job, starts the processes with torchrun, and says how it went.

    launch ──> checks ──> elastic (torchrun) ──> one `kareus.train` process per GPU
       └──── reads their logs: losses, times, whether the schedule was followed

Nothing here needs torch; what does runs in processes of its own.
"""

import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kareus.errors import ConfigError, NotFoundError
from kareus.schedule.bundle import read_bundle
from kareus.schedule.document import Schedule
from kareus.train.checks import (
    JobShape,
    Nodes,
    check_devices,
    check_rendezvous,
    check_shape,
    processes_per_node,
)
from kareus.train.data import open_tokens
from kareus.train.failures import failed_run, read_failures
from kareus.train.follow import Mismatch, find_mismatches
from kareus.train.log import DEFAULT_FOLDER, RankLog, rank_files, read_log
from kareus.train.perfetto import write_timeline
from kareus.train.pfo import PfoServer
from kareus.train.settings import TrainingSettings

_STOP_S = 45.0
TIMELINE_NAME = "timeline.json"


# The file descriptor itself: what is printed must not mix with the one JSON document.
_STANDARD_ERROR = 2


@dataclass(frozen=True, kw_only=True)
class LaunchReport:
    """How a training run went.

    Attributes:
        steps: Steps trained in all, those before a resume included.
        losses: Loss of each step of this log.
        step_time_s: Median time of a step, the first (warm-up) left out.
        planned_time_s: The plan's iteration time.
        energy_j: Mean energy of a step, all GPUs of the job; None where it was not measured.
        planned_energy_j: The plan's energy of an iteration, all GPUs of the job.
        schedule_followed: Whether instructions, launch points and clocks asked for were the
            schedule's on every rank; None where not every rank's log can be read here.
        mismatches: Where not, in words.
        notes: What else to know.
        log: Folder of the logs.
        timeline: Planned and actual timeline in one file, for Perfetto; None if there is none.
    """

    steps: int
    losses: tuple[float, ...]
    step_time_s: float
    planned_time_s: float
    energy_j: float | None
    planned_energy_j: float
    schedule_followed: bool | None
    mismatches: tuple[str, ...]
    notes: tuple[str, ...]
    log: Path
    timeline: Path | None

    def as_document(self) -> dict[str, Any]:
        """Return what `kareus launch --json` prints."""
        return {
            "steps": self.steps,
            "losses": list(self.losses),
            "step_time_s": self.step_time_s,
            "planned_time_s": self.planned_time_s,
            "energy_j": self.energy_j,
            "planned_energy_j": self.planned_energy_j,
            "schedule_followed": self.schedule_followed,
            "mismatches": list(self.mismatches),
            "notes": list(self.notes),
            "log": str(self.log),
            "timeline": None if self.timeline is None else str(self.timeline),
        }


def default_log_folder(bundle: Path, *, nodes: int = 1) -> Path:
    """Return where the logs of a run go when nobody says.

    Several nodes must agree on it, so there it is named after the Slurm job, if there is one.
    """
    name = re.sub(r"[^\w.-]+", "_", bundle.resolve().stem) or "bundle"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    if nodes > 1:
        stamp = f"job-{os.environ.get('SLURM_JOB_ID', 'nodes')}"
    folder = DEFAULT_FOLDER / f"{name}-{stamp}"
    number = 2
    while nodes == 1 and folder.exists():  # two runs within a second
        folder, number = folder.with_name(f"{name}-{stamp}-{number}"), number + 1
    return folder


def launch(
    settings: TrainingSettings,
    *,
    nodes: Nodes | None = None,
    job: JobShape | None = None,
    environment: Mapping[str, str] | None = None,
) -> LaunchReport:
    """Check a bundle, train under it, and report.

    Args:
        settings: The run.
        nodes: The machines; None for this one.
        job: What the job is known to be beside the bundle; None for nothing.
        environment: Of the processes; None for this one's.

    Returns:
        How it went.

    Raises:
        KareusError: Refused before anything started.
        JobError: Training failed; the message says which rank, and how to go on.

    Effects: Blocks until training has ended. Messages of the processes go to standard error.
    """
    nodes = nodes or Nodes()
    settings = replace(
        settings,
        bundle=settings.bundle.resolve(),
        log=settings.log.resolve(),
        data=None if settings.data is None else settings.data.resolve(),
        checkpoint_dir=(
            None if settings.checkpoint_dir is None else settings.checkpoint_dir.resolve()
        ),
    )
    schedule, num_processes, notes = check_launch(settings, nodes, job or JobShape())
    settings.log.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kareus-launch-") as folder:
        failures = Path(folder) / "failures.json"
        status = _run(_command(settings, nodes, num_processes, failures), environment)
        if status != 0:
            raise failed_run(status, read_failures(failures), settings)
    return report_launch(schedule, settings.log, notes=notes)


def check_launch(
    settings: TrainingSettings, nodes: Nodes, job: JobShape
) -> tuple[Schedule, int, tuple[str, ...]]:
    """Refuse what cannot train, before anything starts.

    Returns:
        The schedule, the number of processes of this node, and notes.

    Raises:
        KareusError: With what is wrong and the remedy.
    """
    schedule = read_bundle(settings.bundle)
    check_shape(schedule, job)
    num_processes = processes_per_node(schedule, nodes)
    check_rendezvous(nodes)
    notes = check_devices(schedule, settings, num_processes)
    open_tokens(settings.data, schedule.workload, seed=settings.seed)
    if settings.pfo_url is not None:
        PfoServer(url=settings.pfo_url).check()
    if settings.resume:
        assert settings.checkpoint_dir is not None, "checked when the settings were made"
        if not any(settings.checkpoint_dir.glob("step-*/.metadata")):
            raise NotFoundError(
                f"{settings.checkpoint_dir}: holds no complete checkpoint to resume from; start "
                "without --resume, or give the right --checkpoint-dir"
            )
    elif settings.log.is_dir() and rank_files(settings.log) and nodes.rank == 0:
        raise ConfigError(
            f"{settings.log}: holds the log of another run; choose another --log, or continue "
            "that run with --resume"
        )
    return schedule, num_processes, notes


def report_launch(schedule: Schedule, log: Path, *, notes: Sequence[str] = ()) -> LaunchReport:
    """Return the report of a run that has ended, from its logs."""
    logs = read_log(log)
    num_ranks = schedule.workload.parallelism.num_gpus
    complete = len(logs) == num_ranks
    mismatches: tuple[Mismatch, ...] = find_mismatches(schedule, logs)
    first = logs[0]
    times_s = [max(steps) for steps in _by_step(logs, "time_s")]
    if not complete:
        notes = [*notes, f"logs of {len(logs)} of {num_ranks} ranks are visible on this node"]
    timeline = write_timeline(log / TIMELINE_NAME, schedule, logs)
    return LaunchReport(
        steps=first.steps[-1].step,
        losses=tuple(record.loss for record in first.steps),
        step_time_s=statistics.median(times_s[1:] or times_s),
        planned_time_s=schedule.prediction.iteration_time_s,
        energy_j=_mean_energy_j(logs) if complete else None,
        planned_energy_j=schedule.prediction.job.energy_j,
        schedule_followed=(not mismatches) if complete else None,
        mismatches=tuple(str(each) for each in mismatches),
        notes=tuple(notes),
        log=log,
        timeline=timeline,
    )


def _by_step(logs: Sequence[RankLog], name: str) -> list[list[Any]]:
    """A figure of every step, by rank, for steps all ranks have."""
    return [
        [getattr(record, name) for record in records]
        for records in zip(*(log.steps for log in logs), strict=False)
    ]


def _mean_energy_j(logs: Sequence[RankLog]) -> float | None:
    """Mean energy of a step over all ranks, the first step left out; None where one lacks it."""
    by_step = _by_step(logs, "energy_j")
    by_step = by_step[1:] or by_step
    if any(energy_j is None for energies in by_step for energy_j in energies):
        return None
    return statistics.fmean(sum(energies) for energies in by_step)


def _command(
    settings: TrainingSettings, nodes: Nodes, num_processes: int, failures: Path
) -> list[str]:
    """Return the command line of torchrun, by way of `elastic`."""
    if nodes.rendezvous is None:
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    else:
        # The static rendezvous keeps the nodes in order, so that stages lie as they were planned.
        host, _, port = nodes.rendezvous.rpartition(":")
        meeting = ["--master-addr", host, "--master-port", port]
    return [
        sys.executable, "-m", "kareus.train.elastic", str(failures),
        "--nnodes", str(nodes.count), "--node-rank", str(nodes.rank),
        "--nproc-per-node", str(num_processes), "--max-restarts", "0", *meeting,
        "-m", "kareus.train", *settings.to_arguments(),
    ]  # fmt: skip


def _run(command: Sequence[str], environment: Mapping[str, str] | None) -> int:
    """Run torchrun to its end; end it if this process is told to end."""
    variables = dict(os.environ if environment is None else environment)
    # torchrun would choose 1 and say so at length.
    variables.setdefault("OMP_NUM_THREADS", "1")
    process = subprocess.Popen(command, stdout=_STANDARD_ERROR, env=variables)
    try:
        with _terminating():
            return process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise


@contextlib.contextmanager
def _terminating() -> Any:
    """Turn SIGTERM into an exception, so that the processes below are ended, too."""

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: somebody else handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
