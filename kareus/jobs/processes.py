"""The processes of a job: whether its worker lives, and ending whatever it started.

Every process of a job carries the job's id in its environment (`KAREUS_JOB`), inherited by its
children. That finds grandchildren too, and those whose parent or session is gone. A process that
must outlive its job (the watchdog that releases locked clocks) is started without the variable.
"""

import os
import socket
import time
from collections.abc import Sequence

import psutil

from kareus.store import JobRecord

JOB_VARIABLE = "KAREUS_JOB"
_CREATION_TOLERANCE_S = 2.0
_FRESH_S = 5.0


def this_host() -> str:
    """Return the name of this machine."""
    return socket.gethostname()


def creation_time_s(pid: int) -> float | None:
    """Return when a process was created, seconds since the epoch; None if it is gone."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def worker_alive(job: JobRecord) -> bool | None:
    """Return whether the job's worker lives; None if this machine cannot know.

    A process with the worker's number is the worker if it carries the job's id, was created when
    the worker was, or the heartbeat is fresh. One sign is enough: creation times move when the
    machine's clock is set, and a command in the foreground does not carry the id.
    """
    if job.pid is None or job.host != this_host():
        return None
    try:
        process = psutil.Process(job.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        created_s = float(process.create_time())
    except psutil.Error:
        return False
    return (
        _mark(process) == job.id
        or job.process_created_s is None
        or abs(created_s - job.process_created_s) < _CREATION_TOLERANCE_S
        or (job.heartbeat_s is not None and abs(time.time() - job.heartbeat_s) < _FRESH_S)
    )


def _mark(process: psutil.Process) -> str | None:
    """The job a process belongs to; None if to none, or if that may not be read."""
    try:
        return process.environ().get(JOB_VARIABLE)
    except (psutil.Error, OSError):
        return None


def job_processes(job: str) -> list[psutil.Process]:
    """Return the living processes of a job on this machine, without the calling one."""
    return [
        process
        for process in psutil.process_iter()
        if process.pid != os.getpid() and _mark(process) == job and not _ended(process)
    ]


def _ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def end_job_processes(job: str, *, grace_s: float, keep: Sequence[int] = ()) -> int:
    """End all processes of a job on this machine: ask first, kill after the grace time.

    Looks again until none is left, since a process may start another one while it is ended.

    Args:
        job: The job's id.
        grace_s: Seconds between asking (SIGTERM) and killing (SIGKILL).
        keep: Processes to spare. The calling one always is.

    Returns:
        How many processes were ended.
    """
    ended = 0
    grace_left_s = grace_s
    for _ in range(10):
        processes = [p for p in job_processes(job) if p.pid not in keep]
        if not processes:
            break
        ended += len(processes)
        if grace_left_s > 0:
            for process in processes:
                _signal(process, kill=False)
            _, processes = psutil.wait_procs(processes, timeout=grace_left_s)
            grace_left_s = 0.0
        for process in processes:
            _signal(process, kill=True)
        psutil.wait_procs(processes, timeout=2.0)
    return ended


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        if kill:
            process.kill()
        else:
            process.terminate()
    except psutil.Error:
        pass
