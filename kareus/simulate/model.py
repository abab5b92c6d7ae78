"""A partition's time and energy from the terms, for many configurations at once.

Legend: X = SM clock / top clock; shapes (n,) over configurations. A partition's computation is its
operators in order; the collective runs alone (sequential, trail, outside, `none`) or beside the
operators from its launch point on (nanobatch).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Execution, OperatorKind, Partition
from kareus.core.workload import Gpu
from kareus.errors import ConfigError
from kareus.simulate import terms
from kareus.simulate.parameters import Parameters, select
from kareus.workload.gpus import scale_sms
from kareus.workload.partitions import DEFAULT_SMS_ON_A100

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NOT_LAUNCHED = -1
"""Launch position of a collective that runs after the computation."""

_TENSOR_KINDS = (OperatorKind.LINEAR, OperatorKind.ATTENTION)
_LOWEST_X = 0.2  # how far a power-capped GPU can be slowed before the cap is given up
_CAP_STEPS = 5
_TYPICAL_POWER_EXPONENT = 2.5  # of power over clock; where the search for the cap starts


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What the model says, one entry per configuration.

    Attributes:
        time_s: Seconds per execution, shape (n,).
        energy_j: Joules per execution and GPU, shape (n,).
        achieved_clock_mhz: The clock held; below the one asked for where power is capped.
        capped: Where that is so.
    """

    time_s: FloatArray
    energy_j: FloatArray
    achieved_clock_mhz: FloatArray
    capped: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Configurations as arrays, and what only recorded sweeps vary.

    Attributes:
        x: Clock over top clock, shape (n,), positive.
        num_sms: SMs of the collective, shape (n,); at least 1, fewer than the GPU has.
        first: Position of the operator at which the collective is launched, shape (n,);
            `NOT_LAUNCHED` where it is not overlapped.
        last: Position of the last operator it may run beside, shape (n,); None means the last.
        sm_rate_ratio: Rate per SM relative to 1024 threads per block.
        link_bytes_s: Link bandwidth reached; None means the GPU's times its efficiency.
    """

    x: FloatArray
    num_sms: FloatArray
    first: IntArray
    last: IntArray | None = None
    sm_rate_ratio: FloatArray | float = 1.0
    link_bytes_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkTerms:
    """The parts of a prediction before power is put together, shapes (n,).

    Attributes:
        time_s: Seconds per execution.
        computing_s: Seconds in which computing kernels run, alone.
        exposed_s: Seconds in which the collective runs with nothing beside it.
        work_energy_j: Energy of FLOPs, memory traffic and links.
    """

    time_s: FloatArray
    computing_s: FloatArray
    exposed_s: FloatArray
    work_energy_j: FloatArray


def default_sms(gpu: Gpu) -> int:
    """Return the SMs a collective takes where nothing chooses them: 20 of the A100's 108."""
    return scale_sms(DEFAULT_SMS_ON_A100, gpu)


def launch_position(partition: Partition, launch_point: LaunchPoint | None) -> int:
    """Return the position of the operator at which a collective starts to run.

    Kernels of a stream are issued ahead, and a tensor-core kernel leaves SMs free in its last wave:
    in the published sweep, launching right after a GEMM or attention gives what launching at it
    gives. So a launch point directly behind such an operator counts as that operator.

    Raises:
        ConfigError: If the partition has no such slot.
    """
    if launch_point is None or launch_point is LaunchPoint.NONE:
        return NOT_LAUNCHED
    for position, operator in enumerate(partition.operators):
        if operator.slot == launch_point.value:
            if position > 0 and partition.operators[position - 1].kind in _TENSOR_KINDS:
                return position - 1
            return position
    offered = ", ".join(point.value for point in partition.launch_points) or "none"
    raise ConfigError(
        f"partition {partition.name} has no launch point {launch_point.value!r}: offered are "
        f"{offered}"
    )


