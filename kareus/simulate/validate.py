"""How far the simulator is from recorded data: plans of frontiers, and partition sweeps.

The figures are those of `kareus validate`; errors are mean absolute percentage errors of predicted
against recorded values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kareus.core.plan import Method
from kareus.core.workload import Gpu
from kareus.errors import MeasurementError
from kareus.simulate.calibration import Calibration, calibration_for
from kareus.simulate.plan_replay import REPLAYED_METHODS, FrontierReplay, prepare_replays
from kareus.simulate.records import RecordKey, read_frontiers, read_sweep
from kareus.simulate.sweep import SHAPE, predict_sweep
from kareus.workload.blocks import BlockShape
from kareus.workload.gpus import load_gpu

FloatArray = NDArray[np.float64]

REFERENCE_GPU = "A100-SXM4-40GB"
"""The GPU of the published frontiers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayedPlan:
    """A recorded plan beside its replay: a point of a parity plot.

    Attributes:
        key: The workload.
        method: The method.
        plan: The plan's number.
        recorded_time_s: Recorded iteration time.
        predicted_time_s: That of the replay.
        recorded_energy_j: Recorded pipeline energy.
        predicted_energy_j: That of the replay.
    """

    key: RecordKey
    method: Method
    plan: int
    recorded_time_s: float
    predicted_time_s: float
    recorded_energy_j: float
    predicted_energy_j: float

    @property
    def time_error(self) -> float:
        """Relative error of the time, signed."""
        return self.predicted_time_s / self.recorded_time_s - 1.0

    @property
    def energy_error(self) -> float:
        """Relative error of the energy, signed."""
        return self.predicted_energy_j / self.recorded_energy_j - 1.0


def replay_frontiers(
    frontiers: Path | str,
    frequencies: Path | str,
    calibration: Calibration | None = None,
    *,
    gpu: str = REFERENCE_GPU,
    stage_layers: Sequence[int] | None = None,
) -> tuple[ReplayedPlan, ...]:
    """Replay every recorded Perseus and nanobatching plan in the simulator.

    Args:
        frontiers: CSV of recorded plans.
        frequencies: CSV of their clocks.
        calibration: What to simulate with; None means the GPU's built-in one.
        gpu: The GPU they were recorded on, unless the calibration says.
        stage_layers: Layers per stage; None means those of the published experiments.

    Returns:
        Plans by workload, method and time.

    Raises:
        MeasurementError: If a file cannot be used; the message names the row.
    """
    calibration = calibration or calibration_for(load_gpu(gpu))
    replays = load_replays(frontiers, frequencies, calibration.gpu, stage_layers=stage_layers)
    return tuple(point for replay in replays for point in replayed_plans(replay, calibration))


def load_replays(
    frontiers: Path | str,
    frequencies: Path | str,
    gpu: Gpu,
    *,
    stage_layers: Sequence[int] | None = None,
) -> tuple[FrontierReplay, ...]:
    """Read recorded plans and prepare their replay.

    Raises:
        MeasurementError: If a file cannot be used, or holds no plan that can be replayed.
    """
    plans = read_frontiers(
        Path(frontiers), Path(frequencies), gpu, wanted=lambda method: method in REPLAYED_METHODS
    )
    if not plans:
        raise MeasurementError(
            f"{frontiers}: no plan of perseus or nanobatching_perseus: only those follow from "
            "their clocks"
        )
    return prepare_replays(plans, gpu, stage_layers=stage_layers)


def replayed_plans(replay: FrontierReplay, calibration: Calibration) -> tuple[ReplayedPlan, ...]:
    """Return the plans of one prepared frontier beside their prediction."""
    times, energies = replay.predict(calibration.parameters)
    return tuple(
        ReplayedPlan(
            key=replay.key,
            method=replay.method,
            plan=plan.plan,
            recorded_time_s=plan.iteration_time_s,
            predicted_time_s=float(time),
            recorded_energy_j=plan.total_energy_j,
            predicted_energy_j=float(energy),
        )
        for plan, time, energy in zip(replay.plans, times, energies, strict=True)
    )


def validate_frontiers(
    frontiers: Path | str,
    frequencies: Path | str,
    calibration: Calibration | None = None,
    *,
    gpu: str = REFERENCE_GPU,
    stage_layers: Sequence[int] | None = None,
) -> dict[str, object]:
    """Return the error table of replayed plans, as `kareus validate --json` prints it.

    Returns:
        `rows` per workload and method; `overall` per method, means over plans; `ratio`, mean
        absolute error over workloads of nanobatching over sequential at each one's fastest
        recorded plan (None where no workload has both methods).

    Raises:
        MeasurementError: If a file cannot be used; the message names the row.
    """
    return error_table(
        replay_frontiers(frontiers, frequencies, calibration, gpu=gpu, stage_layers=stage_layers)
    )


