"""Compilation of inner loops.

Compiled code is cached beside the module or in the user's cache folder, so that only the first run
after an installation compiles; where neither can be written, every process compiles for itself.
"""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function on its first call; cached on disk where possible."""
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # no folder for the cache can be written
        return njit(function)
