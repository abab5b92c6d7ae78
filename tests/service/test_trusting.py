"""Kept calibrations and records: checked before they are kept, named as the user names them."""

from pathlib import Path

import pytest

from kareus.errors import ConfigError, MeasurementError, NotFoundError
from kareus.service import BUILT_IN, RecordsKind, Service
from kareus.simulate.calibration import calibration_for, reference_gpu, save_calibration
from tests.reference import reference_data

GPU = "A100-SXM4-40GB"
FRONTIER_COLUMNS = "model,cp,tp,microbatch_size,seq_len,method,plan,iteration_time_s,total_energy_j"
CLOCK_COLUMNS = (
    "model,cp,tp,microbatch_size,seq_len,method,plan,stage,position,instruction,frequency_mhz"
)
KEY = "llama3.2_3b,1,8,8,4096,perseus,1"


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "kareus.db")


@pytest.fixture
def calibration_file(tmp_path: Path) -> bytes:
    path = tmp_path / "written.json"
    save_calibration(calibration_for(reference_gpu()), path)
    return path.read_bytes()


def test_a_calibration_is_kept_under_its_name(service: Service, calibration_file: bytes) -> None:
    assert service.calibrations() == []
    kept = service.add_calibration("my lab.json", calibration_file)
    assert (kept.name, kept.gpu) == ("my-lab", GPU)
    assert service.calibrations() == [kept]
    assert kept.path is not None and Path(kept.path).read_bytes() == calibration_file
    assert service.add_calibration("my lab.json", calibration_file) == kept  # the same once more
    with pytest.raises(ConfigError, match="another calibration 'my-lab'"):
        service.add_calibration("my lab.json", calibration_file + b"\n")
    service.delete_calibration("my-lab")
    assert service.calibrations() == []
    with pytest.raises(NotFoundError, match="no calibration 'my-lab'"):
        service.delete_calibration("my-lab")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"version": 1}'])
def test_what_is_no_calibration_is_refused_by_the_users_name(
    service: Service, content: bytes
) -> None:
    with pytest.raises(ConfigError, match=r"^calibration mine\.json: "):
        service.add_calibration("mine.json", content)
    assert service.calibrations() == []


@pytest.mark.parametrize("name", ["../../escape.json", "/etc/x.json", "built-in.json"])
def test_a_name_cannot_lead_elsewhere(
    service: Service, calibration_file: bytes, tmp_path: Path, name: str
) -> None:
    try:
        kept = service.add_calibration(name, calibration_file)
    except ConfigError as error:
        assert BUILT_IN in str(error)
    else:
        assert Path(kept.path or "").parent == tmp_path / "calibrations"


def test_every_gpu_has_a_built_in_calibration(service: Service) -> None:
    measured, assumed = (service.built_in_calibration(g) for g in (GPU, "H100-SXM5-80GB"))
    assert not measured.extrapolated and measured.held_out
    assert assumed.extrapolated and assumed.time_uncertainty > measured.time_uncertainty


def test_published_plans_are_kept_and_compared(service: Service) -> None:
    records = service.add_frontier_records(
        "Published plans",
        frontiers=("a.csv", reference_data("published_frontiers.csv").read_bytes()),
        frequencies=("b.csv", reference_data("published_frequencies.csv").read_bytes()),
        gpu=GPU,
    )
    assert records.id.startswith("published-plans-")
    assert service.records() == [records]
    found = service.validate_records(records.id)
    assert len(found.points) == sum(row["plans"] for row in found.figures["rows"])
    errors = [abs(p.predicted_time_s / p.recorded_time_s - 1) for p in found.points]
    mean = sum(row["plans"] * row["time_mape_pct"] for row in found.figures["rows"]) / len(errors)
    assert 100 * sum(errors) / len(errors) == pytest.approx(mean)
    service.delete_records(records.id)
    with pytest.raises(NotFoundError, match="no records"):
        service.validate_records(records.id)


def test_a_sweep_is_kept_and_compared(service: Service) -> None:
    records = service.add_sweep_records(
        "sweep", sweep=("s.csv", reference_data("attention_sweep.csv").read_bytes()), gpu=GPU
    )
    assert records.kind is RecordsKind.SWEEP
    found = service.validate_records(records.id)
    assert len(found.points) == found.figures["points"]
    errors = [abs(p.predicted_energy_j / p.recorded_energy_j - 1) for p in found.points]
    assert 100 * sum(errors) / len(errors) == pytest.approx(found.figures["energy_mape_pct"])


@pytest.mark.parametrize(
    ("frontier", "clock", "said"),
    [
        (f"{KEY},nan,1000", f"{KEY},0,0,forward,1410", r"^mine\.csv, row 1: iteration_time_s"),
        (f"{KEY},1.0,5000000", f"{KEY},0,0,forward,1410", r"^mine\.csv, row 1: .* must be in J"),
        (f"{KEY},4.0,1500", f"{KEY},0,0,sideways,1410", r"^clocks\.csv, row 1: instruction"),
        (f"{KEY},4.0,1500", f"{KEY},0,0,forward,9000", r"^clocks\.csv, row 1: frequency_mhz"),
        ("", f"{KEY},0,0,forward,1410", r"^mine\.csv: no rows"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_kept(
    service: Service, frontier: str, clock: str, said: str
) -> None:
    with pytest.raises(MeasurementError, match=said):
        service.add_frontier_records(
            "mine",
            frontiers=("mine.csv", f"{FRONTIER_COLUMNS}\n{frontier}\n".encode()),
            frequencies=("clocks.csv", f"{CLOCK_COLUMNS}\n{clock}\n".encode()),
            gpu=GPU,
        )
    assert service.records() == []


def test_two_files_of_one_name_are_two_files(service: Service) -> None:
    with pytest.raises(MeasurementError, match=r"^clocks of mine\.csv, row 1: stage is empty"):
        service.add_frontier_records(
            "mine",
            frontiers=("mine.csv", f"{FRONTIER_COLUMNS}\n{KEY},4.0,1500\n".encode()),
            frequencies=("mine.csv", f"{CLOCK_COLUMNS}\n{KEY},,0,forward,1410\n".encode()),
            gpu=GPU,
        )


def test_a_calibration_of_another_gpu_is_refused(service: Service, calibration_file: bytes) -> None:
    kept = service.add_calibration("lab.json", calibration_file)
    sweep = reference_data("attention_sweep.csv").read_bytes()
    records = service.add_sweep_records("sweep", sweep=("s.csv", sweep), gpu="A100-SXM4-80GB")
    with pytest.raises(ConfigError, match="choose a calibration of that GPU"):
        service.validate_records(records.id, calibration=kept.path)
