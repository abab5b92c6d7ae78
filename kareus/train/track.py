"""Planned against actual: what a run's logs say about the plan it trained under.

Compared are the pipeline part of each step with the iteration time, the instructions with their
planned times, and energies with theirs. The first step (warm-up) never counts, and traced steps
only where there are too few others. Deviations are actual / planned - 1.

Where an instruction took longer than planned beyond the threshold, the likely cause is the first of
these that the readings support: throttled, clock not reached, clock set late, straggling stage;
else the plan's own times do not hold on this machine.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from kareus.device.clocks import CLOCK_TOLERANCE_MHZ
from kareus.errors import ConfigError, ScheduleError
from kareus.schedule.bundle import read_bundle
from kareus.schedule.document import Schedule
from kareus.train.checks import schedule_checksum
from kareus.train.deviations import (
    Cause,
    DriftAlarm,
    InstructionDeviation,
    StageDeviation,
    StepDeviation,
    TrackReport,
)
from kareus.train.follow import find_mismatches
from kareus.train.log import RankLog, StepRecord, read_log
from kareus.train.replan import training_measurements
from kareus.train.samples import Readings, logs_by_stage, readings_by_position

DEFAULT_THRESHOLD = 0.10
_WINDOW = 5
_MIN_STEPS = 3
_THROTTLED_SHARE = 0.2
_LATE_SHARE = 0.2


def track(bundle: Path, log: Path, *, threshold: float = DEFAULT_THRESHOLD) -> TrackReport:
    """Hold a training log against the bundle it trained under.

    Args:
        bundle: The bundle.
        log: The log's folder.
        threshold: Relative deviation beyond which causes are named and the alarm is raised.

    Raises:
        ConfigError: The threshold is not positive.
        NotFoundError: There is no log.
        ScheduleError: The log is that of another bundle, or holds no complete step.
    """
    return track_logs(read_bundle(bundle), read_log(log), threshold=threshold)


def track_logs(
    schedule: Schedule, logs: Sequence[RankLog], *, threshold: float = DEFAULT_THRESHOLD
) -> TrackReport:
    """Hold logs that were read against their schedule; see `track`."""
    if not threshold > 0:
        raise ConfigError(f"threshold {threshold}: use a value above 0, such as 0.1")
    _check_same(schedule, logs)
    num_ranks = schedule.workload.parallelism.num_gpus
    complete = len(logs) == num_ranks
    device = logs[0].info.device
    comparable = device != "cpu"
    mismatches = find_mismatches(schedule, logs)
    steps = _steps(schedule, logs, complete=complete)
    instructions = _instructions(schedule, logs, threshold=threshold, comparable=comparable)
    notes = []
    if not complete:
        notes.append(f"logs of {len(logs)} of {num_ranks} ranks: energies of the job are missing")
    if not comparable:
        notes.append(
            f"trained on a CPU: times are not those of {schedule.workload.gpu.name}, so no causes "
            "are named, no alarm is raised, and nothing is measured to plan with"
        )
    damaged = sum(log.num_damaged for log in logs)
    if damaged:
        notes.append(f"{damaged} lines of the log could not be read and were left out")
    return TrackReport(
        plan=schedule.plan,
        study=schedule.provenance.study,
        device=device,
        ranks=len(logs),
        num_ranks=num_ranks,
        schedule_followed=(not mismatches) if complete else None,
        mismatches=tuple(str(each) for each in mismatches),
        steps=steps,
        stages=_stages(schedule, logs, instructions),
        instructions=instructions,
        drift=_drift(steps, threshold=threshold, comparable=comparable),
        measurements=training_measurements(schedule, logs) if comparable else (),
        notes=tuple(notes),
    )


def _check_same(schedule: Schedule, logs: Sequence[RankLog]) -> None:
    """Refuse logs of another schedule, and logs without a step."""
    wanted = schedule_checksum(schedule)
    for log in logs:
        if log.info.schedule != wanted:
            raise ScheduleError(
                f"the log of rank {log.info.rank} was written under schedule "
                f"{log.info.schedule[:12]}, the bundle holds {wanted[:12]}: give the bundle that "
                "was trained with"
            )
        if not log.steps:
            raise ScheduleError(
                f"the log of rank {log.info.rank} holds no step: training ended before its first"
                + (f" ({log.failure})" if log.failure else "")
            )


def _counted(log: RankLog) -> Sequence[StepRecord]:
    """The steps that count: without warm-up, and without traced ones if enough others remain."""
    later = log.steps[1:] or log.steps
    plain = [r for r in later if all(i.units is None for i in r.instructions)]
    return plain if len(plain) >= _MIN_STEPS else later


def _steps(
    schedule: Schedule, logs: Sequence[RankLog], *, complete: bool
) -> tuple[StepDeviation, ...]:
    planned_s = schedule.prediction.iteration_time_s
    planned_j = schedule.prediction.job.energy_j
    by_number: dict[int, list[StepRecord]] = defaultdict(list)
    for log in logs:
        for record in log.steps:
            by_number[record.step].append(record)
    found = []
    for number, records in sorted(by_number.items()):
        if len(records) < len(logs):
            continue  # cut off by the end of the run
        energies = [record.energy_j for record in records]
        known = [energy_j for energy_j in energies if energy_j is not None]
        energy_j = sum(known) if complete and len(known) == len(energies) else None
        pipeline_s = max(record.pipeline_s for record in records)
        found.append(
            StepDeviation(
                step=number,
                loss=records[0].loss,
                time_s=max(record.time_s for record in records),
                pipeline_s=pipeline_s,
                planned_time_s=planned_s,
                deviation=pipeline_s / planned_s - 1,
                energy_j=energy_j,
                planned_energy_j=planned_j,
                energy_deviation=None if energy_j is None else energy_j / planned_j - 1,
            )
        )
    return tuple(found)


def _instructions(
    schedule: Schedule, logs: Sequence[RankLog], *, threshold: float, comparable: bool
) -> tuple[InstructionDeviation, ...]:
    static_w = schedule.provenance.static_power_w
    stages = logs_by_stage(logs)
    times_s = {
        stage: [
            statistics.median(
                record.instructions[position].duration_s
                for log in of_stage
                for record in _counted(log)
            )
            for position in range(len(schedule.stages[stage].instructions))
        ]
        for stage, of_stage in stages.items()
    }
    busy = {
        stage: sum(times) / sum(i.time_s for i in schedule.stages[stage].instructions)
        for stage, times in times_s.items()
    }
    found = []
    for stage, of_stage in stages.items():
        readings = readings_by_position(of_stage)
        others = [ratio for other, ratio in busy.items() if other != stage]
        straggles = bool(others) and busy[stage] / statistics.median(others) - 1 > threshold
        for position, planned in enumerate(schedule.stages[stage].instructions):
            time_s = times_s[stage][position]
            clock_mhz = of_stage[0].info.clocks_mhz[position]
            planned_j = planned.effective_energy_j + static_w * planned.time_s
            power_w = readings[position].power_w
            energy_j = None if power_w is None else power_w * time_s
            deviation = time_s / planned.time_s - 1
            cause = detail = None
            if comparable and deviation > threshold:
                cause, detail = _cause(
                    readings[position], clock_mhz, time_s, straggles=straggles, stage=stage
                )
            found.append(
                InstructionDeviation(
                    stage=stage,
                    position=position,
                    direction=planned.direction.value,
                    microbatch=planned.microbatch,
                    clock_mhz=clock_mhz,
                    achieved_clock_mhz=readings[position].clock_mhz,
                    time_s=time_s,
                    planned_time_s=planned.time_s,
                    deviation=deviation,
                    energy_j=energy_j,
                    planned_energy_j=planned_j,
                    energy_deviation=None if energy_j is None else energy_j / planned_j - 1,
                    cause=cause,
                    detail=detail,
                )
            )
    return tuple(found)


def _cause(
    readings: Readings, clock_mhz: int, time_s: float, *, straggles: bool, stage: int
) -> tuple[Cause, str]:
    """The likely cause of an instruction that took too long."""
    if readings.throttled_share >= _THROTTLED_SHARE:
        return Cause.THROTTLED, (
            f"{readings.throttled_share:.0%} of the readings: "
            f"{', '.join(readings.throttle_reasons)}"
        )
    achieved = readings.clock_mhz
    if achieved is not None and achieved < clock_mhz - CLOCK_TOLERANCE_MHZ:
        return Cause.CLOCK_NOT_REACHED, f"asked for {clock_mhz} MHz, ran at {achieved:.0f} MHz"
    late_s = readings.median_late_s
    if late_s is not None and late_s > _LATE_SHARE * time_s:
        return Cause.CLOCK_LATE, f"set {late_s * 1e3:.1f} ms after its beginning"
    if straggles:
        return Cause.STRAGGLING_STAGE, f"stage {stage} lags behind the others"
    return Cause.PLAN, "no reading explains it: plan again with this run's measurements"


def _stages(
    schedule: Schedule, logs: Sequence[RankLog], instructions: Sequence[InstructionDeviation]
) -> tuple[StageDeviation, ...]:
    static_w = schedule.provenance.static_power_w
    found = []
    for stage, of_stage in logs_by_stage(logs).items():
        own = [i for i in instructions if i.stage == stage]
        busy_s, planned_s = sum(i.time_s for i in own), sum(i.planned_time_s for i in own)
        planned_j = (
            sum(i.effective_energy_j for i in schedule.stages[stage].instructions)
            + static_w * schedule.prediction.iteration_time_s
        )
        energies = [record.energy_j for log in of_stage for record in _counted(log)]
        known = [energy_j for energy_j in energies if energy_j is not None]
        energy_j = statistics.fmean(known) if known and len(known) == len(energies) else None
        # The cause that explains most of the time lost.
        lost: dict[Cause, float] = defaultdict(float)
        details: dict[Cause, str | None] = {}
        for each in own:
            if each.cause is not None:
                lost[each.cause] += each.time_s - each.planned_time_s
                details.setdefault(each.cause, each.detail)
        cause = max(lost, key=lambda c: lost[c], default=None)
        found.append(
            StageDeviation(
                stage=stage,
                busy_s=busy_s,
                planned_busy_s=planned_s,
                deviation=busy_s / planned_s - 1,
                energy_j=energy_j,
                planned_energy_j=planned_j,
                energy_deviation=None if energy_j is None else energy_j / planned_j - 1,
                cause=cause,
                detail=None if cause is None else details[cause],
            )
        )
    return tuple(found)


def _drift(steps: Sequence[StepDeviation], *, threshold: float, comparable: bool) -> DriftAlarm:
    """Raised when the median of the last steps is beyond the threshold, in time or energy."""
    last = (steps[1:] or steps)[-_WINDOW:]
    time_deviation = statistics.median(step.deviation for step in last)
    energies = [step.energy_deviation for step in last if step.energy_deviation is not None]
    energy_deviation = statistics.median(energies) if energies else None
    if not comparable:
        return DriftAlarm(
            raised=None,
            threshold=threshold,
            time_deviation=time_deviation,
            energy_deviation=energy_deviation,
            since_step=None,
            reason="trained on a CPU, planned for a GPU",
        )
    beyond = []
    for what, value in (("time", time_deviation), ("energy", energy_deviation)):
        if len(last) >= _MIN_STEPS and value is not None and abs(value) > threshold:
            beyond.append(f"{what} {value:+.1%}")
    since = None
    for step in reversed(steps):
        off = max(abs(step.deviation), abs(step.energy_deviation or 0.0)) > threshold
        if not beyond or not off:
            break
        since = step.step
    return DriftAlarm(
        raised=bool(beyond),
        threshold=threshold,
        time_deviation=time_deviation,
        energy_deviation=energy_deviation,
        since_step=since,
        reason=(
            f"the last {len(last)} steps deviate from the plan: {', '.join(beyond)}"
            if beyond
            else None
        ),
    )
