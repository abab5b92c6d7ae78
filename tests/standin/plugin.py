"""Fixtures: a machine with two stand-in GPUs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.standin import StandIn, build_library


@pytest.fixture(scope="session")
def standin_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("the stand-in for NVIDIA's library needs a C compiler (cc)")
    return build_library(tmp_path_factory.mktemp("standin"))


@pytest.fixture
def standin(
    standin_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StandIn]:
    """Two A100 of this test's own, for this process and its children."""
    machine = StandIn(standin_library, tmp_path / "gpus")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KAREUS_CLOCK_LOCKS", str(tmp_path / "locks"))
    machine.load()
    yield machine
