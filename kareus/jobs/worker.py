"""A worker process: `python -m kareus.jobs.worker JOB --db PATH --attempt N`.

It has a session of its own, so that it outlives the page or command that started it. Its state is
in the store only. SIGTERM and SIGINT ask it to stop.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kareus.errors import CancelledError
from kareus.jobs import kinds, logs
from kareus.jobs.context import JobContext
from kareus.jobs.runner import finish, one_line, run_job
from kareus.store import JobState, Store

_LOGGER = logging.getLogger("kareus.jobs.worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one job to its end; what the command line of a worker does.

    Returns:
        0 done, 1 failed, 3 cancelled.
    """
    parser = argparse.ArgumentParser(prog="python -m kareus.jobs.worker", description=__doc__)
    parser.add_argument("job", help="id of a queued job")
    parser.add_argument("--db", required=True, type=Path, help="database file")
    parser.add_argument("--attempt", type=int, default=1, help="attempt this is")
    parser.add_argument("--kinds", default=kinds.__name__, help="module with a table KINDS")
    options = parser.parse_args(arguments)
    store = Store(options.db)
    record = store.job(options.job)
    if record.log_path is not None:
        logs.configure(Path(record.log_path), job=record.id, study=record.study)

    def run_kind(context: JobContext) -> object:
        """Run the kind's function; one that cannot be loaded is the job's failure, too."""
        try:
            return kinds.resolve(record.kind, options.kinds)(context)
        except CancelledError:
            raise
        except Exception as error:
            # Before the state changes: whoever sees the job failed finds the reason in the log.
            level = logging.INFO if context.should_cancel() else logging.ERROR
            _LOGGER.log(level, "job %s: %s", context.job, one_line(error), exc_info=error)
            raise

    def overdue() -> None:
        """Give up on a function that does not stop: end the process, keeping the store right."""
        finish(store, record, JobState.CANCELLED, None)
        os._exit(3)

    try:
        run_job(
            store,
            options.job,
            run_kind,
            attempt=options.attempt,
            on_overdue=overdue,
        )
    except CancelledError:
        return 3
    except Exception as error:
        _LOGGER.warning("the worker ends: %s", one_line(error))
        return 1
    finally:
        store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