def error_table(points: Sequence[ReplayedPlan]) -> dict[str, object]:
    """Return the error table of replayed plans (see `validate_frontiers`)."""
    groups: dict[tuple[RecordKey, Method], list[ReplayedPlan]] = {}
    for point in points:
        groups.setdefault((point.key, point.method), []).append(point)
    rows = [
        {
            "model": key.model,
            "cp": key.cp,
            "tp": key.tp,
            "microbatch_size": key.microbatch_size,
            "seq_len": key.seq_len,
            "method": csv_name(method),
            "plans": len(members),
            **_mapes(members),
        }
        for (key, method), members in groups.items()
    ]
    overall = {
        csv_name(method): _mapes([point for point in points if point.method is method])
        for method in REPLAYED_METHODS
        if any(point.method is method for point in points)
    }
    return {"rows": rows, "overall": overall, "ratio": _ratio_errors(groups)}


def csv_name(method: Method) -> str:
    """Return a method's name as the recorded files spell it."""
    return method.value.replace("-", "_")


def _mapes(points: Sequence[ReplayedPlan]) -> dict[str, float]:
    """Mean absolute percentage errors over plans."""
    return {
        "time_mape_pct": float(np.mean([abs(point.time_error) for point in points]) * 100),
        "energy_mape_pct": float(np.mean([abs(point.energy_error) for point in points]) * 100),
    }


def _ratio_errors(
    groups: dict[tuple[RecordKey, Method], list[ReplayedPlan]],
) -> dict[str, float | None]:
    """Mean absolute percentage errors of nanobatching over sequential at the fastest plans."""
    time_errors, energy_errors = [], []
    for (key, method), members in groups.items():
        sequential = groups.get((key, Method.PERSEUS))
        if method is not Method.NANOBATCHING_PERSEUS or sequential is None:
            continue
        a = min(members, key=lambda point: point.recorded_time_s)
        b = min(sequential, key=lambda point: point.recorded_time_s)
        time_errors.append(abs((1 + a.time_error) / (1 + b.time_error) - 1))
        energy_errors.append(abs((1 + a.energy_error) / (1 + b.energy_error) - 1))
    if not time_errors:
        return {"time_err_pct": None, "energy_err_pct": None}
    return {
        "time_err_pct": float(np.mean(time_errors) * 100),
        "energy_err_pct": float(np.mean(energy_errors) * 100),
    }


def validate_sweep(
    sweep: Path | str,
    calibration: Calibration | None = None,
    *,
    gpu: str = REFERENCE_GPU,
    clock_mhz: int | None = None,
    shape: BlockShape | None = None,
) -> dict[str, object]:
    """Return how a recorded sweep compares, as `kareus validate --sweep --json` prints it.

    Args:
        sweep: CSV of the sweep.
        calibration: What to simulate with; None means the GPU's built-in one.
        gpu: The GPU it was recorded on, unless the calibration says.
        clock_mhz: The clock it was recorded at; None means unlocked, that is the top clock.
        shape: The attention part swept; None means the published one's.

    Returns:
        points, time_mape_pct, energy_mape_pct, spearman_time, spearman_energy.

    Raises:
        MeasurementError: If the file cannot be used; the message names the row.
        ConfigError: If the GPU does not run at the clock.
    """
    calibration = calibration or calibration_for(load_gpu(gpu))
    points = read_sweep(Path(sweep), calibration.gpu)
    predicted = predict_sweep(
        points,
        calibration.gpu,
        calibration.parameters,
        clock_mhz=clock_mhz,
        shape=shape or SHAPE,
    )
    times = np.array([point.time_s for point in points])
    energies = np.array([point.energy_j for point in points])
    return {
        "points": len(points),
        "time_mape_pct": _mape_pct(predicted.time_s, times),
        "energy_mape_pct": _mape_pct(predicted.energy_j, energies),
        "spearman_time": _rank_correlation(predicted.time_s, times),
        "spearman_energy": _rank_correlation(predicted.energy_j, energies),
    }


def _mape_pct(predicted: FloatArray, recorded: FloatArray) -> float:
    """Mean absolute percentage error."""
    return float(np.mean(np.abs(predicted / recorded - 1.0)) * 100)


def _rank_correlation(predicted: FloatArray, recorded: FloatArray) -> float | None:
    """Spearman's rank correlation; None where a side does not vary."""
    if len(recorded) < 2 or np.ptp(predicted) == 0 or np.ptp(recorded) == 0:
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(predicted, recorded).statistic)
