"""How far the simulator can be trusted: validation and calibration on recorded data."""

from pathlib import Path
from typing import Any

from kareus.simulate.calibrate import calibrate as fit
from kareus.simulate.calibration import Calibration, load_calibration, save_calibration
from kareus.simulate.validate import validate_frontiers as against_frontiers
from kareus.simulate.validate import validate_sweep as against_sweep
from kareus.workload.blocks import BlockShape
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.gpus import load_gpu
from kareus.workload.partitions import NUM_NANOBATCHES


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
    """Return the errors of the simulator on a recorded sweep of a forward attention partition."""
    shape = None
    if settings is not None:
        workload = build_workload(settings)
        shape = BlockShape(
            model=workload.model,
            num_sequences=workload.microbatch_size / NUM_NANOBATCHES,
            seq_len=workload.seq_len,
            tp=workload.parallelism.tp,
            cp=workload.parallelism.cp,
        )
    return against_sweep(
        sweep,
        _load(calibration),
        gpu=load_gpu(gpu).name,
        clock_mhz=clock_mhz,
        shape=shape,
    )


def calibrate(
    frontiers: Path, frequencies: Path, sweep: Path | None, gpu: str, out: Path
) -> dict[str, Any]:
    """Fit, write the calibration file, and return the report."""
    result = fit(frontiers, frequencies, sweep, gpu=load_gpu(gpu))
    save_calibration(result.calibration, out)
    return {
        "out": str(out),
        "fit": result.fit,
        "leave_one_out": result.held_out,
        "sweep": result.sweep,
        "warnings": list(result.warnings),
    }


def _load(calibration: str | None) -> Calibration | None:
    return load_calibration(Path(calibration)) if calibration is not None else None
