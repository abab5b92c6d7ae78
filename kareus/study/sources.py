"""Which measurement source a request means."""

from collections.abc import Mapping
from pathlib import Path

from kareus.core.measurement import MeasurementSource, SourceKind
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.errors import ConfigError
from kareus.profiling.replay import ReplaySource, read_recorded
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
        return SimulatorSource(
            workload, seed=request.seed, calibration=calibration_of(request, workload)
        )
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
    raise ConfigError(
        "source measured is not available on this machine: no NVIDIA GPU was found; "
        "use --source simulator"
    )
