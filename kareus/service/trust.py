"""How far the simulator can be trusted: validation and calibration on recorded data."""

from pathlib import Path
from typing import Any

from kareus.simulate.calibrate import calibrate as fit
from kareus.simulate.calibration import Calibration, load_calibration
from kareus.simulate.validate import validate_frontiers as against_frontiers
from kareus.simulate.validate import validate_sweep as against_sweep
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.gpus import load_gpu


def validate_frontiers(
    frontiers: Path, frequencies: Path, calibration: str | None
) -> dict[str, Any]:
    """Return the errors of the simulator on recorded plans."""
    return against_frontiers(frontiers, frequencies, calibration=_load(calibration))


def validate_sweep(
    sweep: Path,
    gpu: str,
    clock_mhz: int | None,
    settings: WorkloadSettings | None,
    calibration: str | None,
) -> dict[str, Any]:
    """Return the errors of the simulator on a recorded sweep."""
    workload = build_workload(settings) if settings is not None else None
    return against_sweep(
        sweep,
        gpu=load_gpu(gpu),
        clock_mhz=clock_mhz,
        workload=workload,
        calibration=_load(calibration),
    )


def calibrate(
    frontiers: Path, frequencies: Path, sweep: Path | None, gpu: str, out: Path
) -> dict[str, Any]:
    """Fit, write the calibration file, and return the report."""
    result = fit(frontiers, frequencies, sweep=sweep, gpu=load_gpu(gpu))
    result.save(out)
    return result.report()


def _load(calibration: str | None) -> Calibration | None:
    return load_calibration(Path(calibration)) if calibration is not None else None
