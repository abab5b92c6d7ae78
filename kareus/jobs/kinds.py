"""Which function runs which kind of job.

A worker resolves kinds through a table like this one and nothing else: what stands in the
database names a kind, never a module. Functions are imported when a job of their kind runs, so
that a worker loads only what it needs.
"""

import importlib
from collections.abc import Mapping
from typing import TypeGuard

from kareus.errors import JobError
from kareus.jobs.context import JobFunction

KINDS: Mapping[str, str] = {
    "exploration": "kareus.jobs.exploration:run",
    "study": "kareus.jobs.study:run",
}


def resolve(kind: str, module: str = __name__) -> JobFunction:
    """Return the function for a kind of job.

    Args:
        kind: The kind.
        module: A module with a table `KINDS` of kind -> `module:function`.

    Raises:
        JobError: The kind is unknown, or its function cannot be imported.
    """
    table = check(kind, module)
    place, _, name = table[kind].partition(":")
    try:
        function = getattr(importlib.import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise JobError(f"jobs of kind {kind!r} cannot run here: {error}") from error
    if not _is_job_function(function):
        raise JobError(f"jobs of kind {kind!r} cannot run: {table[kind]} is no function")
    return function


def check(kind: str, module: str = __name__) -> Mapping[str, str]:
    """Return the table of kinds, if it has this one; imports no job's function.

    Raises:
        JobError: The kind is unknown.
    """
    table: Mapping[str, str] = importlib.import_module(module).KINDS
    if kind not in table:
        raise JobError(f"there is no kind of job {kind!r}: known are {', '.join(sorted(table))}")
    return table


def _is_job_function(value: object) -> TypeGuard[JobFunction]:
    return callable(value)
