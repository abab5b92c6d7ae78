"""Stand-in GPUs, and quiet processes."""

import pytest

from tests.standin.plugin import standin, standin_library

__all__ = ["standin", "standin_library"]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
