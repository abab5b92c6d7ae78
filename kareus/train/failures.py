"""Which of a job's processes failed first, and what to tell about it.

When one ends the others lose their peer and fail, too; those are not to blame.
"""

import contextlib
import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.errors import JobError, KareusError
from kareus.train.log import RankLog, read_log
from kareus.train.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class WorkerFailure:
    """A worker that ended otherwise than well.

    Attributes:
        rank: Its rank.
        exit_code: Its exit status; below 0 the signal that ended it.
    """

    rank: int
    exit_code: int

    @property
    def killed_by(self) -> str | None:
        """The signal that ended it."""
        if self.exit_code >= 0:
            return None
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.exit_code).name
        return f"signal {-self.exit_code}"


def read_failures(path: Path) -> list[WorkerFailure]:
    """Return the failures `elastic` wrote down; none if it did not."""
    try:
        return [
            WorkerFailure(rank=int(each["rank"]), exit_code=int(each["exit_code"]))
            for each in json.loads(path.read_text())
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def failed_run(
    status: int, failures: Sequence[WorkerFailure], settings: TrainingSettings
) -> KareusError:
    """Return the error of a run that failed: which rank, after which step, and how to go on.

    Args:
        status: torchrun's exit status.
        failures: The workers that failed.
        settings: The run.
    """
    logs: dict[int, RankLog] = {}
    with contextlib.suppress(KareusError):
        logs = {log.info.rank: log for log in read_log(settings.log)}
    go_on = "start again"
    if settings.checkpoint_dir is not None:
        saved = sorted(settings.checkpoint_dir.glob("step-*/.metadata"))
        if saved:
            step = int(saved[-1].parent.name.removeprefix("step-"))
            go_on = f"continue after step {step} with --resume"
    if not failures:
        return JobError(
            f"training was ended from outside (status {status}): {go_on}; logs are in "
            f"{settings.log}"
        )

    def blame(failure: WorkerFailure) -> tuple[int, int]:
        """Those killed first, then those with a reason of their own, then those who lost a peer."""
        log = logs.get(failure.rank)
        own_reason = log is not None and log.failure is not None and not log.lost_peer
        if failure.killed_by not in (None, "SIGTERM", "SIGABRT"):
            return (0, failure.rank)
        return (1 if own_reason else 2, failure.rank)

    first = min(failures, key=blame)
    log = logs.get(first.rank)
    who = f"rank {first.rank}"
    after = "before its first step"
    if log is not None:
        who += f" (stage {log.info.stage})"
        if log.steps:
            after = f"after step {log.steps[-1].step}"
    if first.killed_by is not None:
        how = f"was killed by {first.killed_by}"
        if first.killed_by == "SIGKILL":
            how += " (by somebody, or for lack of memory: see dmesg)"
    elif log is not None and log.failure is not None:
        how = f"failed: {log.failure}"
    else:
        how = f"failed with status {first.exit_code} (see its messages above)"
    return JobError(f"{who} {how} {after}: the job was ended; {go_on}; logs are in {settings.log}")
