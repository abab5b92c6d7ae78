"""A small workload and plans on it, for the tests of schedules and reports."""

import math

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import SourceKind
from kareus.core.partition import Direction, Execution
from kareus.core.pipeline import Pipeline, one_f_one_b
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.core.workload import Gpu, Model, Parallelism, Recompute, Workload
from kareus.schedule.document import Schedule, build_schedule
from kareus.schedule.formats import partition_layout

STATIC_POWER_W = 85.0


def make_workload(
    *,
    pp: int = 2,
    tp: int = 8,
    cp: int = 1,
    dp: int = 1,
    num_microbatches: int = 4,
    recompute: Recompute = Recompute.FULL,
) -> Workload:
    model = Model(
        name="sample-3b",
        family="llama",
        num_layers=4 * pp,
        hidden_size=64,
        ffn_hidden_size=256,
        num_heads=8,
        num_kv_heads=8,
        head_dim=8,
        vocab_size=1000,
    )
    gpu = Gpu(
        name="A100-SXM4-40GB",
        num_sms=108,
        clocks_mhz=tuple(range(900, 1411, 30)),
        static_power_w=STATIC_POWER_W,
        static_power_measured=True,
        power_limit_w=400.0,
        memory_bytes=40 * 2**30,
        peak_flops=312e12,
        memory_bandwidth_bytes_s=1.555e12,
        link_bandwidth_bytes_s=300e9,
        calibrated=True,
    )
    return Workload(
        model=model,
        gpu=gpu,
        parallelism=Parallelism(tp=tp, cp=cp, pp=pp, dp=dp),
        microbatch_size=8,
        seq_len=4096,
        num_microbatches=num_microbatches,
        stage_layers=(4,) * pp,
        recompute=recompute,
    )


def make_option(
    workload: Workload,
    direction: Direction,
    clock_mhz: int,
    *,
    execution: Execution = Execution.NANOBATCH,
    launch_point: LaunchPoint = LaunchPoint.NORM_0,
    sms: int = 12,
    speedup: float = 1.0,
) -> InstructionOption:
    """An option with time ~ 1/clock and dynamic energy ~ clock^2, backward three times forward."""
    work = 1.0 if direction is Direction.FORWARD else 3.0
    layout = partition_layout(workload.recompute, cp=workload.parallelism.cp)
    if execution is Execution.SEQUENTIAL:
        configurations = tuple(
            (f"seq_{name}", Configuration(clock_mhz=clock_mhz)) for name in ("a", "b")
        )
    else:
        collective = workload.parallelism.tp * workload.parallelism.cp > 1
        configurations = tuple(
            (
                name,
                Configuration(
                    clock_mhz=clock_mhz,
                    sm_allocation=sms if collective else None,
                    launch_point=launch_point if collective else None,
                ),
            )
            for name in layout.names(direction)
        )
    return InstructionOption(
        clock_mhz=clock_mhz,
        execution=execution,
        time_s=0.1 * work * 1410 / clock_mhz / speedup,
        effective_energy_j=20.0 * work * (clock_mhz / 1410) ** 2,
        configurations=configurations,
    )


def make_plan(
    workload: Workload,
    *,
    number: int = 0,
    method: Method = Method.KAREUS,
    clock_mhz: int = 1410,
    execution: Execution = Execution.NANOBATCH,
    speedup: float = 1.0,
    pipeline: Pipeline | None = None,
    slow_first_mhz: int | None = None,
) -> Plan:
    """A plan at one clock (the first stage's forwards at another, if asked)."""
    pipeline = pipeline or make_pipeline(workload)
    choices = tuple(
        tuple(
            make_option(
                workload,
                i.direction,
                slow_first_mhz
                if slow_first_mhz and i.stage == 0 and i.direction is Direction.FORWARD
                else clock_mhz,
                execution=execution,
                speedup=speedup,
                sms=3 * (1 + i.stage),
            )
            for i in stage
        )
        for stage in pipeline.stages
    )
    time_s = pipeline.makespan_s([option.time_s for stage in choices for option in stage])
    effective_j = math.fsum(option.effective_energy_j for stage in choices for option in stage)
    pipeline_j = effective_j + pipeline.num_stages * STATIC_POWER_W * time_s
    return Plan(
        number=number,
        method=method,
        iteration_time_s=time_s,
        effective_energy_j=effective_j,
        pipeline_energy_j=pipeline_j,
        bound_j=None if method is Method.MEGATRON else pipeline_j * 0.999,
        choices=choices,
    )


def make_pipeline(workload: Workload) -> Pipeline:
    return one_f_one_b(workload.parallelism.pp, workload.num_microbatches)


def make_frontiers(workload: Workload) -> dict[Method, tuple[Plan, ...]]:
    """Four methods: Kareus fastest and most frugal, Perseus as fast as Megatron-LM at the top."""
    clocks = (1410, 1320, 1230, 1140, 1050)

    def frontier(method: Method, execution: Execution, speedup: float) -> tuple[Plan, ...]:
        return tuple(
            make_plan(
                workload,
                number=number,
                method=method,
                clock_mhz=clock,
                execution=execution,
                speedup=speedup,
            )
            for number, clock in enumerate(clocks)
        )

    return {
        Method.KAREUS: frontier(Method.KAREUS, Execution.NANOBATCH, 1.15),
        Method.NANOBATCHING_PERSEUS: frontier(
            Method.NANOBATCHING_PERSEUS, Execution.NANOBATCH, 1.05
        ),
        Method.PERSEUS: frontier(Method.PERSEUS, Execution.SEQUENTIAL, 1.0),
        Method.MEGATRON: frontier(Method.MEGATRON, Execution.SEQUENTIAL, 1.0)[:1],
    }


def make_schedule(workload: Workload | None = None, plan: Plan | None = None) -> Schedule:
    workload = workload or make_workload()
    return build_schedule(
        plan or make_plan(workload, number=14),
        make_pipeline(workload),
        workload,
        study="sample",
        source=SourceKind.SIMULATOR,
        seed=3,
    )
