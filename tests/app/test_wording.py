from datetime import UTC, datetime, timedelta

import pytest

from app.components.frame import escape
from app.wording import age, count, in_words, plural, source_words
from kareus.core.measurement import SourceKind

NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (3, "just now"),
        (60, "1\u2009min ago"),
        (3599, "59\u2009min ago"),
        (3600, "1\u2009h ago"),
        (2 * 86400 + 5, "2\u2009d ago"),
    ],
)
def test_age_uses_its_largest_unit(seconds: int, expected: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == expected


def test_counts_and_nouns() -> None:
    assert count(1296) == "1\u2009296"
    assert count(None) == "–"
    assert plural(1, "study") == "1 study"
    assert plural(0, "study") == "0 studies"
    assert plural(2, "thing") == "2 things"


def test_options_become_words() -> None:
    assert in_words("--num-microbatches 1: use 2 or --pp 1") == "num microbatches 1: use 2 or pp 1"
    assert in_words("a -- b") == "a -- b"
    docker = "install the driver (in a container: --gpus all), or use --source simulator"
    assert in_words(docker) == docker.replace("--source", "source")
    assert in_words("--gpus 5 is too few") == "gpus 5 is too few"


def test_an_extrapolated_source_is_never_silent() -> None:
    assert source_words(SourceKind.REPLAY, extrapolated=False) == "replayed"
    assert source_words(SourceKind.SIMULATOR, extrapolated=True) == "simulated, extrapolated"


def test_foreign_text_cannot_become_markup() -> None:
    assert escape("a_b *c* [x](y) <b> :red[z] $1$ `k`") == (
        r"a\_b \*c\* \[x\](y) \<b\> \:red\[z\] \$1\$ \`k\`"
    )
