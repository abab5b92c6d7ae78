import dataclasses
import json
from pathlib import Path

import pytest

from kareus.errors import ConfigError
from kareus.simulate.calibration import (
    calibration_for,
    load_calibration,
    reference_gpu,
    save_calibration,
)
from kareus.simulate.parameters import SPECS
from kareus.workload.gpus import GPUS, load_gpu


def test_the_measured_gpu_is_calibrated_and_every_value_has_its_provenance() -> None:
    calibration = calibration_for(reference_gpu())
    assert not calibration.extrapolated
    assert set(calibration.table) == set(SPECS)
    for name, entry in calibration.table.items():
        spec = SPECS[name]
        assert entry.unit == spec.unit
        assert spec.lower <= entry.value <= spec.upper
        assert entry.source.startswith("fitted on" if spec.fitted else "prior")
    assert {error.method for error in calibration.held_out_errors} == {
        "perseus",
        "nanobatching_perseus",
    }
    assert 0.005 < calibration.uncertainty.time < 0.05


@pytest.mark.parametrize("name", sorted(set(GPUS) - {"A100-SXM4-40GB"}))
def test_other_gpus_are_extrapolated_and_say_so(name: str) -> None:
    calibration = calibration_for(load_gpu(name))
    assert calibration.extrapolated
    assert "extrapolated" in calibration.label
    assert name in calibration.warnings[0]
    measured = calibration_for(reference_gpu())
    assert calibration.uncertainty.time > measured.uncertainty.time
    assert calibration.uncertainty.energy > measured.uncertainty.energy
    for entry in calibration.table.values():
        assert entry.source.startswith("extrapolated")
        assert entry.uncertainty is None


def test_work_at_full_rate_takes_the_same_share_of_the_power_budget() -> None:
    shares = []
    for name in ("A100-SXM4-40GB", "H100-SXM5-80GB"):
        gpu = load_gpu(name)
        energy = calibration_for(gpu).parameters.flop_energy_j
        shares.append(energy * gpu.peak_flops / (gpu.power_limit_w - gpu.static_power_w))
    assert shares[0] == pytest.approx(shares[1])


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    calibration = calibration_for(reference_gpu())
    save_calibration(calibration, tmp_path / "gpu.json")
    assert load_calibration(tmp_path / "gpu.json") == calibration


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda c: c["table"].pop("gemm_efficiency"), "lacks parameter gemm_efficiency"),
        (lambda c: c["table"]["gemm_efficiency"].update(value=7.0), "outside 0.4..1"),
        (lambda c: c["table"]["gemm_efficiency"].update(value="fast"), "table.gemm_efficiency"),
        (lambda c: c["table"].update(magic=c["table"]["gemm_efficiency"]), "unknown .* 'magic'"),
        (lambda c: c.update(version=99), "version 99"),
        (lambda c: c.pop("gpu"), "gpu: "),
        (lambda c: c["gpu"].update(num_sms="many"), "gpu.num_sms"),
    ],
)
def test_damaged_files_are_refused_by_place(tmp_path: Path, damage, words: str) -> None:
    path = tmp_path / "gpu.json"
    save_calibration(calibration_for(reference_gpu()), path)
    content = json.loads(path.read_text(encoding="utf-8"))
    damage(content)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match=words) as caught:
        load_calibration(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_calibration_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_calibration(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("import os", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"text\.json"):
        load_calibration(tmp_path / "text.json")


def test_a_gpu_with_other_clocks_keeps_the_calibration() -> None:
    gpu = dataclasses.replace(reference_gpu(), clocks_mhz=(1200, 1305, 1410))
    assert calibration_for(gpu).gpu == gpu
    assert not calibration_for(gpu).extrapolated
