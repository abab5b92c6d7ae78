"""`torchrun -m kareus.train`: one process of a training job."""

import logging
import os
import sys
import traceback
from collections.abc import Sequence

from kareus.errors import ConfigError, KareusError
from kareus.train.log import LogWriter
from kareus.train.parent import watch_parent
from kareus.train.settings import parse_arguments

_PEER_ENDED = ("connection closed", "connection reset", "broken pipe", "another rank ended")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train in this process and return its exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    rank = int(os.environ.get("RANK", "0"))
    try:
        settings = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        if "RANK" not in os.environ:
            raise ConfigError(
                "this process does not know its rank: start it with torchrun, or use "
                "'kareus launch'"
            )
    except KareusError as error:
        sys.stderr.write(f"kareus.train: {error}\n")
        return error.exit_code
    watch_parent(lambda: os._exit(1))
    log = LogWriter(settings.log, rank)
    try:
        # Only here: messages about the command line need no torch.
        from kareus.train.trainer import train

        train(settings, log)
    except Exception as error:
        ours = _own_error(error)
        reason = str(ours or error).strip().splitlines()[0] if str(ours or error).strip() else ""
        reason = reason or type(error).__name__
        peer = any(words in str(error).lower() for words in _PEER_ENDED)
        log.failed(reason, peer=peer)
        if ours is None:
            traceback.print_exc()
        else:
            sys.stderr.write(f"kareus.train, rank {rank}: {reason}\n")
        sys.stderr.flush()
        # Others may wait for this rank in a collective: leave without waiting for them.
        os._exit(ours.exit_code if ours is not None else 1)
    finally:
        log.close()
    _leave()
    return 0


def _own_error(error: BaseException) -> KareusError | None:
    """The error of ours in a chain; torch's pipelining wraps what stages raise."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, KareusError):
            return seen
        seen = seen.__cause__
    return None


def _leave() -> None:
    """Take the process groups down."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
