"""Use cases about data and the machine: import, validation, calibration, doctor."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kareus.device.clocks import ReleasedClock, release_clocks
from kareus.errors import DeviceError
from kareus.profiling.campaign import ProfileProgress, ProfileReport, profile
from kareus.profiling.machine import adapt_workload
from kareus.profiling.replay import read_recorded
from kareus.profiling.static_power import StaticPower, measure_static_power
from kareus.service import doctor, trust
from kareus.service.base import Base
from kareus.service.views import DatasetView, DoctorCheck, ImportRefusal, ImportReport, document_of
from kareus.study.documents import WORKLOAD
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

    def datasets(self) -> list[DatasetView]:
        """Return the imported measurements, newest first."""
        return [
            DatasetView(
                dataset=record.id,
                name=record.name,
                origin=record.origin,
                workload=WORKLOAD.validate_python(record.workload),
                rows=record.num_rows,
                created=record.created_at,
            )
            for record in self.store.datasets()
        ]

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

    def preflight(self, settings: WorkloadSettings) -> list[DoctorCheck]:
        """Return, line by line, whether this machine can measure a workload; sets no clock.

        Raises:
            ConfigError: The settings are no workload.
        """
        workload = build_workload(settings)
        # Without GPUs there is nothing to adapt to; the checks then say so.
        with contextlib.suppress(DeviceError):
            workload = adapt_workload(workload)
        return doctor.measuring_checks(workload, set_clocks=False)

    def release_clocks(self) -> list[ReleasedClock]:
        """Reset the clocks of all GPUs but those a living process holds.

        Raises:
            DeviceError: There is no NVIDIA driver.
        """
        return list(release_clocks())

    def profile(
        self,
        settings: WorkloadSettings,
        *,
        partitions: Sequence[str],
        device: str | None,
        budget: int | None,
        window_s: float,
        cooldown_s: float,
        out: Path,
        on_progress: Callable[[ProfileProgress], None] | None = None,
    ) -> ProfileReport:
        """Measure partitions of a workload on this machine and write them down under `out`.

        Raises:
            ConfigError: The settings or an option cannot be.
            DeviceError: The machine fails the preflight, or measuring failed.
        """
        return profile(
            build_workload(settings),
            partitions=partitions,
            device=device,
            budget=budget,
            window_s=window_s,
            cooldown_s=cooldown_s,
            out=out,
            on_progress=on_progress,
        )

    def measure_static_power(self, *, num_gpus: int, window_s: float) -> StaticPower:
        """Measure the power of GPUs blocked on communication.

        Raises:
            DeviceError: There are fewer than two GPUs, or their energy cannot be measured.
        """
        return measure_static_power(num_gpus=num_gpus, window_s=window_s)
