"""Matching of names as people type them: case, underscores and hyphens do not matter."""

import difflib
from collections.abc import Iterable


def normalized(name: str) -> str:
    """Return the form under which names are compared: lower case, no hyphen, underscore or space.

    `llama3.2_3b`, `Llama-3.2-3B` and `llama3.2-3b` are one name.
    """
    return name.strip().lower().translate(str.maketrans("", "", "-_ "))


def find(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that equals `name` once both are normalised; None if there is none."""
    wanted = normalized(name)
    return next((candidate for candidate in known if normalized(candidate) == wanted), None)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: its close matches, else all known names.

    Args:
        name: What was given; of a path-like name (`org/model`) the last part counts.
        known: Names that would have been accepted.
    """
    names = {normalized(candidate): candidate for candidate in known}
    wanted = normalized(name.rstrip("/").rsplit("/", 1)[-1])
    matches = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if matches:
        return f"did you mean {' or '.join(names[match] for match in matches)}?"
    return f"known are {', '.join(names.values())}"