def settings_of(
    partition: Partition, configurations: Sequence[Configuration], gpu: Gpu
) -> Settings:
    """Return configurations as arrays, checked against the GPU.

    Raises:
        ConfigError: If a clock or SM allocation is impossible on this GPU, or a launch point is
            not one of the partition's.
    """
    clocks = np.array([c.clock_mhz for c in configurations], dtype=np.float64)
    default = partition.default_sm_allocation or default_sms(gpu)
    sms = np.array(
        [default if c.sm_allocation is None else c.sm_allocation for c in configurations],
        dtype=np.float64,
    )
    top = gpu.clocks_mhz[-1]
    if clocks.size and not (clocks.min() > 0 and clocks.max() <= top):
        wrong = clocks.min() if clocks.min() <= 0 else clocks.max()
        raise ConfigError(f"clock {wrong:g} MHz is outside 1..{top} MHz, the range of {gpu.name}")
    if sms.size and not (sms.min() >= 1 and sms.max() < gpu.num_sms):
        wrong = sms.min() if sms.min() < 1 else sms.max()
        raise ConfigError(
            f"SM allocation {wrong:g} is outside 1..{gpu.num_sms - 1}, what {gpu.name} can give"
        )
    positions = {
        point: launch_position(partition, point)
        for point in {c.launch_point for c in configurations}
    }
    first = np.array([positions[c.launch_point] for c in configurations], dtype=np.int64)
    return Settings(x=clocks / top, num_sms=sms, first=first)


def work_terms(partition: Partition, settings: Settings, gpu: Gpu, p: Parameters) -> WorkTerms:
    """Return time and work energy of a partition.

    Args:
        partition: What is executed.
        settings: At which settings.
        gpu: On which GPU.
        p: The calibrated parameters.
    """
    x = settings.x
    halved = partition.execution in (Execution.NANOBATCH, Execution.LEAD)
    share = p.head_work if partition.execution is Execution.OUTSIDE else 1.0
    times = [
        terms.operator_time_s(
            operator, partition.direction, x, gpu, p, halved=halved, linear_work=share
        )
        for operator in partition.operators
    ]
    computing = sum(times, np.zeros_like(x))
    flops = num_bytes = 0.0
    for operator in partition.operators:
        num_bytes += terms.memory_bytes(operator, p)
        if operator.kind is OperatorKind.LINEAR:
            flops += operator.flops * share
        elif operator.kind is OperatorKind.ATTENTION:
            flops += operator.flops * p.attention_energy_ratio
    energy = flops * terms.flop_energy_j(x, p) + num_bytes * terms.byte_energy_j(x, p)
    collective = partition.collective
    time, exposed = computing, np.zeros_like(x)
    if collective is not None:
        energy = energy + terms.link_energy_j(collective, p)
        time, exposed = _with_collective(partition, times, computing, settings, gpu, p)
    if halved:
        energy = energy * (1.0 + p.nanobatch_energy_change)
    return WorkTerms(time_s=time, computing_s=computing, exposed_s=exposed, work_energy_j=energy)


def _with_collective(
    partition: Partition,
    times: Sequence[FloatArray],
    computing: FloatArray,
    settings: Settings,
    gpu: Gpu,
    p: Parameters,
) -> tuple[FloatArray, FloatArray]:
    """The time of computation and collective, overlapped where launched; the exposed part of it."""
    collective = partition.collective
    assert collective is not None, "called for partitions with a collective"
    launched = settings.first != NOT_LAUNCHED
    overlapping = partition.execution is Execution.NANOBATCH and bool(launched.any())

    def alone(*, overlapped: bool) -> FloatArray:
        return terms.collective_time_s(
            collective,
            settings.x,
            settings.num_sms,
            gpu,
            p,
            overlapped=overlapped,
            link_bytes_s=settings.link_bytes_s,
            sm_rate_ratio=settings.sm_rate_ratio,
        )

    exposed = alone(overlapped=False)
    if not overlapping or collective.message_bytes == 0:
        return computing + exposed, exposed
    remaining = collective_alone = alone(overlapped=True)
    sigma = terms.computation_slowdown(collective, collective_alone, settings.num_sms, gpu, p)
    elapsed = np.zeros_like(settings.x)
    for position, (operator, time) in enumerate(zip(partition.operators, times, strict=True)):
        xi = terms.collective_slowdown(operator.kind, p)
        beside, left = terms.overlap_s(time, remaining, sigma, xi)
        active = launched & (settings.first <= position)
        if settings.last is not None:
            active &= position <= settings.last
        elapsed = elapsed + np.where(active, beside, time)
        remaining = np.where(active, left, remaining)
    exposed = np.where(launched, remaining, exposed)
    sync = np.where(launched, p.overlap_sync_s, 0.0)
    return elapsed + exposed + sync, exposed


