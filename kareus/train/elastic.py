"""torchrun in a process of its own, which writes down which of its workers failed and how."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kareus.train.parent import watch_parent


def main(failures: Path, arguments: Sequence[str]) -> int:
    """Run torchrun and return its exit status.

    Args:
        failures: File that gets the failed workers, as JSON.
        arguments: torchrun's command line.
    """
    # torchrun ends its workers in good order when it is asked to end.
    watch_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        failures.write_text(
            json.dumps(
                [
                    {"rank": rank, "pid": failure.pid, "exit_code": failure.exitcode}
                    for rank, failure in error.failures.items()
                ]
            )
        )
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
