"""Which measurement source a request means."""

import contextlib
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

from kareus.core.measurement import MeasurementSource, SourceKind
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.device.nvml import visible_devices
from kareus.errors import ConfigError, DeviceError
from kareus.profiling.replay import ReplaySource, read_recorded
from kareus.profiling.source import MeasuredSource, default_device
from kareus.simulate.calibration import Calibration, calibration_for, load_calibration
from kareus.simulate.source import SimulatorSource
from kareus.store import Store
from kareus.study.request import StudyRequest


def calibration_of(request: StudyRequest, workload: Workload) -> Calibration:
    """Return the simulator's parameters for a request: its file, or the GPU's own."""
    if request.calibration is not None:
        return load_calibration(Path(request.calibration))
    return calibration_for(workload.gpu)


def simulator_extrapolates(request: StudyRequest, workload: Workload) -> bool:
    """Return whether a request's numbers come from a simulator not calibrated on its GPU."""
    return request.source is SourceKind.SIMULATOR and calibration_of(request, workload).extrapolated


def make_simulator(request: StudyRequest, workload: Workload) -> SimulatorSource:
    """Return the simulator of a request.

    Raises:
        ConfigError: Its calibration cannot be used or is for another GPU, or its temperature is
            impossible.
    """
    return SimulatorSource(
        workload,
        seed=request.seed,
        calibration=calibration_of(request, workload),
        temperature_c=request.temperature_c,
    )


def gpu_resources(request: StudyRequest, workload: Workload) -> tuple[str, ...]:
    """Return the names of the GPUs a request measures on, for leases; none if it measures on none.

    Raises:
        DeviceError: It measures on GPUs, and they are not there.
    """
    if request.source is not SourceKind.MEASURED or not default_device().uses_gpus:
        return ()
    needed = workload.parallelism.tp * workload.parallelism.cp
    devices = visible_devices()
    if len(devices) < needed:
        raise DeviceError(
            f"measuring needs tp x cp = {needed} GPUs, {len(devices)} are visible: use fewer "
            "ranks, or show more GPUs in CUDA_VISIBLE_DEVICES"
        )
    return tuple(f"gpu:{platform.node()}:{device.uuid}" for device in devices[:needed])


@contextlib.contextmanager
def open_source(
    request: StudyRequest, workload: Workload, partitions: Mapping[str, Partition], store: Store
) -> Iterator[MeasurementSource]:
    """Give the source of a request; what it holds (ranks, clocks) is released at the end.

    Raises:
        As `make_source`.
    """
    with contextlib.ExitStack() as stack:
        source = make_source(request, workload, partitions, store)
        if isinstance(source, contextlib.AbstractContextManager):
            stack.enter_context(source)
        yield source


def make_source(
    request: StudyRequest, workload: Workload, partitions: Mapping[str, Partition], store: Store
) -> MeasurementSource:
    """Return the source of a request.

    Raises:
        ConfigError: The request lacks what its source needs.
        MeasurementError: The recorded measurements have no usable row.
        NotFoundError: There is no such dataset or path.
    """
    if request.source is SourceKind.SIMULATOR:
        return make_simulator(request, workload)
    if request.source is SourceKind.REPLAY:
        if request.measurements is None:
            raise ConfigError(
                "source replay needs recorded measurements: give --measurements with a dataset id "
                "or a path"
            )
        path = Path(request.measurements)
        if path.exists():
            return ReplaySource(read_recorded(path, partitions, workload=workload).measurements)
        return ReplaySource(store.dataset_measurements(request.measurements))
    return MeasuredSource(workload, seed=request.seed)
