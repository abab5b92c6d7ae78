import json
from pathlib import Path

import pytest
import torch

from tests.gpu.device_check import main
from tests.standin import StandIn

UNITS = {"fwd_attn", "fwd_mlp", "bwd_attn", "bwd_mlp", "seq_fwd_attn", "loss", "preprocess"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDIN_STATE", raising=False)
    assert main(["--out", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["on_gpu"] is False
    assert "no NVIDIA GPU" in report["verdict"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_every_step_runs_in_small_and_changes_no_clock(standin: StandIn, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert main(["--out", str(out), "--rehearse", "--window", "0.06", "--cooldown", "0"]) == 0
    report = json.loads(out.read_text())
    assert report["verdict"] == "complete"
    assert report["on_gpu"] is False
    assert set(report["partitions"]) >= UNITS
    assert all(unit["time_s"] > 0 for unit in report["partitions"].values())
    assert report["counter"]["period_s"] == pytest.approx(0.02, abs=0.015)
    assert {"forward", "backward"} == set(report["overhead"])
    assert standin.gpu(0).num_sets == standin.gpu(0).num_resets == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert main(["--out", str(out), "--window", "1.0", "--cooldown", "0.2"]) == 0
    report = json.loads(out.read_text())
    assert report["verdict"] == "complete"
    for unit in report["partitions"].values():
        assert unit["energy_j"] > 0
        assert unit["integral_over_counter"] == pytest.approx(1.0, abs=0.15)
    assert report["overlap"]["device-to-host"]["hidden_share"] > 0.3
