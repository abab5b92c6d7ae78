"""Workloads and single partitions the simulator's tests share."""

from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.partitions import build_partitions

REFERENCE_GPU = "A100-SXM4-40GB"


def workload(
    *,
    gpu: str = REFERENCE_GPU,
    model: str = "qwen3-1.7b",
    tp: int = 8,
    cp: int = 1,
    microbatch_size: int = 8,
    seq_len: int = 4096,
) -> Workload:
    return build_workload(
        WorkloadSettings(
            model=model,
            gpu=gpu,
            tp=tp,
            cp=cp,
            pp=2,
            dp=1,
            microbatch_size=microbatch_size,
            seq_len=seq_len,
            num_microbatches=8,
        )
    )


def partition(name: str, **settings: object) -> Partition:
    return build_partitions(workload(**settings))[name]  # type: ignore[arg-type]
