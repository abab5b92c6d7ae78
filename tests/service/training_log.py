"""Logs of a training run on GPUs, written by hand: what a schedule's ranks would have logged."""

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from kareus.core.partition import Execution
from kareus.core.plan import InstructionOption
from kareus.schedule.document import Schedule
from kareus.train.checks import schedule_checksum
from kareus.train.log import (
    ClockEvent,
    InstructionRecord,
    LogWriter,
    ObservedUnit,
    RankInfo,
    StepRecord,
    clock_file,
)


def write_log(
    folder: Path,
    schedule: Schedule,
    *,
    slower: float = 1.0,
    slow_stages: Collection[int] | None = None,
    slower_from: int = 1,
    power_w: float | None = 250.0,
    energy: bool = True,
    device: str = "cuda",
    num_steps: int = 12,
    bundle: Path | None = None,
    unit_s: float = 0.002,
    throttle: tuple[str, ...] = (),
) -> Path:
    """Write the log of a run whose instructions take `slower` times what was planned.

    Args:
        folder: The log's folder.
        schedule: What was trained under.
        slower: Ratio of actual to planned times.
        slow_stages: Where; None for everywhere.
        slower_from: First such step.
        power_w: What the GPU reads; None for no readings.
        energy: Whether energies per step are known.
        device: `cuda` or `cpu`.
        num_steps: Steps; the second is traced.
        bundle: What the log says it was launched with.
        unit_s: Time of one execution of every partition, as traced.
        throttle: What the readings say held the clock down on slow stages.
    """
    parallelism = schedule.workload.parallelism
    per_stage = parallelism.num_gpus // parallelism.pp
    gpu_j = schedule.prediction.job.energy_j / parallelism.num_gpus
    for rank in range(parallelism.num_gpus):
        stage = rank // per_stage
        slow = slow_stages is None or stage in slow_stages
        instructions = schedule.stages[stage].instructions
        options = schedule.to_plan().choices[stage]
        writer = LogWriter(folder, rank)
        writer.start(
            RankInfo(
                rank=rank,
                stage=stage,
                dp_rank=0,
                cp_rank=0,
                tp_rank=rank % parallelism.tp,
                device=device,
                clocks="applied",
                clocks_mhz=tuple(one.clock_mhz for one in instructions),
                host="node",
                schedule=schedule_checksum(schedule),
                details={
                    "plan": schedule.plan,
                    "study": schedule.provenance.study,
                    "settings": {"bundle": None if bundle is None else str(bundle)},
                },
            )
        )
        events: list[ClockEvent] = []
        for step in range(1, num_steps + 1):
            factor = slower if slow and step >= slower_from else 1.0
            # The run as a whole is as slow as its slowest stage, with some noise of its own.
            whole = slower if step >= slower_from else 1.0
            whole *= 1.0 + 0.004 * ((step * 7) % 5 - 2) + (0.4 if step == 1 else 0.0)
            begin_ns, begin_s = step * 10**10, 0.0
            records = []
            for setting, option in zip(instructions, options, strict=True):
                records.append(
                    InstructionRecord(
                        name=setting.direction.value,
                        microbatch=setting.microbatch,
                        clock_mhz=setting.clock_mhz,
                        begin_s=begin_s,
                        duration_s=setting.time_s * factor,
                        units=_units(option, unit_s) if step == 2 else None,
                    )
                )
                if power_w is not None:
                    events += [
                        ClockEvent(
                            time_ns=begin_ns
                            + round((begin_s + share * setting.time_s * factor) * 1e9),
                            event="sample",
                            clock_mhz=setting.clock_mhz,
                            power_w=power_w,
                            throttle_reasons=throttle if slow else (),
                        )
                        for share in (0.5, 0.9)
                    ]
                begin_s += setting.time_s * factor
            time_s = schedule.prediction.iteration_time_s * whole
            writer.step(
                StepRecord(
                    step=step,
                    loss=6.0 - 0.05 * step,
                    time_s=1.02 * time_s,
                    pipeline_s=time_s,
                    tokens_per_s=schedule.prediction.tokens / time_s,
                    energy_j=gpu_j * whole if energy else None,
                    gradient_norm=1.0,
                    learning_rate=1e-3,
                    begin_ns=begin_ns,
                    instructions=tuple(records),
                )
            )
        writer.end()
        writer.close()
        if events:
            lines = [json.dumps(asdict(event)) for event in events]
            clock_file(folder, rank).write_text("\n".join(lines) + "\n")
    return folder


def _units(option: InstructionOption, unit_s: float) -> tuple[ObservedUnit, ...]:
    """What a faithful execution is seen to do."""
    return tuple(
        ObservedUnit(
            unit=name,
            launches=(
                (("none", None),)
                if option.execution is Execution.SEQUENTIAL or one.launch_point is None
                else ((one.launch_point.value, one.sm_allocation),)
            ),
            count=4,
            mean_s=unit_s,
            spread_s=unit_s / 50,
        )
        for name, one in option.configurations
    )
