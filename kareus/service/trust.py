"""How far the simulator can be trusted: validation and calibration on recorded data."""

from pathlib import Path
from typing import Any

from kareus.errors import ConfigError
from kareus.simulate.calibrate import calibrate as fit
from kareus.simulate.calibration import (
    Calibration,
    calibration_for,
    load_calibration,
    save_calibration,
)
from kareus.simulate.records import read_sweep
from kareus.simulate.sweep import SHAPE, predict_sweep
from kareus.simulate.validate import ReplayedPlan, error_table, replay_frontiers
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


def replay_points(
    frontiers: Path, frequencies: Path, gpu: str, calibration: str | None
) -> tuple[tuple[ReplayedPlan, ...], dict[str, Any]]:
    """Return every recorded plan beside its replay, and the error table."""
    points = replay_frontiers(frontiers, frequencies, _for_gpu(calibration, gpu), gpu=gpu)
    return points, error_table(points)


def sweep_points(
    sweep: Path, gpu: str, clock_mhz: int | None, calibration: str | None
) -> tuple[list[tuple[str, tuple[float, float], tuple[float, float]]], dict[str, Any]]:
    """Return every configuration of a sweep beside its prediction, and the figures.

    Points are (words, recorded (s, J per GPU), predicted (s, J per GPU)).
    """
    used = _for_gpu(calibration, gpu) or calibration_for(load_gpu(gpu))
    recorded = read_sweep(sweep, used.gpu)
    predicted = predict_sweep(recorded, used.gpu, used.parameters, clock_mhz=clock_mhz, shape=SHAPE)
    points = [
        (
            f"launched at operator {point.overlap_start}, {point.num_sms} SMs"
            if point.overlap_start >= 0
            else f"not overlapped, {point.num_sms} SMs",
            (point.time_s, point.energy_j),
            (float(time_s), float(energy_j)),
        )
        for point, time_s, energy_j in zip(
            recorded, predicted.time_s, predicted.energy_j, strict=True
        )
    ]
    return points, against_sweep(sweep, used, gpu=gpu, clock_mhz=clock_mhz)


def _for_gpu(calibration: str | None, gpu: str) -> Calibration | None:
    """A calibration file's content; refused where it is for another GPU."""
    loaded = _load(calibration)
    if loaded is not None and loaded.gpu.name != load_gpu(gpu).name:
        raise ConfigError(
            f"calibration {calibration} is for {loaded.gpu.name}, the records are of {gpu}: "
            "choose a calibration of that GPU"
        )
    return loaded


def _load(calibration: str | None) -> Calibration | None:
    return load_calibration(Path(calibration)) if calibration is not None else None
