"""Groups of ranks, their collectives, and one process group per SM allocation.

NCCL limits the thread blocks of a collective per communicator, so every SM allocation is a process
group of its own over the same ranks, made when it is first asked for (every rank asks in the same
order, since all follow one plan). gloo has no such limit: the allocation is recorded, not applied.

On CUDA a collective runs on a stream of its own of high priority, which waits for the compute
stream at the launch point and for which the compute stream waits at the end. On a CPU it runs in
gloo's threads. At most one collective of the engine is in flight at a time, so launch order is the
same on all ranks whatever the launch points.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kareus.core.partition import CollectiveGroup, CollectiveKind
from kareus.core.workload import Parallelism
from kareus.errors import ConfigError, JobError
from kareus.execute.trace import CollectiveIssue, EventKind, Recorder

logger = logging.getLogger(__name__)

# torch 2.13 renamed them and warns about the old names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Communicator:
    """The collectives of one group of ranks.

    Args:
        name: Which group it is.
        process_group: The ranks; None for this rank alone.
        device: Where the tensors live.
        average: Reduce by averaging instead of summing: the same traffic, but values stay in range
            when a measurement repeats a reduction in place.
    """

    def __init__(
        self,
        name: CollectiveGroup,
        process_group: dist.ProcessGroup | None,
        *,
        device: torch.device,
        average: bool = False,
    ) -> None:
        self.name = name
        self._base = process_group
        self._allocated: dict[int, dist.ProcessGroup] = {}
        self._said_ignored = False
        self._reduction = dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
        self.size = dist.get_world_size(process_group) if process_group is not None else 1
        self.rank = dist.get_rank(process_group) if process_group is not None else 0
        backend = dist.get_backend(process_group) if process_group is not None else None
        self.applies_allocation = backend == "nccl"
        if device.type == "cuda" and self.size > 1 and not self.applies_allocation:
            raise ConfigError(
                f"the {name} group uses the backend {backend}, which does not take tensors of a "
                f"GPU at speed: start the process group with nccl"
            )
        self.stream = (
            torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            if device.type == "cuda" and self.size > 1
            else None
        )

    def process_group(self, sm_allocation: int | None) -> dist.ProcessGroup:
        """Return the process group whose kernels take that many SMs, making it if need be.

        Args:
            sm_allocation: SMs; None for the backend's own choice.

        Effects: Blocks until all ranks of the group ask for it, the first time.
        """
        assert self._base is not None, "a group of one rank has no collectives"
        if sm_allocation is not None and not self.applies_allocation:
            self._say_ignored()
            return self._base
        if sm_allocation is None:
            return self._base
        if sm_allocation not in self._allocated:
            options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options.config.min_ctas = sm_allocation
            options.config.max_ctas = sm_allocation
            self._allocated[sm_allocation] = dist.new_group(
                dist.get_process_group_ranks(self._base),
                backend="nccl",
                pg_options=options,
                use_local_synchronization=True,
                group_desc=f"kareus_{self.name}_{sm_allocation}_sms",
            )
        return self._allocated[sm_allocation]

    def _say_ignored(self) -> None:
        """Warn once per group that allocations are not applied."""
        if not self._said_ignored and self.rank == 0:
            logger.warning(
                "SM allocations of the %s group are recorded, not applied: its backend has no "
                "limit of thread blocks (NCCL has)",
                self.name,
            )
        self._said_ignored = True

    def issue(
        self,
        kind: CollectiveKind,
        source: Tensor,
        destination: Tensor,
        *,
        sm_allocation: int | None,
        async_op: bool,
    ) -> dist.Work | None:
        """Hand a collective to the backend.

        Args:
            kind: The operation.
            source: What this rank gives.
            destination: What it gets; for an all-reduce the source itself.
            sm_allocation: As for `process_group`.
            async_op: Whether to return at once with a handle.
        """
        group = self.process_group(sm_allocation)
        work: dist.Work | None = None
        match kind:
            case CollectiveKind.ALL_REDUCE:
                work = dist.all_reduce(source, self._reduction, group, async_op)
            case CollectiveKind.ALL_GATHER:
                work = _all_gather(destination.view(-1), source.view(-1), group, async_op)
            case CollectiveKind.REDUCE_SCATTER:
                work = _reduce_scatter(
                    destination.view(-1), source.view(-1), self._reduction, group, async_op
                )
        return work

    def reduce_now(
        self, tensor: Tensor, operation: dist.ReduceOp.RedOpType | None = None
    ) -> Tensor:
        """Reduce in place over the group, in order with the computation; return the tensor."""
        if self._base is not None and self.size > 1:
            with self.explaining(CollectiveKind.ALL_REDUCE):
                dist.all_reduce(tensor, operation or self._reduction, self._base)
        return tensor

    @contextmanager
    def explaining(self, kind: CollectiveKind) -> Iterator[None]:
        """Turn a failure of the backend into one line that says which collective it was.

        Raises:
            JobError: Mostly because another rank has ended.
        """
        try:
            yield
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise JobError(
                f"the {kind} of rank {self.rank} of {self.size} in the {self.name} group failed "
                f"({reason}): if another rank ended before, see its log for the cause"
            ) from error


class CollectiveCall:
    """A collective that is due: launched by whoever computes beside it, waited for at the end.

    Args:
        kind: The operation.
        communicator: The group.
        source: What this rank gives, contiguous.
        destination: What it gets; the source itself for an all-reduce.
        layer: Layer of the stage whose result it carries.
        nanobatch: Nanobatch whose result it carries; None for a whole microbatch.
        on_done: Called once its result may be used.
    """

    def __init__(
        self,
        kind: CollectiveKind,
        communicator: Communicator,
        source: Tensor,
        destination: Tensor,
        *,
        layer: int,
        nanobatch: int | None,
        on_done: Callable[[], None],
    ) -> None:
        self.kind = kind
        self._communicator = communicator
        self._source = source
        self._destination = destination
        self._layer = layer
        self._nanobatch = nanobatch
        self._on_done = on_done
        self._issue: CollectiveIssue | None = None
        self._work: dist.Work | None = None

    @property
    def launched(self) -> bool:
        """Whether it is in flight."""
        return self._issue is not None

    def launch(self, sm_allocation: int | None, recorder: Recorder) -> None:
        """Start it; the computation that follows runs beside it."""
        stream = self._communicator.stream
        started = None
        if stream is None:
            self._work = self._start(sm_allocation, async_op=True)
        else:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
            started = recorder.mark(stream)
            with torch.cuda.stream(stream):
                self._start(sm_allocation, async_op=False)
        larger = max(self._source, self._destination, key=torch.numel)
        self._issue = CollectiveIssue(
            kind=self.kind,
            group=self._communicator.name,
            layer=self._layer,
            nanobatch=self._nanobatch,
            num_bytes=larger.numel() * larger.element_size(),
            sm_allocation=sm_allocation,
            allocation_applied=sm_allocation is not None and self._communicator.applies_allocation,
        )
        recorder.write(EventKind.COLLECTIVE_LAUNCHED, collective=self._issue, cuda_event=started)

    def wait(self, recorder: Recorder) -> None:
        """Make what follows see the result: on a CPU by blocking, on CUDA by the stream's order."""
        stream = self._communicator.stream
        ended = None
        if stream is not None:
            ended = recorder.mark(stream)
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        elif self._work is not None:
            with self._communicator.explaining(self.kind):
                self._work.wait()
        recorder.write(EventKind.COLLECTIVE_WAITED, collective=self._issue, cuda_event=ended)
        self._work = self._issue = None
        self._on_done()

    def _start(self, sm_allocation: int | None, *, async_op: bool) -> dist.Work | None:
        with self._communicator.explaining(self.kind):
            return self._communicator.issue(
                self.kind,
                self._source,
                self._destination,
                sm_allocation=sm_allocation,
                async_op=async_op,
            )


