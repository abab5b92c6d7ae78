"""Words for states, sources, ages and counts. Pure functions: no drawing in here."""

import re
from datetime import UTC, datetime

from kareus.core.measurement import SourceKind
from kareus.report.format import DASH, THIN_SPACE

SOURCE_WORDS = {
    SourceKind.SIMULATOR: "simulated",
    SourceKind.MEASURED: "measured",
    SourceKind.REPLAY: "replayed",
}
SOURCE_HELP = {
    "simulated": "Every time and energy here comes from the calibrated simulator.",
    "measured": "Every time and energy here was measured on GPUs by this study.",
    "replayed": "Every time and energy here was recorded earlier and imported.",
    "extrapolated": (
        "The simulator is not calibrated for this GPU: its parameters are carried over from "
        "another one, so read the figures as an estimate."
    ),
}
_OPTION = re.compile(r"--(?!gpus all\b)([a-z][a-z-]*)")  # `--gpus all` is docker's


def source_words(source: SourceKind, *, extrapolated: bool) -> str:
    """Return the mark that stands where a number stands."""
    words = SOURCE_WORDS[source]
    return f"{words}, extrapolated" if extrapolated else words


def in_words(message: str) -> str:
    """Return a message with the command line's options spelled as the form's words."""
    return _OPTION.sub(lambda match: match[1].replace("-", " "), message)


def age(moment: datetime, now: datetime | None = None) -> str:
    """Return how long ago something was, in its largest unit."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 60:
        return "just now"
    for limit, size, unit in ((3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)}{THIN_SPACE}{unit} ago"
    return f"{int(seconds // 86400)}{THIN_SPACE}d ago"


def count(number: int | None) -> str:
    """Return a whole number, thousands apart by thin spaces; a dash where unknown."""
    return DASH if number is None else f"{number:,}".replace(",", THIN_SPACE)


def plural(number: int, noun: str) -> str:
    """Return a count with its noun, such as `1 study`, `1 296 measurements`."""
    if number == 1:
        return f"1 {noun}"
    return f"{count(number)} {f'{noun[:-1]}ies' if noun.endswith('y') else f'{noun}s'}"
