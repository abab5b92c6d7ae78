"""A bundle held against the job that is to run it, before anything starts.

Every refusal names what the bundle wants, what the job has, and what to do.
"""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, fields

import psutil

from kareus.core.pipeline import PipelineOrder
from kareus.device.nvml import Device, visible_devices
from kareus.errors import ConfigError, DeviceError, ScheduleError
from kareus.schedule.document import Schedule, checksum
from kareus.train.settings import DeviceType, TrainingSettings
from kareus.workload.memory import estimate_memory

_PROCESS_BYTES = 400 * 2**20  # of a Python process with torch
BACKENDS = {DeviceType.CUDA: "nccl", DeviceType.CPU: "gloo"}


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """What a job is known to be; None where it takes what the bundle says.

    Attributes:
        pp: Pipeline stages.
        tp: Tensor-parallel degree.
        cp: Context-parallel degree.
        dp: Data-parallel replicas.
        num_microbatches: Microbatches per iteration.
    """

    pp: int | None = None
    tp: int | None = None
    cp: int | None = None
    dp: int | None = None
    num_microbatches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The machines of a job.

    Attributes:
        count: How many.
        rank: Which this is, from 0.
        rendezvous: `host:port` of node 0; None for one of its own on a single node.
        processes: Processes per node; None for the bundle's GPUs shared out evenly.
    """

    count: int = 1
    rank: int = 0
    rendezvous: str | None = None
    processes: int | None = None


def schedule_checksum(schedule: Schedule) -> str:
    """Return the checksum `schedule.json` carries."""
    return checksum(schedule.model_dump(mode="json"))


def check_shape(schedule: Schedule, job: JobShape) -> None:
    """Refuse a bundle made for another shape of job.

    Raises:
        ScheduleError: Naming both sides.
    """
    parallelism = schedule.workload.parallelism
    bundle = {
        "pp": parallelism.pp,
        "tp": parallelism.tp,
        "cp": parallelism.cp,
        "dp": parallelism.dp,
        "num_microbatches": schedule.workload.num_microbatches,
    }
    for each in fields(job):
        wanted, has = bundle[each.name], getattr(job, each.name)
        if has is not None and has != wanted:
            raise ScheduleError(
                f"the bundle was made for {each.name} {wanted}, this job has {has}: plan and "
                f"export a workload with {each.name} {has}, or run the job with {wanted}"
            )
    if schedule.order is PipelineOrder.INTERLEAVED:
        raise ScheduleError(
            f"the bundle's order is {schedule.order}: the trainer runs one model chunk per stage; "
            f"plan with {PipelineOrder.ONE_F_ONE_B} or {PipelineOrder.GPIPE}"
        )


def processes_per_node(schedule: Schedule, nodes: Nodes) -> int:
    """Return how many processes this node starts.

    Raises:
        ConfigError: Nodes and processes do not make up the mesh.
    """
    parallelism = schedule.workload.parallelism
    needed = parallelism.num_gpus
    mesh = " x ".join(f"{name} {getattr(parallelism, name)}" for name in ("pp", "dp", "cp", "tp"))
    if nodes.count < 1 or not 0 <= nodes.rank < nodes.count:
        raise ConfigError(
            f"node {nodes.rank} of {nodes.count}: use --nnodes 1 or more and --node-rank from 0 "
            f"to nnodes - 1"
        )
    if nodes.count > 1 and nodes.rendezvous is None:
        raise ConfigError(
            f"{nodes.count} nodes need a place to meet: give --rdzv-endpoint host:port of node 0"
        )
    if nodes.processes is None:
        if needed % nodes.count:
            raise ConfigError(
                f"{mesh} needs {needed} processes, which {nodes.count} nodes cannot share evenly: "
                "use another --nnodes"
            )
        return needed // nodes.count
    total = nodes.processes * nodes.count
    if total != needed:
        raise ConfigError(
            f"{nodes.count} nodes with {nodes.processes} processes each are {total}, {mesh} needs "
            f"{needed}: use --nnodes {nodes.count} with {needed / nodes.count:g} per node"
        )
    return nodes.processes


def check_devices(
    schedule: Schedule, settings: TrainingSettings, num_processes: int
) -> tuple[str, ...]:
    """Refuse a bundle this node's GPUs cannot follow.

    Returns:
        Notes on what does not stop training.

    Raises:
        DeviceError: There are fewer GPUs than processes, or no driver.
        ScheduleError: A clock or a collective backend the machine does not have.
    """
    notes = []
    backend, wanted = BACKENDS[settings.device], schedule.collective_backend.name
    if settings.device is DeviceType.CUDA and backend != wanted.lower():
        raise ScheduleError(
            f"the bundle's SM allocations are those of {wanted}, training runs on {backend}: "
            f"export the plan again for {backend}"
        )
    if settings.device is DeviceType.CPU:
        notes.append(f"on a CPU {backend} runs the collectives: SM allocations are not applied")
    if settings.device is DeviceType.CPU:
        _check_memory(schedule, num_processes)
    if settings.device is DeviceType.CPU and not settings.applies_clocks:
        notes.append("on a CPU clocks are logged, not applied")
        return tuple(notes)
    try:
        devices = visible_devices()
    except DeviceError as error:
        # What to do about it differs from what a measurement could do.
        text = str(error).replace("use --source simulator", "train with --device cpu")
        raise DeviceError(text) from error
    if len(devices) < num_processes:
        raise DeviceError(
            f"this node needs {num_processes} GPUs, {len(devices)} are visible: use more nodes "
            "(--nnodes), check CUDA_VISIBLE_DEVICES, or train on --device cpu"
        )
    devices = devices[:num_processes]
    if settings.applies_clocks:
        check_clocks(schedule, devices)
    else:
        notes.append("clocks are logged, not applied (--clocks log)")
    planned_for = schedule.workload.gpu.name
    others = sorted({d.name for d in devices if not _same_gpu(d.name, planned_for)})
    if others:
        notes.append(
            f"planned for {planned_for}, this node has {', '.join(others)}: times and energies "
            "will differ from the plan"
        )
    return tuple(notes)


def check_clocks(schedule: Schedule, devices: Sequence[Device]) -> None:
    """Refuse clocks that a GPU cannot be locked to.

    Raises:
        ScheduleError: Naming the clocks and the GPU.
    """
    wanted = {i.clock_mhz for stage in schedule.stages for i in stage.instructions}
    for device in devices:
        supported = set(device.supported_clocks_mhz())
        missing = sorted(wanted - supported)
        if missing:
            shown = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
            raise ScheduleError(
                f"the bundle asks for {shown} MHz, which GPU {device.index} ({device.name}) does "
                f"not offer (it has {min(supported)} to {max(supported)} MHz in its own steps): "
                f"plan for this GPU, or train on {schedule.workload.gpu.name}"
            )


def check_rendezvous(nodes: Nodes) -> None:
    """Refuse a meeting place that is malformed, or taken on node 0.

    Raises:
        ConfigError: Naming it.
    """
    if nodes.rendezvous is None:
        return
    host, colon, port_text = nodes.rendezvous.rpartition(":")
    if not colon or not host or not port_text.isdecimal() or not 0 < int(port_text) < 65536:
        raise ConfigError(f"--rdzv-endpoint {nodes.rendezvous}: use host:port, such as node0:29500")
    if nodes.rank != 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", int(port_text)))
        except OSError as error:
            raise ConfigError(
                f"--rdzv-endpoint {nodes.rendezvous}: port {port_text} of this node cannot be used "
                f"({error.strerror}): another job may hold it; choose another port on all nodes"
            ) from error


def _check_memory(schedule: Schedule, num_processes: int) -> None:
    """Refuse a model that this machine's memory cannot hold; a GPU says so by itself."""
    workload = schedule.workload
    # Training in fp32 keeps as much per weight as mixed precision does (16 and 18 bytes).
    stages = estimate_memory(workload).stages
    per_rank = [stage.total_bytes - stage.reserve_bytes + _PROCESS_BYTES for stage in stages]
    # A node's processes are neighbours in the mesh: at worst they are all of the largest stage.
    share = num_processes / workload.parallelism.num_gpus
    needed = (
        sum(per_rank) * workload.parallelism.gpus_per_stage
        if share == 1
        else max(per_rank) * num_processes
    )
    available = psutil.virtual_memory().available
    if needed > available:
        raise DeviceError(
            f"{workload.model.name} needs about {needed / 2**30:.0f} GiB of memory to train on "
            f"this CPU with {num_processes} processes, {available / 2**30:.0f} GiB are free: use "
            "--device cuda, or a bundle of a smaller model such as tiny"
        )


def _same_gpu(found: str, planned: str) -> bool:
    """Whether the driver's name of a GPU is that of the catalogue, give or take a prefix."""

    def key(name: str) -> str:
        return "".join(c for c in name.lower() if c.isalnum())

    return key(planned) in key(found)
