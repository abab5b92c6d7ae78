"""Spaces to compare searches on: true values, and measurements of them with noise.

`synthetic`: 18 clocks x 10 SM allocations x 4 launch points; a random instance per seed of the
mechanism: a computation (part tensor-bound, part memory-bound) and a collective that slow each
other down while both run, from the launch on; SMs taken from the computation leave an uneven last
wave, so every allocation has an irregular part; energy = A(clock) + P(clock) x time + what the
collective's SMs draw. `sweep`: the recorded attention sweep at its one clock; `sweep-clocks`: the
same carried to 18 clocks. `simulator-NAME`: partitions of a workload in the simulator, truth = the
same without noise.
"""

import csv
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.partition import (
    Collective,
    CollectiveGroup,
    CollectiveKind,
    Direction,
    Execution,
    MeasuringBudget,
    Partition,
)

CLOCKS = tuple(range(900, 1411, 30))
SM_ALLOCATIONS = tuple(range(3, 31, 3))
LAUNCH_POINTS = (LaunchPoint.NORM_0, LaunchPoint.LINEAR_0, LaunchPoint.ROPE_0, LaunchPoint.ATTN_0)
STATIC_POWER_W = 85.0


@dataclass(frozen=True, kw_only=True)
class BenchSpace:
    """A partition with its true values.

    Attributes:
        name: Name in the table.
        partition: The partition.
        truth: (time in s, total energy in J) without noise, per configuration.
        measure: (configuration, repeat) -> measurement with noise.
        static_power_w: Static power in watts.
    """

    name: str
    partition: Partition
    truth: Mapping[Configuration, tuple[float, float]]
    measure: Callable[[Configuration, int], Measurement]
    static_power_w: float = STATIC_POWER_W


def make_partition(
    *,
    clocks_mhz: tuple[int, ...] = CLOCKS,
    sm_allocations: tuple[int, ...] = SM_ALLOCATIONS,
    launch_points: tuple[LaunchPoint, ...] = LAUNCH_POINTS,
    name: str = "fwd_attn",
    published_budget: MeasuringBudget | None = None,
) -> Partition:
    """Return a nanobatch partition; its operators do not matter to a search."""
    return Partition(
        name=name,
        direction=Direction.FORWARD,
        execution=Execution.NANOBATCH,
        operators=(),
        collective=Collective(
            kind=CollectiveKind.ALL_REDUCE,
            group=CollectiveGroup.TP,
            group_size=8,
            message_bytes=1e8,
        ),
        clocks_mhz=clocks_mhz,
        launch_points=launch_points,
        sm_allocations=sm_allocations,
        default_sm_allocation=20 if launch_points else None,
        published_budget=published_budget
        or MeasuringBudget(initial=96, num_batches=4, batch_size=32),
    )


def with_noise(
    name: str,
    partition: Partition,
    truth: Mapping[Configuration, tuple[float, float]],
    *,
    seed: int,
    time_noise: float = 0.005,
    energy_noise: float = 0.01,
    static_power_w: float = STATIC_POWER_W,
) -> BenchSpace:
    """Return a space measured with relative Gaussian noise, a function of what is asked."""

    def measure(configuration: Configuration, repeat: int = 0) -> Measurement:
        key = zlib.crc32(repr((configuration.sort_key(), repeat)).encode())
        rng = np.random.default_rng([seed, key])
        time_s, energy_j = truth[configuration]
        return Measurement(
            partition=partition.name,
            configuration=configuration,
            time_s=time_s * (1.0 + time_noise * rng.standard_normal()),
            energy_j=energy_j * (1.0 + energy_noise * rng.standard_normal()),
            source=SourceKind.SIMULATOR,
            repeat=repeat,
        )

    return BenchSpace(
        name=name,
        partition=partition,
        truth=truth,
        measure=measure,
        static_power_w=static_power_w,
    )


