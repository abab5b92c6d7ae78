"""Use cases about trust: calibrations to choose from, and recorded data to hold them against."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kareus.service import kept_files, trust
from kareus.service.base import Base
from kareus.service.kept_files import CalibrationView, Records, RecordsKind
from kareus.simulate.validate import ReplayedPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedPoint:
    """A recorded plan or configuration beside its prediction: a point of a parity plot.

    Attributes:
        label: Workload and plan, or launch range and SMs, in words.
        method: The method's name, or `sweep`.
        recorded_time_s: Recorded time.
        predicted_time_s: Predicted time.
        recorded_energy_j: Recorded energy.
        predicted_energy_j: Predicted energy.
    """

    label: str
    method: str
    recorded_time_s: float
    predicted_time_s: float
    recorded_energy_j: float
    predicted_energy_j: float


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A calibration held against recorded data.

    Attributes:
        records: What it was held against.
        points: Every plan or configuration.
        figures: The error table, as `kareus validate --json` prints it.
    """

    records: Records
    points: tuple[RecordedPoint, ...]
    figures: dict[str, Any]


class TrustUseCases(Base):
    """Kept calibrations and records, and how far they agree."""

    def calibrations(self) -> list[CalibrationView]:
        """Return the calibrations that were uploaded or written to the home folder, by name."""
        return kept_files.list_calibrations(self._calibration_folder)

    def built_in_calibration(self, gpu: str) -> CalibrationView:
        """Return the calibration a GPU comes with, extrapolated where it was never measured.

        Raises:
            ConfigError: There is no such GPU.
        """
        return kept_files.built_in_calibration(gpu)

    def add_calibration(self, file_name: str, content: bytes) -> CalibrationView:
        """Keep a calibration file; studies can choose it from then on.

        Raises:
            ConfigError: It is no calibration, or another one has its name.
        """
        return kept_files.keep_calibration(self._calibration_folder, file_name, content)

    def delete_calibration(self, name: str) -> None:
        """Delete a kept calibration; studies made with it keep their results.

        Raises:
            NotFoundError: There is none of that name.
        """
        kept_files.delete_calibration(self._calibration_folder, name)

    def records(self) -> list[Records]:
        """Return the recorded data kept for validation, newest first."""
        return kept_files.list_records(self._records_folder)

    def add_frontier_records(
        self,
        name: str,
        *,
        frontiers: tuple[str, bytes],
        frequencies: tuple[str, bytes],
        gpu: str,
    ) -> Records:
        """Keep recorded plans with their clocks: (file name, content) of either CSV.

        Raises:
            MeasurementError: A row cannot be used; the message names it. Nothing is kept.
            ConfigError: There is no such GPU.
        """
        # The order carries the meaning; a name given twice must not make one file of two.
        second = frequencies[0] if frequencies[0] != frontiers[0] else f"clocks of {frontiers[0]}"
        return kept_files.keep_records(
            self._records_folder,
            name,
            {frontiers[0]: frontiers[1], second: frequencies[1]},
            kind=RecordsKind.FRONTIERS,
            gpu=gpu,
        )

    def add_sweep_records(
        self, name: str, *, sweep: tuple[str, bytes], gpu: str, clock_mhz: int | None = None
    ) -> Records:
        """Keep a recorded sweep of a forward attention partition: (file name, content).

        Raises:
            MeasurementError: A row cannot be used; the message names it. Nothing is kept.
            ConfigError: There is no such GPU.
        """
        return kept_files.keep_records(
            self._records_folder,
            name,
            {sweep[0]: sweep[1]},
            kind=RecordsKind.SWEEP,
            gpu=gpu,
            clock_mhz=clock_mhz,
        )

    def delete_records(self, records: str) -> None:
        """Delete kept records.

        Raises:
            NotFoundError: There are none of that id.
        """
        kept_files.delete_records(self._records_folder, records)

    def validate_records(self, records: str, *, calibration: str | None = None) -> Validation:
        """Hold a calibration against kept records.

        Args:
            records: Their id.
            calibration: Path of a calibration file; None for the built-in one of their GPU.

        Raises:
            NotFoundError: There are no such records.
            MeasurementError: They cannot be used.
            ConfigError: The calibration is none, or for another GPU.
        """
        found = kept_files.find_records(self._records_folder, records)
        if found.kind is RecordsKind.SWEEP:
            path = kept_files.sweep_file(self._records_folder, found)
            points, figures = trust.sweep_points(path, found.gpu, found.clock_mhz, calibration)
            return Validation(
                records=found,
                points=tuple(
                    RecordedPoint(
                        label=label,
                        method="sweep",
                        recorded_time_s=recorded[0],
                        predicted_time_s=predicted[0],
                        recorded_energy_j=recorded[1],
                        predicted_energy_j=predicted[1],
                    )
                    for label, recorded, predicted in points
                ),
                figures=figures,
            )
        frontiers, frequencies = kept_files.frontier_files(self._records_folder, found)
        replayed, figures = trust.replay_points(frontiers, frequencies, found.gpu, calibration)
        return Validation(
            records=found, points=tuple(_point(plan) for plan in replayed), figures=figures
        )

    @property
    def _calibration_folder(self) -> Path:
        return self.home / "calibrations"

    @property
    def _records_folder(self) -> Path:
        return self.home / "records"


def _point(plan: ReplayedPlan) -> RecordedPoint:
    return RecordedPoint(
        label=f"{plan.key}, plan {plan.plan}",
        method=plan.method.value,
        recorded_time_s=plan.recorded_time_s,
        predicted_time_s=plan.predicted_time_s,
        recorded_energy_j=plan.recorded_energy_j,
        predicted_energy_j=plan.predicted_energy_j,
    )
