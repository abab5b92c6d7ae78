"""Ends a process when the one that started it is gone, so that no job trains on unnoticed."""

import os
import threading
import time
from collections.abc import Callable

_POLL_S = 1.0


def watch_parent(on_gone: Callable[[], None]) -> None:
    """Call a function once this process' parent has ended, from a thread that ends with it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        on_gone()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