@dataclass(frozen=True, kw_only=True)
class ParallelGroups:
    """The groups a stage's computation runs over.

    Attributes:
        tp: Tensor-parallel ranks.
        cp: Context-parallel ranks.
    """

    tp: Communicator
    cp: Communicator

    @staticmethod
    def single(device: torch.device) -> "ParallelGroups":
        """Return the groups of a rank that works alone."""
        return ParallelGroups(
            tp=Communicator(CollectiveGroup.TP, None, device=device),
            cp=Communicator(CollectiveGroup.CP, None, device=device),
        )

    @staticmethod
    def from_mesh(
        mesh: DeviceMesh, device: torch.device, *, average: bool = False
    ) -> "ParallelGroups":
        """Return the groups of this rank in a mesh of `build_mesh`.

        Args:
            mesh: The mesh.
            device: This rank's device.
            average: As for `Communicator`; for measuring only.
        """
        return ParallelGroups(
            **{
                name: Communicator(
                    CollectiveGroup(name),
                    mesh.get_group(name) if mesh[name].size() > 1 else None,
                    device=device,
                    average=average,
                )
                for name in ("tp", "cp")
            }
        )


def build_mesh(parallelism: Parallelism, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks, dimensions `pp`, `dp`, `cp`, `tp`, the last varying fastest.

    Tensor-parallel ranks are thus neighbours, on one node.

    Args:
        parallelism: The degrees.
        device_type: `cuda` or `cpu`.

    Raises:
        ConfigError: If the number of processes is not that of the degrees.
    """
    num_processes = dist.get_world_size() if dist.is_initialized() else None
    if num_processes is None:
        num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    degrees = {
        "pp": parallelism.pp,
        "dp": parallelism.dp,
        "cp": parallelism.cp,
        "tp": parallelism.tp,
    }
    if num_processes != parallelism.num_gpus:
        product = " x ".join(f"{name} {degree}" for name, degree in degrees.items())
        raise ConfigError(
            f"{num_processes} processes cannot form {product}: start {parallelism.num_gpus}"
        )
    return init_device_mesh(device_type, tuple(degrees.values()), mesh_dim_names=tuple(degrees))
