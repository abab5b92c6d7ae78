"""The stand-in's calibrations and records."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kareus.errors import ConfigError, MeasurementError
from kareus.service import CalibrationView, RecordedPoint, Records, RecordsKind, Validation

_CREATED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def calibration(name: str, **changes: Any) -> CalibrationView:
    """A calibration of the A100."""
    values: dict[str, Any] = {
        "name": name,
        "path": f"calibrations/{name}.json",
        "gpu": "A100-SXM4-40GB",
        "data": "mine.csv (12 plans)",
        "extrapolated": False,
        "time_uncertainty": 0.017,
        "energy_uncertainty": 0.023,
        "uncertainty_source": "errors on held-out workloads",
        "fit": (),
        "held_out": (),
        "warnings": (),
    }
    return CalibrationView(**(values | changes))


@dataclass
class FakeTrust:
    """Holds calibrations and records in memory."""

    kept_calibrations: list[CalibrationView] = field(default_factory=list)
    kept_records: list[Records] = field(default_factory=list)

    def calibrations(self) -> list[CalibrationView]:
        return self.kept_calibrations

    def built_in_calibration(self, gpu: str) -> CalibrationView:
        return calibration("built-in", gpu=gpu, path=None, extrapolated=not gpu.startswith("A100"))

    def add_calibration(self, file_name: str, content: bytes) -> CalibrationView:
        if not content.startswith(b"{"):
            raise ConfigError(f"calibration {file_name}: the file: Invalid JSON")
        self.kept_calibrations.append(calibration(Path(file_name).stem))
        return self.kept_calibrations[-1]

    def records(self) -> list[Records]:
        return self.kept_records

    def add_frontier_records(
        self,
        name: str,
        *,
        frontiers: tuple[str, bytes],
        frequencies: tuple[str, bytes],
        gpu: str,
    ) -> Records:
        if b"nan" in frontiers[1]:
            raise MeasurementError(f"{frontiers[0]}, row 3: iteration_time_s is nan: not positive")
        return self._keep(name, RecordsKind.FRONTIERS, gpu)

    def add_sweep_records(
        self, name: str, *, sweep: tuple[str, bytes], gpu: str, clock_mhz: int | None = None
    ) -> Records:
        return self._keep(name, RecordsKind.SWEEP, gpu)

    def delete_records(self, records: str) -> None:
        self.kept_records = [one for one in self.kept_records if one.id != records]

    def validate_records(self, records: str, *, calibration: str | None = None) -> Validation:
        found = next(one for one in self.kept_records if one.id == records)
        errors = {"time_mape_pct": 1.0, "energy_mape_pct": 2.0}
        if found.kind is RecordsKind.SWEEP:
            figures: dict[str, Any] = {
                **errors,
                "points": 4,
                "spearman_time": 0.97,
                "spearman_energy": None,
            }
        else:
            workload = {"model": "llama3.2-3b", "cp": 1, "tp": 8}
            batch = {"microbatch_size": 8, "seq_len": 4096, "method": "perseus", "plans": 4}
            figures = {
                "rows": [{**workload, **batch, **errors}],
                "overall": {"perseus": errors},
                "ratio": {"time_err_pct": None, "energy_err_pct": None},
            }
        return Validation(
            records=found,
            points=tuple(
                RecordedPoint(
                    label=f"plan {number}",
                    method="sweep" if found.kind is RecordsKind.SWEEP else "perseus",
                    recorded_time_s=4.0 + number,
                    predicted_time_s=(4.0 + number) * 1.01,
                    recorded_energy_j=5000.0 - 100 * number,
                    predicted_energy_j=(5000.0 - 100 * number) * 0.98,
                )
                for number in range(4)
            ),
            figures=figures,
        )

    def _keep(self, name: str, kind: RecordsKind, gpu: str) -> Records:
        records = Records(
            id=f"r-{name}", name=name, kind=kind, gpu=gpu, clock_mhz=None, created=_CREATED
        )
        self.kept_records.insert(0, records)
        return records
