"""Use cases about data and the machine: import, validation, calibration, doctor."""

from pathlib import Path
from typing import Any

from kareus.profiling.replay import read_recorded
from kareus.service import doctor, trust
from kareus.service.base import Base
from kareus.service.views import DoctorCheck, ImportRefusal, ImportReport, document_of
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.partitions import build_partitions


class DataUseCases(Base):
    """Recorded data, and what this machine can do."""

    def import_measurements(self, path: Path, settings: WorkloadSettings) -> ImportReport:
        """Load recorded measurements of a workload as a dataset; all of its good rows or nothing.

        Raises:
            ConfigError: The settings are no workload.
            MeasurementError: No row is usable.
        """
        workload = build_workload(settings)
        recorded = read_recorded(path, build_partitions(workload), workload=workload)
        record = self.store.add_dataset(
            f"{workload.model.name}-{path.name}",
            origin=str(path),
            workload=document_of(workload),
            report=recorded.report(),
            measurements=recorded.measurements,
        )
        return ImportReport(
            dataset=record.id,
            taken=recorded.num_taken,
            repeated=recorded.num_repeated,
            refused=recorded.num_refused,
            refusals=tuple(
                ImportRefusal(file=one.file, line=one.line, reason=one.reason)
                for one in recorded.refusals
            ),
            notes=recorded.notes,
        )

    def validate_frontiers(
        self, frontiers: Path, frequencies: Path, *, calibration: str | None = None
    ) -> dict[str, Any]:
        """Hold the simulator against recorded plans."""
        return trust.validate_frontiers(frontiers, frequencies, calibration)

    def validate_sweep(
        self,
        sweep: Path,
        *,
        gpu: str,
        clock_mhz: int | None = None,
        settings: WorkloadSettings | None = None,
        calibration: str | None = None,
    ) -> dict[str, Any]:
        """Hold the simulator against a recorded sweep of a partition."""
        return trust.validate_sweep(sweep, gpu, clock_mhz, settings, calibration)

    def calibrate(
        self, frontiers: Path, frequencies: Path, *, sweep: Path | None, gpu: str, out: Path
    ) -> dict[str, Any]:
        """Fit the simulator to recorded measurements and write the calibration file."""
        return trust.calibrate(frontiers, frequencies, sweep, gpu, out)

    def doctor(self) -> list[DoctorCheck]:
        """Return what this machine can do."""
        return doctor.examine(self._database)
