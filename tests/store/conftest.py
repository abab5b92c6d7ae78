"""Every contract test runs against a file and against memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kareus.core.measurement import SourceKind
from kareus.store import Store


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "kareus.db") if request.param == "file" else Store.in_memory()
    with opened:
        yield opened


@pytest.fixture
def study(store: Store) -> str:
    return store.create_study(
        "A study", request={"model": "llama3.2-3b"}, source=SourceKind.SIMULATOR
    ).id