def energy_j(
    work: WorkTerms,
    settings: Settings,
    gpu: Gpu,
    p: Parameters,
    *,
    temperature_excess_k: float = 0.0,
) -> FloatArray:
    """Return the energy per execution.

    Idle power x time + busy power x computing + power of the collective's SMs x exposed + work.
    """
    x = settings.x
    return (
        terms.idle_power_w(x, gpu, p, temperature_excess_k) * work.time_s
        + terms.busy_power_w(x, p) * work.computing_s
        + p.exposed_sm_power_w * settings.num_sms * work.exposed_s
        + work.work_energy_j
    )


def predict(
    partition: Partition,
    configurations: Sequence[Configuration],
    gpu: Gpu,
    p: Parameters,
    *,
    temperature_excess_k: float = 0.0,
) -> Prediction:
    """Return time and energy of a partition at configurations, power limit respected.

    Where the average power would exceed the GPU's limit, its clock falls until it does not: time
    and energy are those of the highest clock whose power fits.

    Args:
        partition: What is executed.
        configurations: At which configurations.
        gpu: On which GPU.
        p: The calibrated parameters.
        temperature_excess_k: Kelvin above the temperature of the calibration.

    Raises:
        ConfigError: If a configuration is impossible for the partition or GPU.
    """
    settings = settings_of(partition, configurations, gpu)
    return predict_settings(partition, settings, gpu, p, temperature_excess_k=temperature_excess_k)


def predict_settings(
    partition: Partition,
    settings: Settings,
    gpu: Gpu,
    p: Parameters,
    *,
    temperature_excess_k: float = 0.0,
) -> Prediction:
    """Return what `predict` does, for settings already in arrays (without sweep-only fields)."""

    def at(x: FloatArray, where: IntArray | slice) -> tuple[FloatArray, FloatArray]:
        here = Settings(x=x, num_sms=settings.num_sms[where], first=settings.first[where])
        values = select(p, where)
        work = work_terms(partition, here, gpu, values)
        energy = energy_j(work, here, gpu, values, temperature_excess_k=temperature_excess_k)
        return work.time_s, energy

    x = settings.x.copy()
    time, energy = at(x, slice(None))
    too_much = np.flatnonzero(energy > gpu.power_limit_w * time)
    if too_much.size:
        held = _clock_within_limit(
            lambda clock: at(clock, too_much), x[too_much], gpu.power_limit_w
        )
        x[too_much] = held
        time[too_much], energy[too_much] = at(held, too_much)
    capped = np.zeros(len(x), dtype=np.bool_)
    capped[too_much] = True
    return Prediction(
        time_s=time,
        energy_j=energy,
        achieved_clock_mhz=x * gpu.clocks_mhz[-1],
        capped=capped,
    )


def _clock_within_limit(
    evaluate: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    x: FloatArray,
    limit_w: float,
) -> FloatArray:
    """The clock ratio at which average power is the limit, where it exceeds it at `x`.

    Secant steps on log power over log clock, which is nearly straight. A fixed number of them, so
    that the result is a smooth function of the parameters (a fit takes derivatives of it).
    """

    def excess(y: FloatArray) -> FloatArray:
        time, energy = evaluate(np.exp(y))
        return np.log(energy / (limit_w * time))

    y_before = np.log(x)
    f_before = excess(y_before)
    y = y_before - f_before / _TYPICAL_POWER_EXPONENT
    for _ in range(_CAP_STEPS):
        f = excess(y)
        rise, run = f - f_before, y - y_before
        moves = np.abs(rise) > 1e-12
        step = np.where(moves, f * run / np.where(moves, rise, 1.0), 0.0)
        y_before, f_before = y, f
        y = np.clip(y - step, np.log(_LOWEST_X), np.log(x))
    return np.exp(y)
