"""Trains a model under a schedule: what every process of the job runs, from top to bottom.

Process mesh: pp x dp x cp x tp, tensor-parallel ranks neighbours. A step: the pipeline's
instructions in the schedule's order, each at its clock and with its launch points; gradients
reduced, clipped, applied; one line written to the rank's log.

    torchrun --nproc-per-node 4 -m kareus.train BUNDLE LOG --device cpu --steps 20
"""

import os
import platform
import socket
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

import kareus
from kareus.core.workload import Workload
from kareus.device.nvml import driver_version
from kareus.errors import ConfigError, JobError
from kareus.execute.dropout import mix_seed
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.stage import Stage
from kareus.execute.trace import Trace
from kareus.schedule.bundle import read_bundle
from kareus.schedule.document import Schedule
from kareus.train import checkpoint as checkpoints
from kareus.train.checks import schedule_checksum
from kareus.train.clocks import ClockInStreamOrder, ClockProcess, ClockSink, RecordedClocks
from kareus.train.data import TokenSource, load_batch, open_tokens
from kareus.train.energy import EnergyMeter
from kareus.train.log import InstructionRecord, LogWriter, RankInfo, StepRecord, clock_file
from kareus.train.observe import observed_units
from kareus.train.optimizer import StageOptimizer, clip_scale, learning_rate_at
from kareus.train.pfo import served_clocks
from kareus.train.pipeline import HookedStage, build_pipeline_schedule
from kareus.train.progress import ProgressDisplay
from kareus.train.runtime import ScheduleRuntime, configure_stage, planned_instructions
from kareus.train.settings import DeviceType, TrainingSettings, settings_document
from kareus.train.timing import CudaTimer, HostTimer


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands in the mesh.

    Attributes:
        rank: Global rank.
        local_rank: Rank on its machine, which is the number of its GPU.
        pp: Rank along the pipeline: the stage.
        dp: Data-parallel rank.
        cp: Context-parallel rank.
        tp: Tensor-parallel rank.
    """

    rank: int
    local_rank: int
    pp: int
    dp: int
    cp: int
    tp: int


def train(settings: TrainingSettings, log: LogWriter) -> None:
    """Train in this process, which torchrun started; every rank runs it.

    Args:
        settings: The run.
        log: This rank's log.

    Raises:
        KareusError: Bundle, data, checkpoint or devices do not fit, or training went astray.
    """
    # -- the job: bundle, processes, mesh
    schedule = read_bundle(settings.bundle)
    workload = schedule.workload
    device = _choose_device(settings)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    mesh = build_mesh(workload.parallelism, device.type)
    place = _place(mesh)
    groups = ParallelGroups.from_mesh(mesh, device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    # -- the model's share of this rank, and what trains it
    stage = Stage(
        workload,
        place.pp,
        groups=groups,
        device=device,
        dtype=dtype,
        dropout_rate=settings.dropout,
        seed=settings.seed,
        dropout_seed=mix_seed(settings.seed, 1 + place.dp),
    )
    optimizer = StageOptimizer(
        stage,
        weight_decay=settings.weight_decay,
        counts_split=place.dp == place.cp == 0,
        counts_replicated=place.dp == place.cp == place.tp == 0,
    )
    source = open_tokens(settings.data, workload, seed=settings.seed)

    # -- where to begin
    decay_steps = settings.decay_steps or settings.steps
    first_step = 1
    description = checkpoints.describe_run(
        workload,
        seed=settings.seed,
        dtype=str(dtype),
        data=None if settings.data is None else settings.data.name,
        decay_steps=decay_steps,
    )
    if settings.resume:
        assert settings.checkpoint_dir is not None, "checked when the settings were made"
        found = checkpoints.newest_checkpoint(settings.checkpoint_dir)
        checkpoints.check_checkpoint(found, description)
        checkpoints.load_checkpoint(found, optimizer.state(), prefix=_prefix(place))
        optimizer.loaded()
        first_step = found.step + 1
        if settings.decay_steps is None:
            decay_steps = int(found.description["decay_steps"])
            description["decay_steps"] = decay_steps
        if first_step > settings.steps:
            raise ConfigError(
                f"{found.path}: has already trained {found.step} steps: give --steps above that"
            )

    # -- the schedule: clocks and configurations of this stage's instructions
    clocks_mhz = served_clocks(settings.pfo_url, schedule, place) if settings.pfo_url else None
    plan = planned_instructions(schedule, place.pp, clocks_mhz=clocks_mhz)
    sink, meter = _devices(settings, place, first_clock_mhz=plan[0].clock_mhz)
    try:
        runtime = ScheduleRuntime(
            schedule,
            stage=place.pp,
            configure=configure_stage(stage),
            request_clock=sink.request,
            clocks_mhz=clocks_mhz,
            timer=CudaTimer() if device.type == "cuda" else HostTimer(),
        )
        hooked = HookedStage(stage, runtime, device=device, group=mesh.get_group("pp"))
        pipeline = build_pipeline_schedule(hooked, schedule.order, workload.num_microbatches)
        tied = _tied_group(mesh, workload, place)
        log.start(_rank_info(settings, schedule, place, runtime, applied=settings.applies_clocks))

        # -- training
        with ProgressDisplay(
            shown=place.rank == 0,
            steps=settings.steps,
            done=first_step - 1,
            planned_s=schedule.prediction.iteration_time_s,
        ) as progress:
            for step in range(first_step, settings.steps + 1):
                trace = Trace() if _traced(settings, step - first_step) else None
                stage.trace = trace
                stage.begin_step(step)
                tokens, targets = _batch(source, stage, step, place, device)
                energy_before_j = meter.read_j()
                begin_s, begin_ns = time.perf_counter(), time.monotonic_ns()

                losses: list[torch.Tensor] = []
                runtime.on_step_begin()
                pipeline.step(
                    *([tokens] if stage.first else []),
                    target=targets if stage.last else None,
                    losses=losses,
                    return_outputs=False,
                )
                runtime.on_step_end()

                stage.reduce_gradients(
                    dp=mesh.get_group("dp") if workload.parallelism.dp > 1 else None, tied=tied
                )
                loss, norm = _agree(losses, optimizer, workload, place)
                if not (abs(loss) < float("inf") and norm < float("inf")):
                    raise JobError(
                        f"step {step}: loss {loss} and gradient norm {norm} are not finite; "
                        "resume from a checkpoint before it, with a lower --learning-rate"
                    )
                learning_rate = learning_rate_at(
                    step,
                    highest=settings.learning_rate,
                    warmup_steps=settings.warmup_steps,
                    decay_steps=decay_steps,
                )
                optimizer.step(
                    learning_rate=learning_rate, scale=clip_scale(norm, settings.clip_norm)
                )
                if device.type == "cuda":
                    torch.cuda.synchronize()
                time_s = time.perf_counter() - begin_s

                record = _record(
                    step,
                    runtime,
                    trace,
                    begin_ns=begin_ns,
                    loss=loss,
                    time_s=time_s,
                    tokens_per_s=workload.tokens_per_iteration / time_s,
                    energy_j=meter.since_j(energy_before_j),
                    gradient_norm=norm,
                    learning_rate=learning_rate,
                )
                log.step(record)
                progress.show(record)
                if settings.checkpoint_dir is not None and _saves(settings, step):
                    checkpoints.save_checkpoint(
                        settings.checkpoint_dir,
                        step,
                        optimizer.state(),
                        description=description,
                        prefix=_prefix(place),
                        keep=settings.keep_checkpoints,
                    )
        # Nobody ends while another still needs it.
        dist.barrier()
        log.end()
    finally:
        sink.close()


def _choose_device(settings: TrainingSettings) -> torch.device:
    """This process' device, made current."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.device is DeviceType.CPU:
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"process {local_rank} of this node has no GPU: torch sees "
            f"{torch.cuda.device_count()}; start one process per GPU, or use --device cpu"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _place(mesh: DeviceMesh) -> Place:
    return Place(
        rank=dist.get_rank(),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        **{name: mesh.get_local_rank(name) for name in ("pp", "dp", "cp", "tp")},
    )


