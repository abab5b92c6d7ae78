"""What the simulator calibrates: every parameter with its unit, physical prior and bounds.

Legend: X = SM clock / top clock of the GPU (0 < X <= 1). A prior is what is known before any fit;
its width is one standard deviation, relative (of the logarithm) where `log` is true and absolute
otherwise. Efficiencies are shares of vendor figures, so they carry over to other GPUs.

Sources of priors: (sweep) the published sweep of one attention partition on two A100; (vendor) data
sheets; (kernels) published throughput of cuBLAS, FlashAttention-2 and NCCL on A100; (assumed) an
order of magnitude, deliberately wide.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameters:
    """The values the model computes with; `SPECS` says what each one is."""

    gemm_efficiency: float
    gemm_exposed_traffic: float
    attention_efficiency: float
    attention_backward_ratio: float
    memory_efficiency: float
    memory_clock_exponent: float
    rope_traffic: float
    activation_traffic: float
    loss_traffic: float
    head_work: float
    kernel_overhead_s: float
    backward_overhead_ratio: float
    overhead_clock_exponent: float
    nanobatch_gemm_loss: float
    tp_sm_rate_bytes_s: float
    cp_sm_rate_bytes_s: float
    link_efficiency: float
    collective_clock_exponent: float
    half_block_rate: float
    tp_latency_s: float
    tp_overlap_latency_s: float
    cp_latency_s: float
    cp_overlap_latency_s: float
    sm_contention: float
    memory_contention: float
    linear_interference: float
    memory_interference: float
    attention_interference: float
    overlap_sync_s: float
    idle_power_ratio: float
    idle_clock_exponent: float
    busy_power_w: float
    busy_clock_exponent: float
    flop_energy_j: float
    flop_energy_floor: float
    flop_clock_exponent: float
    attention_energy_ratio: float
    byte_energy_j: float
    byte_energy_floor: float
    link_energy_j: float
    nanobatch_energy_change: float
    exposed_sm_power_w: float
    leakage_per_k: float
    sweep_link_bytes_s: float
    sweep_norm_extra_s: float
    sweep_attention_extra_s: float
    sweep_tail_s: float
    sweep_dynamic_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterSpec:
    """What is known of a parameter before a fit.

    Attributes:
        unit: Its unit; `1` for a ratio.
        meaning: One sentence.
        prior: Most likely value.
        width: Standard deviation of the prior, of the logarithm where `log` is true.
        lower: Lower bound.
        upper: Upper bound.
        log: Whether it is fitted on a logarithmic scale.
        source: Where the prior comes from.
        fitted: Whether frontiers can say anything about it.
        sweep_only: Whether only a partition sweep can say anything about it.
    """

    unit: str
    meaning: str
    prior: float
    width: float
    lower: float
    upper: float
    log: bool
    source: str
    fitted: bool = True
    sweep_only: bool = False


def _spec(
    unit: str,
    meaning: str,
    prior: float,
    width: float,
    bounds: tuple[float, float],
    source: str,
    *,
    log: bool,
    fitted: bool = True,
    sweep_only: bool = False,
) -> ParameterSpec:
    return ParameterSpec(
        unit=unit,
        meaning=meaning,
        prior=prior,
        width=width,
        lower=bounds[0],
        upper=bounds[1],
        log=log,
        source=source,
        fitted=fitted,
        sweep_only=sweep_only,
    )


# A positive parameter, fitted on a logarithmic scale; one that may be zero, on its own scale.
_log = partial(_spec, log=True)
_linear = partial(_spec, log=False)


SPECS: Mapping[str, ParameterSpec] = MappingProxyType(
    {
        "gemm_efficiency": _log(
            "1", "Share of peak throughput a large GEMM reaches", 0.74, 0.08, (0.4, 1.0), "kernels"
        ),
        "gemm_exposed_traffic": _linear(
            "1",
            "Share of a GEMM's memory time not hidden behind it",
            0.3,
            0.2,
            (0.0, 1.5),
            "assumed",
        ),
        "attention_efficiency": _log(
            "1",
            "Share of peak throughput of causal flash attention, forward",
            0.65,
            0.12,
            (0.2, 0.9),
            "kernels",
        ),
        "attention_backward_ratio": _log(
            "1", "Backward over forward attention throughput", 0.8, 0.1, (0.4, 1.3), "kernels"
        ),
        "memory_efficiency": _log(
            "1",
            "Share of peak memory bandwidth of element-wise kernels",
            0.85,
            0.1,
            (0.4, 1.1),
            "kernels",
        ),
        "memory_clock_exponent": _linear(
            "1", "Memory-bound time goes with X to minus this", 0.45, 0.1, (0.1, 0.9), "kernels"
        ),
        "rope_traffic": _log(
            "1", "Real over counted traffic of the rope slot", 1.5, 0.3, (0.2, 5.0), "assumed"
        ),
        "activation_traffic": _log(
            "1", "Real over counted traffic of the activation", 1.0, 0.2, (0.3, 3.0), "assumed"
        ),
        "loss_traffic": _log(
            "1", "Real over counted traffic of the loss", 0.8, 0.4, (0.2, 4.0), "assumed"
        ),
        "head_work": _log(
            "1",
            "Real over counted FLOPs of the linears outside the blocks (the head)",
            0.8,
            0.3,
            (0.2, 1.5),
            "assumed",
        ),
        "kernel_overhead_s": _log(
            "s",
            "Time per operator that does not scale with tokens (launches, ramp-up, last wave)",
            60e-6,
            0.5,
            (1e-6, 3e-4),
            "assumed",
        ),
        "backward_overhead_ratio": _log(
            "1", "Backward over forward overhead per operator", 1.5, 0.2, (0.5, 4.0), "assumed"
        ),
        "overhead_clock_exponent": _linear(
            "1", "Overhead goes with X to minus this", 0.3, 0.3, (0.0, 1.0), "assumed"
        ),
        "nanobatch_gemm_loss": _linear(
            "1", "GEMM time added by halving the batch", 0.03, 0.03, (0.0, 0.2), "kernels"
        ),
        "tp_sm_rate_bytes_s": _log(
            "byte/s",
            "Message bytes per second one SM moves in an all-reduce at the top clock",
            6.8e9,
            0.15,
            (2e9, 3e10),
            "sweep",
        ),
        "cp_sm_rate_bytes_s": _log(
            "byte/s",
            "Bus bytes per second one SM moves in a gather or scatter at the top clock",
            5e9,
            0.4,
            (1e9, 3e10),
            "assumed",
        ),
        "link_efficiency": _log(
            "1", "Share of link bandwidth a collective can reach", 0.85, 0.1, (0.3, 1.0), "kernels"
        ),
        "collective_clock_exponent": _linear(
            "1",
            "Collective time goes with X to minus this",
            0.7,
            0.1,
            (0.2, 1.5),
            "sweep",
        ),
        "half_block_rate": _log(
            "1",
            "Rate per SM with 512 threads per block over that with 1024",
            0.55,
            0.1,
            (0.3, 1.0),
            "sweep",
            sweep_only=True,
        ),
        "tp_latency_s": _log(
            "s", "Fixed time of an exposed all-reduce", 1e-4, 0.7, (1e-6, 1e-3), "assumed"
        ),
        "tp_overlap_latency_s": _log(
            "s",
            "Fixed time of an all-reduce beside computation",
            30e-6,
            0.7,
            (1e-6, 4e-3),
            "kernels",
        ),
        "cp_latency_s": _log(
            "s", "Fixed time of an exposed gather or scatter", 1.5e-4, 0.7, (1e-6, 4e-3), "assumed"
        ),
        "cp_overlap_latency_s": _log(
            "s",
            "Fixed time of a gather or scatter beside computation",
            4e-4,
            0.7,
            (1e-6, 4e-3),
            "assumed",
        ),
        "sm_contention": _linear(
            "1",
            "Slowdown of computation per SM taken over SMs left",
            0.6,
            0.2,
            (0.0, 3.0),
            "sweep",
        ),
        "memory_contention": _linear(
            "1",
            "Slowdown of computation per share of memory bandwidth the collective's bus rate is",
            1.0,
            0.7,
            (0.0, 5.0),
            "assumed",
        ),
        "linear_interference": _linear(
            "1", "Slowdown of a collective beside a GEMM", 0.1, 0.1, (0.0, 3.0), "sweep"
        ),
        "memory_interference": _linear(
            "1",
            "Slowdown of a collective beside memory-bound kernels",
            2.5,
            0.5,
            (0.0, 6.0),
            "sweep",
        ),
        "attention_interference": _linear(
            "1", "Slowdown of a collective beside core attention", 1.1, 0.3, (0.0, 4.0), "sweep"
        ),
        "overlap_sync_s": _log(
            "s",
            "Time per overlapped partition to join the two streams",
            30e-6,
            0.7,
            (1e-7, 1e-3),
            "assumed",
        ),
        "idle_power_ratio": _log(
            "1",
            "Power for as long as the GPU is held, over its static power, at the top clock",
            1.0,
            0.04,
            (0.7, 1.6),
            "sweep",
        ),
        "idle_clock_exponent": _linear(
            "1", "That power goes with X to this", 1.0, 0.15, (0.0, 2.0), "sweep"
        ),
        "busy_power_w": _log(
            "W",
            "Power added while computing kernels run, at the top clock",
            25.0,
            0.7,
            (0.1, 150),
            "assumed",
        ),
        "busy_clock_exponent": _linear(
            "1", "Busy power goes with X to this", 0.5, 0.3, (0.0, 4.0), "assumed"
        ),
        "flop_energy_j": _log(
            "J",
            "Energy of a tensor-core FLOP at the top clock",
            1.2e-12,
            0.4,
            (1e-13, 5e-12),
            "vendor",
        ),
        "flop_energy_floor": _linear(
            "1",
            "Part of that energy that does not fall with the clock",
            0.4,
            0.15,
            (0.05, 0.95),
            "assumed",
        ),
        "flop_clock_exponent": _log(
            "1", "The rest goes with X to this", 6.0, 0.3, (1.5, 9.0), "assumed"
        ),
        "attention_energy_ratio": _log(
            "1", "Energy of an attention FLOP over a GEMM's", 1.1, 0.12, (0.3, 4.0), "assumed"
        ),
        "byte_energy_j": _log(
            "J", "Energy of a byte to or from GPU memory", 80e-12, 0.3, (5e-12, 4e-10), "vendor"
        ),
        "byte_energy_floor": _linear(
            "1",
            "Part of it that does not fall with the clock squared",
            0.5,
            0.2,
            (0.05, 1.0),
            "assumed",
        ),
        "link_energy_j": _log(
            "J", "Energy of a byte a collective sends", 80e-12, 0.4, (1e-12, 6e-10), "assumed"
        ),
        "nanobatch_energy_change": _linear(
            "1",
            "Relative change of dynamic energy by halving the batch",
            -0.02,
            0.03,
            (-0.1, 0.1),
            "assumed",
        ),
        "exposed_sm_power_w": _linear(
            "W",
            "Power per SM of a collective while nothing computes beside it",
            0.5,
            0.5,
            (0.0, 10.0),
            "assumed",
        ),
        "leakage_per_k": _linear(
            "1/K",
            "Relative growth of static power per kelvin above the reference temperature",
            0.004,
            0.002,
            (0.0, 0.02),
            "assumed",
            fitted=False,
        ),
        "sweep_link_bytes_s": _log(
            "byte/s",
            "Link bandwidth between the two GPUs of the sweep (four NVLinks)",
            1.0e11,
            0.1,
            (5e10, 3e11),
            "sweep",
            sweep_only=True,
        ),
        "sweep_norm_extra_s": _log(
            "s",
            "Memory time of the sweep's unfused kernels before its first linear",
            5e-4,
            0.5,
            (1e-5, 1e-3),
            "assumed",
            sweep_only=True,
        ),
        "sweep_attention_extra_s": _log(
            "s",
            "Time its attention (heads of 64) needs beyond the model's",
            2e-4,
            0.7,
            (1e-5, 1e-3),
            "assumed",
            sweep_only=True,
        ),
        "sweep_tail_s": _log(
            "s",
            "Time its last slot needs beyond the model's linear",
            5e-4,
            0.5,
            (1e-5, 1e-3),
            "assumed",
            sweep_only=True,
        ),
        "sweep_dynamic_ratio": _log(
            "1",
            "Dynamic energy of its kernels over the model's",
            1.0,
            0.1,
            (0.5, 2.0),
            "assumed",
            sweep_only=True,
        ),
    }
)

assert tuple(SPECS) == tuple(field.name for field in dataclasses.fields(Parameters))


def prior_parameters() -> Parameters:
    """Return the parameters at their priors."""
    return Parameters(**{name: spec.prior for name, spec in SPECS.items()})


def encode(values: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
    """Return values on the scale they are fitted on (logarithms where the spec says so)."""
    return np.array(
        [math.log(values[name]) if SPECS[name].log else values[name] for name in names],
        dtype=np.float64,
    )


def decode(vector: NDArray[np.float64], names: Sequence[str], base: Parameters) -> Parameters:
    """Return the base with the named parameters replaced by a fitted vector."""
    changes = {
        name: math.exp(value) if SPECS[name].log else float(value)
        for name, value in zip(names, vector, strict=True)
    }
    return dataclasses.replace(base, **changes)


def stack(sets: Sequence[Parameters], repeats: int) -> Parameters:
    """Return parameter sets as one, whose fields are arrays, each value repeated.

    The terms are elementwise, so they evaluate many sets at once when every field has the length of
    the clocks: set after set, `repeats` clocks each. Only fits need this.
    """
    columns: dict[str, Any] = {
        name: np.repeat([getattr(p, name) for p in sets], repeats) for name in SPECS
    }
    return Parameters(**columns)


def select(p: Parameters, where: Any) -> Parameters:
    """Return stacked parameters at some positions; unstacked ones as they are."""
    if np.ndim(p.gemm_efficiency) == 0:
        return p
    columns: dict[str, Any] = {name: getattr(p, name)[where] for name in SPECS}
    return Parameters(**columns)


def check_value(name: str, value: float) -> None:
    """Refuse a value outside its bounds.

    Raises:
        ConfigError: If the parameter is unknown, the value not finite or out of bounds.
    """
    spec = SPECS.get(name)
    if spec is None:
        raise ConfigError(f"unknown simulator parameter {name!r}: known are {', '.join(SPECS)}")
    slack = 1e-9 * max(abs(spec.lower), abs(spec.upper))
    if not math.isfinite(value) or not spec.lower - slack <= value <= spec.upper + slack:
        raise ConfigError(
            f"simulator parameter {name} = {value!r} {spec.unit} is outside "
            f"{spec.lower:g}..{spec.upper:g}: recalibrate or correct the file"
        )
