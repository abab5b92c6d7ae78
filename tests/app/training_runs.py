"""Training runs for the Training page, made by hand: on a GPU and on a CPU."""

from dataclasses import replace

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.plan import Method
from kareus.service import (
    Cause,
    DriftAlarm,
    InstructionDeviation,
    StageDeviation,
    StepDeviation,
    TrackReport,
    TrainingRun,
)
from tests.app.fake import WORKLOAD

PLANNED_S, PLANNED_J = 4.4, 80_000.0


def step(number: int, time_s: float, energy_j: float | None) -> StepDeviation:
    """A step against the plan."""
    return StepDeviation(
        step=number,
        loss=6.0 - 0.1 * number,
        time_s=1.02 * time_s,
        pipeline_s=time_s,
        planned_time_s=PLANNED_S,
        deviation=time_s / PLANNED_S - 1,
        energy_j=energy_j,
        planned_energy_j=PLANNED_J,
        energy_deviation=None if energy_j is None else energy_j / PLANNED_J - 1,
    )


def stage(number: int, cause: Cause | None = None, detail: str | None = None) -> StageDeviation:
    """A stage; slow with a cause."""
    busy_s = 4.0 if cause is None else 4.8
    return StageDeviation(
        stage=number,
        busy_s=busy_s,
        planned_busy_s=4.0,
        deviation=busy_s / 4.0 - 1,
        energy_j=None,
        planned_energy_j=900.0,
        energy_deviation=None,
        cause=cause,
        detail=detail,
    )


def instruction(number: int, position: int, cause: Cause | None) -> InstructionDeviation:
    """An instruction of a stage."""
    time_s = 0.2 if cause is None else 0.24
    return InstructionDeviation(
        stage=number,
        position=position,
        direction="forward",
        microbatch=position,
        clock_mhz=1410,
        achieved_clock_mhz=None if cause is None else 1200.0,
        time_s=time_s,
        planned_time_s=0.2,
        deviation=time_s / 0.2 - 1,
        energy_j=None,
        planned_energy_j=50.0,
        energy_deviation=None,
        cause=cause,
        detail=None if cause is None else "stage 1 lags behind the others",
    )


MEASURED = Measurement(
    partition="fwd_attn",
    configuration=Configuration(clock_mhz=1410),
    time_s=0.004,
    energy_j=1.0,
    source=SourceKind.MEASURED,
)
STRAGGLING = TrainingRun(
    report=TrackReport(
        plan=14,
        study="s1",
        device="cuda",
        ranks=16,
        num_ranks=16,
        schedule_followed=True,
        mismatches=(),
        steps=(step(1, 8.0, 99_000.0), *(step(n, 5.28, 88_000.0) for n in range(2, 7))),
        stages=(stage(0), stage(1, Cause.STRAGGLING_STAGE, "stage 1 lags behind the others")),
        instructions=tuple(
            instruction(number, position, Cause.STRAGGLING_STAGE if number else None)
            for number in (0, 1)
            for position in range(2)
        ),
        drift=DriftAlarm(
            raised=True,
            threshold=0.1,
            time_deviation=0.2,
            energy_deviation=0.1,
            since_step=2,
            reason="the last 5 steps deviate from the plan: time +20.0%",
        ),
        measurements=(MEASURED,),
        notes=(),
    ),
    workload=WORKLOAD,
    method=Method.KAREUS,
    source=SourceKind.SIMULATOR,
    extrapolated=False,
    ended=True,
    failure=None,
    obstacle=None,
)
ON_A_CPU = replace(
    STRAGGLING,
    report=replace(
        STRAGGLING.report,
        device="cpu",
        steps=tuple(step(n, 0.27, None) for n in range(1, 7)),
        stages=(stage(0), stage(1)),
        instructions=tuple(instruction(0, position, None) for position in range(2)),
        drift=DriftAlarm(
            raised=None,
            threshold=0.1,
            time_deviation=-0.9,
            energy_deviation=None,
            since_step=None,
            reason="trained on a CPU, planned for a GPU",
        ),
        measurements=(),
        notes=("trained on a CPU: times are not those of A100-SXM4-40GB",),
    ),
    obstacle="the run trained on a CPU, whose times are not those of the plan's GPU",
)
