"""Fitting a GPU's parameters to recorded plans and, where there is one, a partition sweep.

Bounded nonlinear least squares with physical priors. Residuals: log(predicted / recorded) of each
plan's time and energy over `PLAN_ERROR`, softened (pseudo-Huber) so that a few odd plans do not
bend the model; the same of the ratio nanobatching / sequential at each workload's fastest plans;
the imbalance of the stages at the recorded clocks (a planner slows each down to fill the cycle);
those of a sweep's points, weighted as `SWEEP_WEIGHT` plans in all; and (value - prior) / width of
each parameter. Deterministic.
"""

import dataclasses
import hashlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kareus.core.plan import Method
from kareus.core.workload import Gpu
from kareus.errors import MeasurementError
from kareus.simulate.calibration import (
    Calibration,
    MethodError,
    ParameterValue,
    Uncertainty,
)
from kareus.simulate.parameters import (
    SPECS,
    Parameters,
    decode,
    encode,
    prior_parameters,
)
from kareus.simulate.plan_replay import FrontierReplay
from kareus.simulate.records import RecordKey, SweepPoint, read_sweep
from kareus.simulate.sweep import predict_sweep
from kareus.simulate.validate import ReplayedPlan, error_table, load_replays, replayed_plans

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

PLAN_ERROR = 0.02
"""Error of a plan that counts as much as one prior width: plans err together, so above noise."""

RATIO_ERROR = 0.01
"""Likewise of the ratio nanobatching / sequential at the fastest plans."""

BALANCE_ERROR = 0.03
"""Imbalance of the stages in the steady state that counts as much as one prior width."""

SWEEP_WEIGHT = 30.0
"""A sweep counts as this many plans."""

_SOFT = 1.0  # residuals beyond this many errors count linearly
_UNIDENTIFIED = 0.95  # posterior over prior width above which the data said nothing
_STEP = 1e-5  # of a prior width, for derivatives
_AT_BOUND = 1e-3  # share of the range within which a value counts as at its bound


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationResult:
    """A fitted calibration with its report.

    Attributes:
        calibration: The table, ready to be saved.
        fit: Error table on the fitted plans (as `kareus validate --json`).
        held_out: Error table of plans predicted without their workload; None with one workload.
        sweep: Errors on the sweep (percent), `time_mape_pct` and `energy_mape_pct`; None without.
        warnings: Parameters at a bound or not identified by the data.
    """

    calibration: Calibration
    fit: dict[str, object]
    held_out: dict[str, object] | None
    sweep: dict[str, float] | None
    warnings: tuple[str, ...]


