"""The processes of a job: whether its worker lives, and ending whatever it started.

Every process of a job carries the job's id in its environment (`KAREUS_JOB`), inherited by its
children. That finds grandchildren too, and those whose parent or session is gone. A process that
must outlive its job (the watchdog that releases locked clocks) is started without the variable.
"""

import os
import socket
from collections.abc import Sequence

import psutil

from kareus.store import JobRecord

JOB_VARIABLE = "KAREUS_JOB"
# Creation times are kept in clock ticks; reading one twice may differ in the last of them.
_CREATION_TOLERANCE_S = 0.5


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
    """Return whether the job's worker lives; None if this machine cannot know."""
    if job.pid is None or job.host != this_host():
        return None
    try:
        process = psutil.Process(job.pid)
        created = float(process.create_time())
        ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
    same = (
        job.process_created_s is None
        or abs(created - job.process_created_s) < _CREATION_TOLERANCE_S
    )
    return same and not ended


def job_processes(job: str) -> list[psutil.Process]:
    """Return the living processes of a job on this machine, without the calling one."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.environ().get(JOB_VARIABLE) == job
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


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