def synthetic(
    seed: int,
    *,
    partition: Partition | None = None,
    time_noise: float = 0.005,
    energy_noise: float = 0.01,
    noise_seed: int | None = None,
    scale: float = 1.0,
) -> BenchSpace:
    """Return a random instance of the mechanism.

    Args:
        seed: Fixes the instance.
        partition: Its space; the 720-point one by default.
        time_noise: Relative deviation of a measured time.
        energy_noise: Relative deviation of a measured total energy.
        noise_seed: Fixes the noise; the instance's seed by default.
        scale: Factor on the computation's size.
    """
    partition = partition or make_partition()
    rng = np.random.default_rng([9176, seed])
    slots = len(partition.launch_points)
    computation_s = scale * rng.uniform(1.5e-3, 4e-3)
    memory_share, mu = rng.uniform(0.1, 0.4), rng.uniform(0.4, 0.5)
    collective_s = computation_s * rng.uniform(0.3, 0.8)
    knee_sms, kappa = rng.uniform(8, 16), rng.uniform(0.5, 0.8)
    before_launch = np.sort(rng.uniform(0.0, 0.5, slots))
    slow_computation = rng.uniform(0.2, 0.6) * rng.uniform(0.8, 1.2, slots)
    slow_collective = rng.uniform(0.3, 0.7) * rng.uniform(0.8, 1.2, slots)
    sm_share = rng.uniform(0.05, 0.25)
    floor, alpha = rng.uniform(0.25, 0.45), rng.uniform(4.0, 5.5)
    tensor_j = computation_s * rng.uniform(120.0, 180.0)
    extra_power_w = rng.uniform(10.0, 40.0)
    collective_power_w = rng.uniform(10.0, 30.0)
    top = max(partition.clocks_mhz)
    waves = 1.0 + 0.005 * rng.standard_normal((slots, len(partition.sm_allocations)))

    def true_values(one: Configuration) -> tuple[float, float]:
        x = one.clock_mhz / top
        slot = partition.launch_points.index(one.launch_point or partition.launch_points[0])
        sms = float(one.sm_allocation or partition.sm_allocations[-1])
        work = computation_s * ((1 - memory_share) / x + memory_share * x**-mu)
        # Bandwidth grows linearly with the SMs, then bends (a smooth minimum).
        speed = ((sms / knee_sms) ** -4 + 1.0) ** -0.25
        transfer = collective_s / speed * x**-kappa
        slower = 1.0 + slow_computation[slot] * speed + sm_share * sms / 30.0
        slower *= waves[slot, partition.sm_allocations.index(int(sms))]
        transfer_beside = transfer * (1.0 + slow_collective[slot])
        left = (1.0 - before_launch[slot]) * work
        if left * slower < transfer_beside:
            time_s = before_launch[slot] * work + left * slower
            time_s += transfer * (1.0 - left * slower / transfer_beside)
        else:
            time_s = before_launch[slot] * work + transfer_beside
            time_s += left - transfer_beside / slower
        energy_j = tensor_j * (floor + (1.0 - floor) * x**alpha)
        energy_j += (STATIC_POWER_W + extra_power_w * x) * time_s
        energy_j += collective_power_w * transfer * (0.5 + 0.5 * sms / 30.0)
        return time_s, energy_j

    truth = {one: true_values(one) for one in partition.space()}
    return with_noise(
        "synthetic",
        partition,
        truth,
        seed=seed if noise_seed is None else noise_seed,
        time_noise=time_noise,
        energy_noise=energy_noise,
    )