def calibrate(
    frontiers: Path | str,
    frequencies: Path | str,
    sweep: Path | str | None = None,
    *,
    gpu: Gpu,
    stage_layers: Sequence[int] | None = None,
    sweep_clock_mhz: int | None = None,
    max_evaluations: int = 60,
    progress: Callable[[str], None] | None = None,
) -> CalibrationResult:
    """Fit a GPU's parameters to recorded data.

    Args:
        frontiers: CSV of recorded plans (perseus and nanobatching_perseus rows are used).
        frequencies: CSV of their clocks.
        sweep: CSV of a partition sweep; None leaves what only a sweep determines at its prior.
        gpu: The GPU they were recorded on.
        stage_layers: Layers per stage; None means those of the published experiments.
        sweep_clock_mhz: Clock of the sweep; None means the top clock.
        max_evaluations: Steps of each fit at most; the default is enough to converge.
        progress: Called with a sentence as each fit begins.

    Returns:
        The calibration and how well it does, on fitted and on held-out workloads.

    Raises:
        MeasurementError: If a file cannot be used; the message names the row.
    """
    say = progress or (lambda text: logger.info("%s", text))
    replays = load_replays(frontiers, frequencies, gpu, stage_layers=stage_layers)
    points = read_sweep(Path(sweep), gpu) if sweep is not None else ()
    problem = _Problem(
        gpu=gpu,
        sweep=points,
        sweep_clock_mhz=sweep_clock_mhz,
        max_evaluations=max_evaluations,
    )
    keys = sorted({replay.key for replay in replays})
    say(
        f"fitting {len(problem.names)} parameters to {_count(replays)} plans of "
        f"{len(keys)} workloads"
    )
    fitted = problem.fit(replays, prior_parameters())
    data = _describe(frontiers, replays, sweep, points)
    warnings = problem.warnings(fitted)
    calibration = Calibration(
        gpu=dataclasses.replace(gpu, calibrated=True),
        table=_table(problem, fitted, data),
        data=data,
        extrapolated=False,
        uncertainty=Uncertainty(time=0.02, energy=0.02, source="provisional"),
        warnings=warnings,
    )
    fit = error_table(_points(replays, calibration))
    held_out = None
    if len(keys) > 1:
        predicted: list[ReplayedPlan] = []
        for key in keys:
            say(f"leaving out {key}")
            predicted += _predict_without(problem, replays, key, fitted.parameters, calibration)
        held_out = error_table(predicted)
    calibration = dataclasses.replace(
        calibration,
        fit_errors=_method_errors(fit),
        held_out_errors=_method_errors(held_out) if held_out else (),
        uncertainty=_uncertainty(fit, held_out),
    )
    return CalibrationResult(
        calibration=calibration,
        fit=fit,
        held_out=held_out,
        sweep=problem.sweep_errors(fitted.parameters) if points else None,
        warnings=warnings,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fit:
    """A solution: parameters, vector, Jacobian of all residuals."""

    parameters: Parameters
    vector: FloatArray
    jacobian: FloatArray


class _Problem:
    """The least-squares problem for a GPU: which parameters, which residuals."""

    def __init__(
        self,
        *,
        gpu: Gpu,
        sweep: Sequence[SweepPoint],
        sweep_clock_mhz: int | None,
        max_evaluations: int,
    ) -> None:
        self.gpu, self.sweep, self.sweep_clock_mhz = gpu, sweep, sweep_clock_mhz
        self.max_evaluations = max_evaluations
        self.names = tuple(
            name for name, spec in SPECS.items() if spec.fitted and (sweep or not spec.sweep_only)
        )
        specs = [SPECS[name] for name in self.names]
        self.prior = encode({name: SPECS[name].prior for name in self.names}, self.names)
        self.width = np.array([spec.width for spec in specs])
        self.lower = encode({name: SPECS[name].lower for name in self.names}, self.names)
        self.upper = encode({name: SPECS[name].upper for name in self.names}, self.names)
        self._sweep_time = np.array([point.time_s for point in sweep])
        self._sweep_energy = np.array([point.energy_j for point in sweep])

    def fit(self, replays: Sequence[FrontierReplay], start: Parameters) -> _Fit:
        """Solve for the given frontiers from a starting point."""
        base = prior_parameters()
        start_vector = encode(dataclasses.asdict(start), self.names)
        inside = 1e-9 * (self.upper - self.lower)

        def residuals(vector: FloatArray) -> FloatArray:
            one: FloatArray = self.residual_sets(vector[np.newaxis], replays, base)[0]
            return one

        def jacobian(vector: FloatArray) -> FloatArray:
            step = _STEP * self.width * np.where(vector + self.width > self.upper, -1.0, 1.0)
            moved = np.vstack([vector, vector + np.diag(step)])
            values = self.residual_sets(moved, replays, base)
            slopes: FloatArray = ((values[1:] - values[0]) / step[:, np.newaxis]).T
            return slopes

        from scipy.optimize import least_squares

        solution = least_squares(
            residuals,
            jac=jacobian,
            x0=np.clip(start_vector, self.lower + inside, self.upper - inside),
            bounds=(self.lower, self.upper),
            x_scale=self.width,
            max_nfev=self.max_evaluations,
        )
        vector = np.asarray(solution.x, dtype=np.float64)
        return _Fit(
            parameters=decode(vector, self.names, base),
            vector=vector,
            jacobian=np.asarray(solution.jac, dtype=np.float64),
        )

    def residual_sets(
        self, vectors: FloatArray, replays: Sequence[FrontierReplay], base: Parameters
    ) -> FloatArray:
        """Return all residuals in units of their errors, for vectors of shape (sets, parameters).

        Returns:
            Shape (sets, residuals).
        """
        sets = [decode(vector, self.names, base) for vector in vectors]
        parts = [(vectors - self.prior) / self.width]
        fastest: dict[tuple[RecordKey, Method], FloatArray] = {}
        for replay in replays:
            values = replay.predict_sets(sets)
            errors = np.stack(
                [
                    np.log(values.time_s / replay.recorded_time_s),
                    np.log(values.energy_j / replay.recorded_energy_j),
                ],
                axis=1,
            )
            imbalance = values.imbalance.reshape(len(sets), -1)
            parts.append(_soften(imbalance / BALANCE_ERROR))
            first = int(np.argmin(replay.recorded_time_s))
            fastest[replay.key, replay.method] = errors[:, :, first]
            parts.append(_soften(errors.reshape(len(sets), -1) / PLAN_ERROR))
        for (key, method), error in fastest.items():
            sequential = fastest.get((key, Method.PERSEUS))
            if method is Method.NANOBATCHING_PERSEUS and sequential is not None:
                parts.append(_soften((error - sequential) / RATIO_ERROR))
        if self.sweep:
            parts.append(np.stack([self._sweep_residuals(p) for p in sets]))
        return np.concatenate(parts, axis=1)

    def _sweep_residuals(self, p: Parameters) -> FloatArray:
        """Those of the sweep, times then energies."""
        predicted = predict_sweep(self.sweep, self.gpu, p, clock_mhz=self.sweep_clock_mhz)
        weight = math.sqrt(SWEEP_WEIGHT / len(self.sweep)) / PLAN_ERROR
        errors: FloatArray = np.concatenate(
            [
                np.log(predicted.time_s / self._sweep_time),
                np.log(predicted.energy_j / self._sweep_energy),
            ]
        )
        return weight * errors

    def sweep_errors(self, p: Parameters) -> dict[str, float]:
        """Return mean absolute percentage errors on the sweep."""
        predicted = predict_sweep(self.sweep, self.gpu, p, clock_mhz=self.sweep_clock_mhz)
        return {
            "time_mape_pct": float(np.mean(np.abs(predicted.time_s / self._sweep_time - 1)) * 100),
            "energy_mape_pct": float(
                np.mean(np.abs(predicted.energy_j / self._sweep_energy - 1)) * 100
            ),
        }

    def posterior_width(self, fit: _Fit) -> FloatArray:
        """Return the standard deviation of each parameter after the fit (Gauss-Newton)."""
        information = fit.jacobian.T @ fit.jacobian
        width: FloatArray = np.sqrt(np.diag(np.linalg.inv(information)))
        return width

    def warnings(self, fit: _Fit) -> tuple[str, ...]:
        """Return which parameters ended at a bound or were not determined by the data."""
        found = []
        posterior = self.posterior_width(fit)
        for i, name in enumerate(self.names):
            spec = SPECS[name]
            unit = "" if spec.unit == "1" else f" {spec.unit}"
            value = getattr(fit.parameters, name)
            span = self.upper[i] - self.lower[i]
            if fit.vector[i] - self.lower[i] < _AT_BOUND * span:
                found.append(f"{name} is at its lower bound {spec.lower:g}{unit}")
            elif self.upper[i] - fit.vector[i] < _AT_BOUND * span:
                found.append(f"{name} is at its upper bound {spec.upper:g}{unit}")
            if posterior[i] / self.width[i] > _UNIDENTIFIED:
                found.append(
                    f"{name} = {value:.4g}{unit} is not determined by the data: it rests on "
                    f"its prior ({spec.source})"
                )
        return tuple(found)


def _soften(residuals: FloatArray) -> FloatArray:
    """Pseudo-Huber: quadratic near zero, linear beyond `_SOFT`, as residuals to be squared."""
    softened: FloatArray = np.sign(residuals) * np.sqrt(
        2 * _SOFT**2 * (np.sqrt(1 + (residuals / _SOFT) ** 2) - 1)
    )
    return softened


def _predict_without(
    problem: _Problem,
    replays: Sequence[FrontierReplay],
    key: RecordKey,
    start: Parameters,
    calibration: Calibration,
) -> list[ReplayedPlan]:
    """Predict a workload's plans with parameters fitted to the others."""
    others = [replay for replay in replays if replay.key != key]
    fitted = problem.fit(others, start)
    held = dataclasses.replace(calibration, table=_table(problem, fitted, "the other workloads"))
    return _points([replay for replay in replays if replay.key == key], held)


def _points(replays: Sequence[FrontierReplay], calibration: Calibration) -> list[ReplayedPlan]:
    """All plans beside their prediction."""
    return [point for replay in replays for point in replayed_plans(replay, calibration)]


def _table(problem: _Problem, fit: _Fit, data: str) -> dict[str, ParameterValue]:
    """The parameter table of a solution."""
    posterior = dict(zip(problem.names, problem.posterior_width(fit), strict=True))
    return {
        name: ParameterValue(
            value=float(getattr(fit.parameters, name)),
            unit=spec.unit,
            source=f"fitted on {data}" if name in posterior else f"prior ({spec.source})",
            uncertainty=float(f"{posterior[name]:.3g}") if name in posterior else None,
        )
        for name, spec in SPECS.items()
    }


def _count(replays: Sequence[FrontierReplay]) -> int:
    """Number of plans."""
    return sum(len(replay.plans) for replay in replays)


def _describe(
    frontiers: Path | str,
    replays: Sequence[FrontierReplay],
    sweep: Path | str | None,
    points: Sequence[SweepPoint],
) -> str:
    """What was fitted, with a fingerprint of each file."""
    parts = [f"{Path(frontiers).name} ({_count(replays)} plans, sha256 {_fingerprint(frontiers)})"]
    if sweep is not None:
        parts.append(f"{Path(sweep).name} ({len(points)} points, sha256 {_fingerprint(sweep)})")
    return " and ".join(parts)


def _fingerprint(path: Path | str) -> str:
    """First digits of a file's SHA-256."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise MeasurementError(f"{path}: cannot be read: {error.strerror}") from error


def _method_errors(table: dict[str, object]) -> tuple[MethodError, ...]:
    """The per-method errors of an error table."""
    overall = table["overall"]
    assert isinstance(overall, dict), "error tables have an overall part"
    return tuple(MethodError(method=name, **errors) for name, errors in overall.items())


def _uncertainty(fit: dict[str, object], held_out: dict[str, object] | None) -> Uncertainty:
    """Assumed errors of predictions: the worst method's on held-out workloads."""
    errors = _method_errors(held_out or fit)
    # Mean absolute errors of a normal distribution are 0.8 standard deviations.
    return Uncertainty(
        time=max(error.time_mape_pct for error in errors) / 100 / 0.8,
        energy=max(error.energy_mape_pct for error in errors) / 100 / 0.8,
        source="errors on held-out workloads" if held_out else "errors on the fitted plans",
    )
