"""Tiny bundles made by hand: every instruction another clock, launch point and SM allocation."""

import itertools
from dataclasses import replace
from pathlib import Path

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import SourceKind
from kareus.core.partition import Direction, Execution
from kareus.core.pipeline import PipelineOrder, build_pipeline
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.core.workload import Model, Parallelism, Recompute, Workload
from kareus.schedule.bundle import write_bundle
from kareus.schedule.document import Schedule, build_schedule
from kareus.workload.gpus import load_gpu
from kareus.workload.partitions import build_partitions, build_recipes

CLOCKS_MHZ = (900, 1410, 1200)


def tiny_model(**changes) -> Model:
    """The catalogue's tiny model, smaller still."""
    model = Model(
        name="tiny-test",
        family="llama",
        num_layers=2,
        hidden_size=16,
        ffn_hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        vocab_size=64,
        qk_norm=True,
    )
    return replace(model, **changes)


def make_workload(
    *,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    dp: int = 1,
    num_microbatches: int = 4,
    model: Model | None = None,
    recompute: Recompute = Recompute.FULL,
    seq_len: int = 16,
) -> Workload:
    model = model or tiny_model()
    return Workload(
        model=model,
        gpu=load_gpu("A100-SXM4-40GB"),
        parallelism=Parallelism(tp=tp, cp=cp, pp=pp, dp=dp),
        microbatch_size=2,
        seq_len=seq_len,
        num_microbatches=num_microbatches,
        stage_layers=tuple(model.num_layers // pp for _ in range(pp)),
        recompute=recompute,
    )


def make_schedule(
    workload: Workload,
    *,
    clocks_mhz: tuple[int, ...] = CLOCKS_MHZ,
    sequential_every: int = 5,
    order: PipelineOrder = PipelineOrder.ONE_F_ONE_B,
) -> Schedule:
    """A schedule whose options go round clocks, launch points and SM allocations.

    Every fifth instruction is sequential (with recompute; without, both passes must agree).
    """
    pipeline = build_pipeline(order, workload.parallelism.pp, workload.num_microbatches)
    partitions = build_partitions(workload)
    recipes = build_recipes(workload)
    numbers = itertools.count()
    counter = itertools.count()
    choices = []
    for stage, instructions in enumerate(pipeline.stages):
        of_stage = []
        for instruction in instructions:
            number = next(numbers)
            clock_mhz = clocks_mhz[number % len(clocks_mhz)]
            sequential = (
                workload.recompute is Recompute.FULL
                and sequential_every > 0
                and number % sequential_every == sequential_every - 1
            )
            recipe = recipes[stage, instruction.direction]
            names = recipe.sequential if sequential else recipe.nanobatch
            configurations = []
            for name, _ in names:
                partition = partitions[name]
                if sequential or not partition.searched:
                    configuration = Configuration(clock_mhz=clock_mhz)
                else:
                    n = next(counter)
                    points = (*partition.launch_points, LaunchPoint.NONE)
                    configuration = Configuration(
                        clock_mhz=clock_mhz,
                        sm_allocation=partition.sm_allocations[n % len(partition.sm_allocations)],
                        launch_point=points[n % len(points)],
                    )
                configurations.append((name, configuration))
            forward = instruction.direction is Direction.FORWARD
            of_stage.append(
                InstructionOption(
                    clock_mhz=clock_mhz,
                    execution=Execution.SEQUENTIAL if sequential else Execution.NANOBATCH,
                    time_s=(0.1 if forward else 0.2) * 1410 / clock_mhz,
                    effective_energy_j=(10.0 if forward else 20.0) * (clock_mhz / 1410) ** 2,
                    configurations=tuple(configurations),
                )
            )
        choices.append(tuple(of_stage))
    options = [option for stage in choices for option in stage]
    time_s = pipeline.makespan_s([option.time_s for option in options])
    effective_j = sum(option.effective_energy_j for option in options)
    plan = Plan(
        number=3,
        method=Method.KAREUS,
        iteration_time_s=time_s,
        effective_energy_j=effective_j,
        pipeline_energy_j=effective_j + len(choices) * workload.gpu.static_power_w * time_s,
        bound_j=None,
        choices=tuple(choices),
    )
    return build_schedule(
        plan, pipeline, workload, study="sample", source=SourceKind.SIMULATOR, seed=0
    )


def make_bundle(folder: Path, workload: Workload, **kwargs) -> Path:
    return write_bundle(folder / "bundle.zip", make_schedule(workload, **kwargs))
