"""What a group of ranks makes of torchrun's words."""

from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from kareus.profiling.group import killed_ranks


def torchrun_log(folder: Path, exit_codes: dict[int, int], first: int) -> str:
    """What torchrun writes where ranks ended, one of them first."""
    failures = {}
    for rank, code in exit_codes.items():
        failures[rank] = ProcessFailure(
            local_rank=rank, pid=100 + rank, exitcode=code, error_file=str(folder / str(rank))
        )
        failures[rank].timestamp = 10 if rank == first else 20
    seen = f"failed (exitcode: {exit_codes[first]}) local_rank: {first} (pid: 1) of binary: python"
    return f"{seen}\n{ChildFailedError('kareus.profiling.worker', failures)}"


@pytest.mark.parametrize(
    ("exit_codes", "first", "killed"),
    [
        ({1: -9}, 1, [(1, 9)]),
        ({0: 1, 1: -9}, 0, [(1, 9)]),
        ({0: 1, 1: -9}, 1, [(1, 9)]),
        ({0: -6, 1: -9}, 1, [(0, 6), (1, 9)]),
        ({0: -15, 1: -11}, 1, [(1, 11)]),
        ({0: 1, 1: 1}, 0, []),
    ],
)
def test_killed_ranks_are_told_by_number_the_first_one_last(
    tmp_path: Path, exit_codes: dict[int, int], first: int, killed: list[tuple[int, int]]
) -> None:
    assert killed_ranks(torchrun_log(tmp_path, exit_codes, first)) == killed