def sweep(path: Path, seed: int, *, clocks_mhz: tuple[int, ...] = (1410,)) -> BenchSpace:
    """Return the recorded attention sweep: launch point x SMs at 1024 threads per block.

    Truth is the mean of the three recorded repeats, so their irregularities are part of it; noise
    is drawn with the recorded deviations (0.2 % time, 1.3 % energy). A launch operator stands for
    its window to the end of the partition.

    Args:
        path: `attention_sweep.csv`.
        seed: Seed of the noise.
        clocks_mhz: The recorded clock, or several: then the recorded values are carried to the
            other clocks, time by a power law whose exponent grows with the share of the
            computation in it, energy as A(clock) + P(clock) x time; every second SM allocation
            is kept, and the noise is that of `synthetic`.
    """
    first_operator = {
        0: LaunchPoint.NORM_0,
        2: LaunchPoint.LINEAR_0,
        3: LaunchPoint.ROPE_0,
        5: LaunchPoint.ATTN_0,
    }
    recorded: dict[tuple[LaunchPoint, int], tuple[float, float]] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            launch = first_operator.get(int(row["overlap_start"]))
            if launch is None or row["overlap_end"] != "6" or row["comm_block_size"] != "1024":
                continue
            recorded[launch, int(row["comm_sm_number"])] = (
                float(np.mean([float(row[f"{n}:time (s)"]) for n in range(3)])),
                float(np.mean([float(row[f"{n}:total energy (J)"]) / 2 for n in range(3)])),
            )
    locked = len(clocks_mhz) > 1
    allocations = sorted({sms for _, sms in recorded})
    top = max(clocks_mhz)
    fastest = min(time for time, _ in recorded.values())
    truth: dict[Configuration, tuple[float, float]] = {}
    for clock in clocks_mhz:
        x = clock / top
        for (launch, sms), (time_s, energy_j) in recorded.items():
            if locked and sms not in allocations[::2]:
                continue
            time_at_clock = time_s * x ** -(0.65 + 0.25 * fastest / time_s)
            own_j = energy_j - 1.15 * STATIC_POWER_W * time_s
            power_w = STATIC_POWER_W * (0.95 + 0.2 * x)
            configuration = Configuration(clock_mhz=clock, sm_allocation=sms, launch_point=launch)
            truth[configuration] = (
                time_at_clock,
                own_j * (0.35 + 0.65 * x**4.5) + power_w * time_at_clock,
            )
    partition = make_partition(
        clocks_mhz=clocks_mhz,
        sm_allocations=tuple(sorted({one.sm_allocation or 0 for one in truth})),
    )
    return with_noise(
        "sweep-clocks" if locked else "sweep",
        partition,
        truth,
        seed=seed,
        time_noise=0.005 if locked else 0.002,
        energy_noise=0.01 if locked else 0.013,
    )


def _settings(model: str, *, tp: int, cp: int) -> Any:
    """The reference workload: A100, two stages, 8 microbatches of 8 x 4096, full recompute."""
    from kareus.core.workload import Recompute
    from kareus.workload.build import WorkloadSettings

    return WorkloadSettings(
        model=model,
        gpu="A100-SXM4-40GB",
        tp=tp,
        cp=cp,
        pp=2,
        dp=1,
        microbatch_size=8,
        seq_len=4096,
        num_microbatches=8,
        stage_layers=None,
        recompute=Recompute.FULL,
    )


def simulated(name: str, seed: int, model: str = "llama3.2-3b") -> BenchSpace:
    """Return a partition of a model in the simulator (tp 8, or cp 2 x tp 4 where it has none).

    Raises:
        ImportError: The simulator is not part of this installation.
    """
    from kareus.core.measurement import FailedMeasurement
    from kareus.simulate.source import SimulatorSource
    from kareus.workload.build import build_workload
    from kareus.workload.partitions import build_partitions

    for tp, cp in ((8, 1), (4, 2)):
        workload = build_workload(_settings(model, tp=tp, cp=cp))
        partitions = build_partitions(workload)
        if name in partitions:
            break
    partition = partitions[name]
    exact, noisy = (SimulatorSource(workload, seed=seed, noise=noise) for noise in (False, True))
    truth: dict[Configuration, tuple[float, float]] = {}
    for one in exact.measure(partition, partition.space()):
        assert isinstance(one, Measurement)
        assert one.energy_j is not None
        truth[one.configuration] = (one.time_s, one.energy_j)

    def measure(configuration: Configuration, repeat: int = 0) -> Measurement:
        (result,) = noisy.measure(partition, [configuration], repeat=repeat)
        assert not isinstance(result, FailedMeasurement)
        return result

    return BenchSpace(
        name=f"simulator-{name}",
        partition=partition,
        truth=truth,
        measure=measure,
        static_power_w=workload.gpu.static_power_w,
    )
