"""One GPU's table of parameters: values with unit and provenance, as a file and in memory.

The A100's table lies beside this module and was written by `kareus calibrate` from the published
data. Other GPUs are extrapolated from it and say so.
"""

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kareus.core.workload import Gpu
from kareus.errors import ConfigError
from kareus.simulate.parameters import SPECS, Parameters, check_value
from kareus.workload.gpus import load_gpu

FORMAT_VERSION = 1

_DATA_FOLDER = Path(__file__).parent / "data"
_REFERENCE_GPU = "A100-SXM4-40GB"


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterValue:
    """A calibrated value.

    Attributes:
        value: The value.
        unit: Its unit; `1` for a ratio.
        source: `fitted on DATA`, `prior (...)` or `extrapolated: ...`.
        uncertainty: Standard deviation after the fit, relative where the parameter is fitted on a
            logarithmic scale; None where it was not fitted.
    """

    value: float
    unit: str
    source: str
    uncertainty: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Assumed relative standard error of predictions, for bands on charts.

    Attributes:
        time: Of times.
        energy: Of energies.
        source: Where these figures come from.
    """

    time: float
    energy: float
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodError:
    """Mean absolute percentage errors of one method's plans.

    Attributes:
        method: As the recorded files spell it.
        time_mape_pct: Of iteration time.
        energy_mape_pct: Of pipeline energy.
    """

    method: str
    time_mape_pct: float
    energy_mape_pct: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A GPU with the parameters its simulation computes with.

    Attributes:
        version: Version of the file format.
        gpu: The GPU.
        table: Every parameter by name.
        data: What the values were fitted on.
        extrapolated: Whether this GPU was never measured: values were carried over from another.
        uncertainty: Assumed error of predictions.
        fit_errors: Errors on the data that was fitted, per method.
        held_out_errors: Leave-one-configuration-out errors, per method.
        warnings: What the fit could not determine.
    """

    version: int = FORMAT_VERSION
    gpu: Gpu
    table: dict[str, ParameterValue]
    data: str
    extrapolated: bool
    uncertainty: Uncertainty
    fit_errors: tuple[MethodError, ...] = ()
    held_out_errors: tuple[MethodError, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.version != FORMAT_VERSION:
            raise ConfigError(
                f"calibration has format version {self.version}, this program reads "
                f"{FORMAT_VERSION}: calibrate again"
            )
        missing = [name for name in SPECS if name not in self.table]
        if missing:
            raise ConfigError(f"calibration lacks parameter {missing[0]}: calibrate again")
        for name, entry in self.table.items():
            if not self.extrapolated:
                check_value(name, entry.value)
            elif name not in SPECS:
                raise ConfigError(f"unknown simulator parameter {name!r} in calibration")

    @cached_property
    def parameters(self) -> Parameters:
        """The values alone."""
        return Parameters(**{name: self.table[name].value for name in SPECS})

    @property
    def label(self) -> str:
        """What a page writes beside numbers of this calibration."""
        how = "extrapolated from" if self.extrapolated else "calibrated on"
        return f"{self.gpu.name}, {how} {self.data}"


_ADAPTER = TypeAdapter(Calibration)


def load_calibration(path: Path | str) -> Calibration:
    """Read a calibration file.

    Raises:
        ConfigError: If the file is missing or not a valid calibration; the message names the place.
    """
    path = Path(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"calibration {path}: cannot be read: {error.strerror}") from error
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(
            f"calibration {path}: {place}: {first['msg']}: write it with kareus calibrate"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"calibration {path}: {error}") from error


def save_calibration(calibration: Calibration, path: Path | str) -> None:
    """Write a calibration file (JSON, parameters by name)."""
    content = json.dumps(_ADAPTER.dump_python(calibration, mode="json"), indent=1)
    Path(path).write_text(content + "\n", encoding="utf-8")


@lru_cache(maxsize=32)
def calibration_for(gpu: Gpu) -> Calibration:
    """Return the built-in calibration of a GPU, extrapolated where it was never measured.

    Raises:
        ConfigError: If the built-in file is damaged.
    """
    built_in = _DATA_FOLDER / f"{gpu.name}.json"
    if built_in.exists():
        found = load_calibration(built_in)
        return found if found.gpu == gpu else dataclasses.replace(found, gpu=gpu)
    return extrapolate(load_calibration(_DATA_FOLDER / f"{_REFERENCE_GPU}.json"), gpu)


_EXTRAPOLATED_TIME_ERROR = 0.15
_EXTRAPOLATED_ENERGY_ERROR = 0.20
_SIBLING_TIME_ERROR = 0.05
_SIBLING_ENERGY_ERROR = 0.07


def extrapolate(calibration: Calibration, gpu: Gpu) -> Calibration:
    """Return a calibration for a GPU that was never measured.

    Times: efficiencies, exponents and overheads of the measured GPU, with the other one's vendor
    rates; a collective's rate per SM follows the top clock. Energies: work at full rate is assumed
    to take the same share of the power above static, so energy per FLOP scales with (limit -
    static) / peak FLOP/s, per byte with (limit - static) / bandwidth, per link byte likewise, and
    busy power with (limit - static). Nothing of this is measured: the assumed errors say so.
    """
    old = calibration.gpu
    budget = (gpu.power_limit_w - gpu.static_power_w) / (old.power_limit_w - old.static_power_w)
    factors = {
        "busy_power_w": (budget, "power above static"),
        "flop_energy_j": (
            budget * old.peak_flops / gpu.peak_flops,
            "power above static per FLOP/s",
        ),
        "byte_energy_j": (
            budget * old.memory_bandwidth_bytes_s / gpu.memory_bandwidth_bytes_s,
            "power above static per memory bandwidth",
        ),
        "link_energy_j": (
            budget * old.link_bandwidth_bytes_s / gpu.link_bandwidth_bytes_s,
            "power above static per link bandwidth",
        ),
    }
    table = {}
    for name, entry in calibration.table.items():
        factor, how = factors.get(name, (1.0, f"as on {old.name}"))
        scaled = how if factor == 1.0 else f"{old.name}'s x {factor:.4g} ({how})"
        table[name] = dataclasses.replace(
            entry, value=entry.value * factor, source=f"extrapolated: {scaled}", uncertainty=None
        )
    sibling = gpu.peak_flops == old.peak_flops and gpu.num_sms == old.num_sms
    return Calibration(
        gpu=gpu,
        table=table,
        data=f"{old.name}, vendor figures",
        extrapolated=True,
        uncertainty=Uncertainty(
            time=_SIBLING_TIME_ERROR if sibling else _EXTRAPOLATED_TIME_ERROR,
            energy=_SIBLING_ENERGY_ERROR if sibling else _EXTRAPOLATED_ENERGY_ERROR,
            source=(
                "assumed: same chip with other memory"
                if sibling
                else "assumed: spread of achieved over vendor rates between GPU generations"
            ),
        ),
        warnings=(f"{gpu.name} was never measured: all figures are extrapolated from {old.name}",),
    )


def reference_gpu() -> Gpu:
    """Return the GPU whose calibration is measured and shipped."""
    return load_gpu(_REFERENCE_GPU)
