from collections.abc import Callable
from pathlib import Path

import pytest

from kareus.core.partition import Direction
from kareus.core.plan import Method
from kareus.errors import MeasurementError
from kareus.simulate.calibration import reference_gpu
from kareus.simulate.records import RecordedPlan, read_frontiers, read_sweep

GPU = reference_gpu()

FRONTIERS = """\
model,cp,tp,microbatch_size,seq_len,method,release,plan,iteration_time_s,effective_energy_j,total_energy_j
llama3.2_3b,1,8,8,4096,perseus,artifact,7,5.0,1000,1850
llama3.2_3b,1,8,8,4096,kareus,artifact,1,4.0,900,1580
"""
FREQUENCIES = """\
model,cp,tp,microbatch_size,seq_len,method,release,plan,stage,position,instruction,frequency_mhz
llama3.2_3b,1,8,8,4096,perseus,artifact,7,0,0,forward,1410
llama3.2_3b,1,8,8,4096,perseus,artifact,7,0,1,backward,1200
llama3.2_3b,1,8,8,4096,perseus,artifact,7,1,0,forward,1110
llama3.2_3b,1,8,8,4096,perseus,artifact,7,1,1,backward,900
"""
_REPEATS = ",".join(f"{i}:time (s),{i}:rank0 energy (J),{i}:rank1 energy (J)" for i in range(2))
SWEEP = (
    f"overlap_start,overlap_end,comm_sm_number,comm_block_size,{_REPEATS}"
    + """
-1,-1,8,1024,0.003,0.8,0.9,0.005,1.0,1.1
0,6,8,512,0.003,0.8,0.9,0.003,0.8,0.9
"""
)


def _perseus(method: Method) -> bool:
    return method is Method.PERSEUS


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str, str], tuple[RecordedPlan, ...]]:
    def read_texts(frontiers: str, frequencies: str) -> tuple[RecordedPlan, ...]:
        (tmp_path / "frontiers.csv").write_text(frontiers, encoding="utf-8")
        (tmp_path / "frequencies.csv").write_text(frequencies, encoding="utf-8")
        return read_frontiers(
            tmp_path / "frontiers.csv", tmp_path / "frequencies.csv", GPU, wanted=_perseus
        )

    return read_texts


def test_a_plan_is_read_with_its_clocks(read) -> None:
    (plan,) = read(FRONTIERS, FREQUENCIES)
    assert plan.key.model == "llama3.2-3b"
    assert plan.method is Method.PERSEUS
    assert plan.total_energy_j == 1850
    assert plan.clocks_mhz == (
        ((Direction.FORWARD, 1410), (Direction.BACKWARD, 1200)),
        ((Direction.FORWARD, 1110), (Direction.BACKWARD, 900)),
    )


def test_names_may_be_spelt_either_way_and_files_come_from_windows(read) -> None:
    changed = "\ufeff" + FRONTIERS.replace("llama3.2_3b", "Llama3.2-3B").replace("\n", "\r\n")
    assert read(changed, FREQUENCIES)[0].key.model == "llama3.2-3b"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("total_energy_j", "total_mj", "column total_energy_j is missing"),
        ("5.0,1000,1850", "nan,1000,1850", "row 1: iteration_time_s is nan"),
        ("5.0,1000,1850", "0,1000,1850", "row 1: iteration_time_s is 0"),
        ("5.0,1000,1850", "5.0,1000,", "row 1: total_energy_j is empty"),
        ("5.0,1000,1850", "5.0,1000,-3", "row 1: total_energy_j is -3"),
        ("5.0,1000,1850", "five,1000,1850", "row 1: iteration_time_s is 'five'"),
        ("5.0,1000,1850", "5000,1000,1850", "row 1: .* impossible for A100"),
        ("5.0,1000,1850", "5.0,1e6,1.85e6", "row 1: .*185e|1.85e\\+05 W|impossible"),
        ("4096,perseus", "4096,magic", "row 1: method is 'magic'"),
        ("1,8,8,4096,perseus", "1,8.5,8,4096,perseus", "row 1: tp is '8.5'"),
        ("1,8,8,4096,perseus", "0,8,8,4096,perseus", "row 1: cp is 0"),
        ("artifact,7,", "artifact,8,", "row 1: plan 8 .* has no clocks"),
        ("1850\n", "1850,9\n", "row 1: more fields"),
    ],
)
def test_bad_frontier_rows_are_refused_by_row(read, old: str, new: str, words: str) -> None:
    assert old in FRONTIERS
    with pytest.raises(MeasurementError, match=words):
        read(FRONTIERS.replace(old, new, 1), FREQUENCIES)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0,0,forward,1410", "0,0,forward,1410000", "row 1: frequency_mhz is 1410000"),
        ("0,0,forward,1410", "0,0,forward,1", "row 1: frequency_mhz is 1:"),
        ("0,0,forward,1410", "0,0,sideways,1410", "row 1: instruction is 'sideways'"),
        ("0,1,backward", "0,0,backward", "row 2: stage 0 position 0 .* twice"),
        ("1,1,backward", "1,2,backward", "gaps"),
        ("frequency_mhz", "clock", "column frequency_mhz is missing"),
    ],
)
def test_bad_frequency_rows_are_refused_by_row(read, old: str, new: str, words: str) -> None:
    assert old in FREQUENCIES
    with pytest.raises(MeasurementError, match=words):
        read(FRONTIERS, FREQUENCIES.replace(old, new, 1))


def test_repeated_plans_are_refused(read) -> None:
    line = FRONTIERS.splitlines()[1]
    with pytest.raises(MeasurementError, match=r"row 3: plan 7 .* repeats row 1"):
        read(FRONTIERS + line + "\n", FREQUENCIES)


def test_empty_and_missing_files_are_refused(read, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="no rows"):
        read(FRONTIERS.splitlines()[0] + "\n", FREQUENCIES)
    with pytest.raises(MeasurementError, match="no such file"):
        read_frontiers(tmp_path / "none.csv", None, GPU, wanted=_perseus)


def test_a_sweep_is_averaged_over_repeats_and_ranks(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_text(SWEEP, encoding="utf-8")
    first, second = read_sweep(tmp_path / "sweep.csv", GPU)
    assert first.time_s == pytest.approx(0.004)
    assert first.energy_j == pytest.approx(0.95)
    assert (second.overlap_start, second.overlap_end) == (0, 6)
    assert second.threads_per_block == 512


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0.8,0.9,0.005", "800,900,0.005", "row 1: .* impossible"),
        ("0,6,8,512", "6,0,8,512", "row 2: overlap_start 6"),
        ("0,6,8,512", "0,6,108,512", "row 2: comm_sm_number is 108"),
        ("0,6,8,512", "0,6,8,100", "row 2: comm_block_size is 100"),
        ("-1,-1,8,1024,0.003", "-1,-1,8,1024,inf", "row 1: 0:time"),
    ],
)
def test_bad_sweep_rows_are_refused_by_row(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in SWEEP
    (tmp_path / "sweep.csv").write_text(SWEEP.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(MeasurementError, match=words):
        read_sweep(tmp_path / "sweep.csv", GPU)
