import pytest

from kareus.core.workload import Workload
from kareus.workload.build import WorkloadSettings, build_workload
from tests.standin.plugin import standin, standin_library

__all__ = ["standin", "standin_library"]


def make_workload(*, tp: int = 1, cp: int = 1, gpu: str = "A100-SXM4-40GB") -> Workload:
    return build_workload(
        WorkloadSettings(
            model="tiny", gpu=gpu, tp=tp, cp=cp, pp=1, dp=1,
            microbatch_size=2, seq_len=32, num_microbatches=2,
        )
    )  # fmt: skip


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases short enough for tests; what they measure is of no interest."""
    for phase, seconds in (("SETTLE", "0.05"), ("COOLDOWN", "0"), ("WARMUP", "0.02"),
                           ("WINDOW", "0.1")):  # fmt: skip
        monkeypatch.setenv(f"KAREUS_{phase}_S", seconds)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
