import importlib.util
import logging
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from kareus.device.preflight import CheckState
from kareus.profiling.machine import adapt_workload, torch_checks
from tests.profiling.conftest import make_workload
from tests.standin import StandIn


def test_supported_clocks_stay_as_planned(standin: StandIn) -> None:
    workload = make_workload()
    assert adapt_workload(workload) == workload


def test_other_clocks_are_chosen_among_the_supported_and_said(
    standin: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("STANDIN_CLOCKS", "900:1410:170")
    monkeypatch.setenv("STANDIN_NAME", "NVIDIA A40")
    with caplog.at_level(logging.WARNING):
        adapted = adapt_workload(make_workload())
    assert adapted.gpu.clocks_mhz == (900, 1070, 1240, 1410)
    assert "4 clocks from 900 to 1410 MHz" in caplog.text
    assert "this machine has A40" in caplog.text


def test_this_torch_is_described() -> None:
    first = torch_checks()[0]
    assert first.name == "torch"
    assert first.state in (CheckState.OK, CheckState.WARNING)


@pytest.mark.parametrize(
    ("version", "states"),
    [
        ("cuda: Optional[str] = '12.8'\n", {"torch": "ok", "NCCL": "missing"}),
        ("cuda: Optional[str] = None\n", {"torch": "warning"}),
        (None, {"torch": "missing"}),
    ],
)
def test_each_build_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, states: dict[str, str]
) -> None:
    spec = None
    if version is not None:
        (tmp_path / "version.py").write_text(version)
        spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    checks = torch_checks()
    assert {check.name: check.state.value for check in checks} == states
    assert all(check.remedy for check in checks if check.state is not CheckState.OK)