def _prefix(place: Place) -> str:
    """What tells this rank's weights from those of ranks that hold others."""
    return f"stage{place.pp}.tp{place.tp}."


def _devices(
    settings: TrainingSettings, place: Place, *, first_clock_mhz: int
) -> tuple[ClockSink, EnergyMeter]:
    """Who sets the clock, and who reads the energy: nobody where nothing is to be had."""
    if not settings.applies_clocks:
        has_gpu = settings.device is DeviceType.CUDA
        return RecordedClocks(), EnergyMeter.of_gpu(place.local_rank if has_gpu else None)
    sink: ClockSink = ClockProcess(
        device=place.local_rank,
        first_clock_mhz=first_clock_mhz,
        log=clock_file(settings.log, place.rank),
    )
    if settings.device is DeviceType.CUDA:
        sink = ClockInStreamOrder(sink)
    return sink, EnergyMeter.of_gpu(place.local_rank)


def _tied_group(mesh: DeviceMesh, workload: Workload, place: Place) -> dist.ProcessGroup | None:
    """This rank's counterparts on the first and last stage, if they share an embedding."""
    if not workload.model.tied_embeddings or workload.parallelism.pp == 1:
        return None
    own = None
    first, last = mesh.mesh[0].flatten().tolist(), mesh.mesh[-1].flatten().tolist()
    for pair in zip(first, last, strict=True):
        group = dist.new_group(list(pair))  # every rank makes every group
        if place.rank in pair:
            own = group
    return own


