"""Profiles a workload's partitions by themselves: what `kareus profile` does.

Partitions are independent, so on a machine with more GPUs than one group needs they run side by
side on disjoint groups (8 GPUs: tp 8 one at a time, tp 4 two, cp 2 four). Every result is written
as it comes, in the layout that `kareus import` reads.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.device.energy import EnergySource
from kareus.device.nvml import Device, visible_devices
from kareus.device.preflight import require
from kareus.errors import ConfigError
from kareus.profiling.machine import adapt_workload
from kareus.profiling.recorder import Recorder
from kareus.profiling.source import MeasuredSource, default_device, group_devices, parse_device
from kareus.profiling.trial import DeviceKind, TrialSettings
from kareus.search.design import initial_design
from kareus.workload.names import find, suggestion
from kareus.workload.partitions import build_partitions

DEFAULT_BUDGET = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileProgress:
    """Where a profile stands.

    Attributes:
        partition: The unit of the latest result.
        done: Results so far, failures included.
        total: Results in all.
        latest: The latest result.
    """

    partition: str
    done: int
    total: int
    latest: Measurement | FailedMeasurement


@dataclass(kw_only=True, slots=True)
class PartitionReport:
    """What came of one unit.

    Attributes:
        measurements: How many were made.
        failed: Configurations that could not be measured.
        throttled: Measurements whose clock was held down throughout.
        sources: How often energy came from where.
    """

    measurements: int = 0
    failed: int = 0
    throttled: int = 0
    sources: Counter[str] = field(default_factory=Counter)

    @property
    def energy_source(self) -> str:
        """Where its energy came from; several are joined by `+`."""
        return "+".join(sorted(self.sources)) or EnergySource.NOT_MEASURED.value


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileReport:
    """What came of a profile.

    Attributes:
        folder: Where the workload's measurements lie.
        device: What was measured on.
        partitions: What came of each unit.
        num_groups: Groups of ranks that measured side by side.
    """

    folder: Path
    device: DeviceKind
    partitions: Mapping[str, PartitionReport]
    num_groups: int

    def as_document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "partitions": {
                name: {
                    "measurements": report.measurements,
                    "energy_source": report.energy_source,
                    "failed": report.failed,
                    "throttled": report.throttled,
                }
                for name, report in self.partitions.items()
            },
            "folder": str(self.folder),
            "device": self.device.value,
            "num_groups": self.num_groups,
        }


def profile(
    workload: Workload,
    *,
    partitions: Sequence[str] = (),
    device: DeviceKind | str | None = None,
    budget: int | None = None,
    window_s: float = 5.0,
    cooldown_s: float = 5.0,
    out: Path,
    on_progress: Callable[[ProfileProgress], None] | None = None,
    check: Callable[[], None] | None = None,
    seed: int = 0,
) -> ProfileReport:
    """Measure some configurations of a workload's partitions and write them down.

    Args:
        workload: The workload.
        partitions: Names of the units; empty for all, work outside partitions included.
        device: What to measure on; None for `KAREUS_DEVICE`, else CUDA.
        budget: Configurations per unit, spread over its space; all of a smaller space. None for 24.
        window_s: The measuring window, seconds.
        cooldown_s: Rest before each measurement, seconds.
        out: Folder below which the recorded layout is made; existing files are appended to.
        on_progress: Told after every result.
        check: Called after every result; raises where the profile should stop.
        seed: Of weights, inputs, and ties in the choice of configurations.

    Raises:
        ConfigError: A name, the budget or a duration cannot be.
        DeviceError: The machine fails the preflight, or a group of ranks failed; what was measured
            before is written.
    """
    kind = default_device() if device is None else parse_device(device)
    budget = DEFAULT_BUDGET if budget is None else budget
    if budget < 1:
        raise ConfigError(f"budget {budget}: measure at least 1 configuration per partition")
    settings = replace(TrialSettings.from_environment(), window_s=window_s, cooldown_s=cooldown_s)
    num_ranks = workload.parallelism.tp * workload.parallelism.cp
    names = _choose_names(workload, partitions)
    groups: Sequence[tuple[Device, ...] | None] = [None]
    if kind.uses_gpus:
        visible = visible_devices()
        workload = adapt_workload(workload, visible)
        group_devices(num_ranks, visible)
        groups = [*split_devices(visible, num_ranks)][: len(names)]
        source = MeasuredSource(workload, device=kind, settings=settings)
        require(source.preflight(num_groups=len(groups)))
    units = build_partitions(workload)
    campaign = _Campaign(
        workload,
        kind=kind,
        settings=settings,
        recorder=Recorder(out, workload),
        plan=[
            (units[name], choose_configurations(units[name], budget, seed=seed)) for name in names
        ],
        on_progress=on_progress,
        check=check,
        seed=seed,
    )
    campaign.run(groups)
    return ProfileReport(
        folder=campaign.recorder.folder,
        device=kind,
        partitions=campaign.reports,
        num_groups=len(groups),
    )


def choose_configurations(
    partition: Partition, budget: int, *, seed: int = 0
) -> tuple[Configuration, ...]:
    """Return so many configurations of a unit, spread over its space.

    Beyond the space come its baselines' configurations; where only the clock varies, clocks are
    spread evenly, the top one first.
    """
    space = partition.space()
    if partition.searched:
        design = initial_design(partition, space, budget, rng=np.random.default_rng(seed))
        rest = [one for one in partition.baseline_configurations() if one not in set(design)]
        return (*design, *rest[: budget - len(design)])
    number = min(budget, len(space))
    places = np.linspace(len(space) - 1, 0, number).round().astype(int)
    return tuple(space[place] for place in dict.fromkeys(places.tolist()))


def split_devices(devices: Sequence[Device], num_ranks: int) -> tuple[tuple[Device, ...], ...]:
    """Return as many disjoint groups of that many GPUs as there are."""
    return tuple(
        tuple(devices[first : first + num_ranks])
        for first in range(0, len(devices) - num_ranks + 1, num_ranks)
    )


def _choose_names(workload: Workload, names: Sequence[str]) -> tuple[str, ...]:
    """The full names of the units given, in the order of the workload; all if none is."""
    known = build_partitions(workload)
    wanted = set()
    for name in names:
        found = find(name, known)
        if found is None:
            raise ConfigError(f"this workload has no partition {name!r}: {suggestion(name, known)}")
        wanted.add(found)
    return tuple(name for name in known if not wanted or name in wanted)


class _Campaign:
    """Groups of ranks taking partitions off one list until it is empty or one of them fails."""

    def __init__(
        self,
        workload: Workload,
        *,
        kind: DeviceKind,
        settings: TrialSettings,
        recorder: Recorder,
        plan: Sequence[tuple[Partition, tuple[Configuration, ...]]],
        on_progress: Callable[[ProfileProgress], None] | None,
        check: Callable[[], None] | None,
        seed: int,
    ) -> None:
        self._workload = workload
        self._kind = kind
        self._settings = settings
        self.recorder = recorder
        self.reports = {partition.name: PartitionReport() for partition, _ in plan}
        self._total = sum(len(configurations) for _, configurations in plan)
        self._done = 0
        self._on_progress = on_progress
        self._check = check
        self._seed = seed
        self._waiting: queue.SimpleQueue[tuple[Partition, tuple[Configuration, ...]]] = (
            queue.SimpleQueue()
        )
        for each in plan:
            self._waiting.put(each)
        self._results: queue.SimpleQueue[Measurement | FailedMeasurement | BaseException | None] = (
            queue.SimpleQueue()
        )
        self._stop = threading.Event()
        self._sources: list[MeasuredSource] = []

    def run(self, groups: Sequence[tuple[Device, ...] | None]) -> None:
        """Measure everything; results are written by this thread.

        Raises:
            DeviceError: A group failed; the others were stopped.
        """
        threads = [
            threading.Thread(target=self._measure, args=(devices,), name=f"ranks-{number}")
            for number, devices in enumerate(groups)
        ]
        for thread in threads:
            thread.start()
        failure: BaseException | None = None
        try:
            running = len(threads)
            while running:
                result = self._results.get()
                if result is None:
                    running -= 1
                elif isinstance(result, BaseException):
                    failure = failure or result
                    self._abort()
                else:
                    self._take(result)
        except BaseException:
            self._abort()
            raise
        finally:
            for thread in threads:
                thread.join()
        if failure is not None:
            raise failure

    def _abort(self) -> None:
        """Stop all groups; what they are measuring is lost, what they measured is written."""
        self._stop.set()
        for source in self._sources:
            source.abort()

    def _take(self, result: Measurement | FailedMeasurement) -> None:
        self.recorder.write(result)
        report = self.reports[result.partition]
        if isinstance(result, FailedMeasurement):
            report.failed += 1
        else:
            report.measurements += 1
            report.throttled += bool(result.conditions.get("throttled"))
            report.sources[str(result.conditions["energy_source"])] += 1
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(
                ProfileProgress(
                    partition=result.partition, done=self._done, total=self._total, latest=result
                )
            )
        if self._check is not None:
            self._check()

    def _measure(self, devices: tuple[Device, ...] | None) -> None:
        """One group's thread: partition after partition."""
        try:
            with MeasuredSource(
                self._workload,
                device=self._kind,
                settings=self._settings,
                devices=devices,
                check=False,
                seed=self._seed,
            ) as source:
                self._sources.append(source)
                while not self._stop.is_set():
                    try:
                        partition, configurations = self._waiting.get_nowait()
                    except queue.Empty:
                        break
                    for result in source.measure(partition, configurations):
                        self._results.put(result)
                        if self._stop.is_set():
                            break
        except BaseException as error:
            self._results.put(error)
        finally:
            self._results.put(None)
