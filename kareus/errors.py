"""The error tree: every error a user can meet roots in `KareusError`.

Each leaf also inherits the fitting built-in, so that callers who know only Python can catch it.
A message names what went wrong, the value, the place and the remedy, in one line.
"""

from typing import ClassVar


class KareusError(Exception):
    """Root of all errors of this package.

    `exit_code` is what the command line ends with: 2 for bad input, 1 for a failed run.
    """

    exit_code: ClassVar[int] = 1


class ConfigError(KareusError, ValueError):
    """A workload, setting or option cannot be what was given."""

    exit_code: ClassVar[int] = 2


class MeasurementError(KareusError, ValueError):
    """Recorded or requested measurements are missing, malformed or unusable."""

    exit_code: ClassVar[int] = 2


class InfeasibleError(KareusError, ValueError):
    """No plan meets the constraints; the message says which bound is out of reach."""

    exit_code: ClassVar[int] = 2


class ScheduleError(KareusError, ValueError):
    """A schedule file or bundle is malformed, altered, or made for another job."""

    exit_code: ClassVar[int] = 2


class NotFoundError(KareusError, LookupError):
    """A study, plan, job or file that was named does not exist."""

    exit_code: ClassVar[int] = 2


class DeviceError(KareusError, RuntimeError):
    """A GPU, its driver or a permission on it is not usable as asked."""


class StoreError(KareusError, RuntimeError):
    """The database cannot be opened, read or written."""


class DatabaseFileError(StoreError, ValueError):
    """What was named as the database is none, or belongs to another program."""

    exit_code: ClassVar[int] = 2


class JobError(KareusError, RuntimeError):
    """A background job failed, or was asked for a transition its state does not allow."""


class CancelledError(KareusError, RuntimeError):
    """The work was asked to stop and did; what it had finished is stored."""
