"""What tracking a run reports: plan and actual side by side, as values.

Deviations are actual / planned - 1.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from kareus.core.measurement import Measurement


class Cause(StrEnum):
    """The likely cause of a deviation."""

    THROTTLED = "throttled"
    CLOCK_NOT_REACHED = "clock not reached"
    CLOCK_LATE = "clock set late"
    STRAGGLING_STAGE = "straggling stage"
    PLAN = "plan does not hold here"


@dataclass(frozen=True, kw_only=True)
class StepDeviation:
    """One step against the plan. Energies are those of all GPUs of the job."""

    step: int
    loss: float
    time_s: float
    pipeline_s: float
    planned_time_s: float
    deviation: float
    energy_j: float | None
    planned_energy_j: float
    energy_deviation: float | None


@dataclass(frozen=True, kw_only=True)
class StageDeviation:
    """One stage against the plan: seconds it works per step, energy of one GPU of it per step."""

    stage: int
    busy_s: float
    planned_busy_s: float
    deviation: float
    energy_j: float | None
    planned_energy_j: float
    energy_deviation: float | None
    cause: Cause | None
    detail: str | None


@dataclass(frozen=True, kw_only=True)
class InstructionDeviation:
    """One instruction of a stage against the plan, over all steps and ranks of the stage.

    Energy is that of one GPU while it runs: mean power read during it times its time; None with too
    few readings. `achieved_clock_mhz` likewise.
    """

    stage: int
    position: int
    direction: str
    microbatch: int
    clock_mhz: int
    achieved_clock_mhz: float | None
    time_s: float
    planned_time_s: float
    deviation: float
    energy_j: float | None
    planned_energy_j: float
    energy_deviation: float | None
    cause: Cause | None
    detail: str | None


@dataclass(frozen=True, kw_only=True)
class DriftAlarm:
    """Whether the run has drifted from its plan.

    Attributes:
        raised: Whether; None where plan and run cannot be compared.
        threshold: Relative deviation beyond which it is raised.
        time_deviation: Median of the last steps' deviations in time.
        energy_deviation: In energy; None where it was not measured.
        since_step: First of the last unbroken row of steps beyond the threshold.
        reason: Why it was raised or cannot be; None otherwise.
    """

    raised: bool | None
    threshold: float
    time_deviation: float
    energy_deviation: float | None
    since_step: int | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class TrackReport:
    """A run against its plan.

    Attributes:
        plan: Number of the plan.
        study: Its study.
        device: `cpu` or `cuda`.
        ranks: Ranks whose logs were read.
        num_ranks: Ranks of the job.
        schedule_followed: As in `LaunchReport`.
        mismatches: Where not, in words.
        steps: Step by step.
        stages: Stage by stage.
        instructions: Instruction by instruction, stage by stage in order of execution.
        drift: The alarm.
        measurements: What the traced steps measured of the partitions, to plan again with; empty
            on a CPU, whose times are not those of the plan's GPU.
        notes: What else to know.
    """

    plan: int
    study: str
    device: str
    ranks: int
    num_ranks: int
    schedule_followed: bool | None
    mismatches: tuple[str, ...]
    steps: tuple[StepDeviation, ...]
    stages: tuple[StageDeviation, ...]
    instructions: tuple[InstructionDeviation, ...]
    drift: DriftAlarm
    measurements: tuple[Measurement, ...]
    notes: tuple[str, ...]

    def as_document(self) -> dict[str, Any]:
        """Return what `kareus track --json` prints."""
        return {
            "plan": self.plan,
            "study": self.study,
            "device": self.device,
            "ranks": self.ranks,
            "num_ranks": self.num_ranks,
            "schedule_followed": self.schedule_followed,
            "mismatches": list(self.mismatches),
            "steps": [asdict(each) for each in self.steps],
            "stages": [asdict(each) for each in self.stages],
            "instructions": [asdict(each) for each in self.instructions],
            "drift": asdict(self.drift),
            "measurements": len(self.measurements),
            "notes": list(self.notes),
        }