def _batch(
    source: TokenSource, stage: Stage, step: int, place: Place, device: torch.device
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """This rank's tokens and targets of a step, where its stage needs them."""
    if not (stage.first or stage.last):
        return None, None
    tokens, targets = load_batch(source, stage.workload, step=step, dp_rank=place.dp)
    return stage.shard_tokens(tokens).to(device), stage.shard_tokens(targets).to(device)


def _agree(
    losses: list[torch.Tensor], optimizer: StageOptimizer, workload: Workload, place: Place
) -> tuple[float, float]:
    """The loss of the global batch and the gradient's global norm, the same on all ranks."""
    squared_norm = optimizer.squared_norm()
    shares = torch.stack((torch.zeros_like(squared_norm), squared_norm))
    if losses and place.tp == 0:
        mean = torch.stack([loss.detach() for loss in losses]).double().mean()
        shares[0] = mean / workload.parallelism.dp
    dist.all_reduce(shares)
    loss, total = shares.tolist()
    return float(loss), float(total) ** 0.5


def _record(step: int, runtime: ScheduleRuntime, trace: Trace | None, **values: Any) -> StepRecord:
    """The log's line of a step."""
    pipeline_s, timings = runtime.timings()
    units = observed_units(trace, len(timings)) if trace is not None else None
    return StepRecord(
        step=step,
        pipeline_s=pipeline_s,
        instructions=tuple(
            InstructionRecord(
                name=planned.name,
                microbatch=planned.microbatch,
                clock_mhz=planned.clock_mhz,
                begin_s=timing.begin_s,
                duration_s=timing.duration_s,
                units=units[position] if units is not None else None,
            )
            for position, (planned, timing) in enumerate(zip(runtime.plan, timings, strict=True))
        ),
        **values,
    )


def _traced(settings: TrainingSettings, steps_since_first: int) -> bool:
    return settings.trace_every > 0 and steps_since_first % settings.trace_every == 0


def _saves(settings: TrainingSettings, step: int) -> bool:
    every = settings.checkpoint_every
    return step == settings.steps or (every > 0 and step % every == 0)


def _rank_info(
    settings: TrainingSettings,
    schedule: Schedule,
    place: Place,
    runtime: ScheduleRuntime,
    *,
    applied: bool,
) -> RankInfo:
    """What the log says about this rank, with all that is needed to do it again."""
    on_gpu = settings.device is DeviceType.CUDA
    return RankInfo(
        rank=place.rank,
        stage=place.pp,
        dp_rank=place.dp,
        cp_rank=place.cp,
        tp_rank=place.tp,
        device=settings.device.value,
        clocks="applied" if applied else "logged",
        clocks_mhz=tuple(planned.clock_mhz for planned in runtime.plan),
        host=socket.gethostname(),
        schedule=schedule_checksum(schedule),
        details={
            "settings": settings_document(settings),
            "plan": schedule.plan,
            "study": schedule.provenance.study,
            "pid": os.getpid(),
            "gpu": torch.cuda.get_device_name() if on_gpu else None,
            "driver": driver_version() if on_gpu or applied else None,
            "versions": {
                "kareus": kareus.__version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
        },
    )
