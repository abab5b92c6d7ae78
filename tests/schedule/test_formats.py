import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import Direction
from kareus.core.pipeline import one_f_one_b
from kareus.core.workload import Recompute
from kareus.errors import ScheduleError
from kareus.schedule.formats import (
    MAX_FILE_BYTES,
    NOT_OVERLAPPED,
    Costs,
    LaunchEntry,
    decode,
    format_frequencies,
    format_launches,
    frequency_file_name,
    launch_file_name,
    parse_entry,
    parse_frequencies,
    parse_launches,
    partition_layout,
    read_frequencies,
    read_launches,
)
from tests.reference import reference_data

COSTS = Costs(plan=7, change_j=0.5, effective_energy_j=1192.4, pipeline_energy_j=2363.9)


def test_file_names_carry_five_digits():
    assert frequency_file_name(122) == "freqs_pipeline_00122.py"
    assert launch_file_name(99999) == "scheds_pipeline_99999.py"


@pytest.mark.parametrize(
    "name",
    [
        "freqs_pipeline_00324.py",
        "cp2_freqs_pipeline_00379.py",
        "perseus_llama3.2_3b_cp1_tp8_freqs_pipeline_00122.py",
    ],
)
def test_published_clocks_survive_byte_for_byte(name):
    path = reference_data(f"schedules/{name}")
    read = read_frequencies(path, one_f_one_b(2, 8))
    assert read.costs is not None
    assert format_frequencies(read.clocks, read.costs) == path.read_text()


def test_published_launch_points_survive_byte_for_byte():
    path = reference_data("schedules/scheds_pipeline_00324.py")
    read = read_launches(path, one_f_one_b(2, 8))
    assert read.layout == partition_layout(Recompute.FULL, cp=1)
    assert read.costs is not None
    assert read.costs.plan == 324
    assert read.costs.pipeline_energy_j == pytest.approx(2333.924, abs=1e-3)
    assert format_launches(read.launches, read.layout, read.costs) == path.read_text()


def test_operator_indices_are_read_as_slots_and_written_as_names():
    read = read_launches(reference_data("schedules/cp2_scheds_pipeline_00379.py"))
    assert read.layout == partition_layout(Recompute.FULL, cp=2)
    direction, entries = read.launches[0][0]
    assert direction is Direction.FORWARD
    assert [str(entry) for entry in entries] == [
        "norm_0-none-18-1024",
        "linear_0-none-11-1024",
        "linear_0-none-1-1024",
        "attn_0-none-27-1024",
        "norm_0-none-18-1024",
    ]
    assert read.costs is not None
    text = format_launches(read.launches, read.layout, read.costs)
    assert parse_launches(text, "again").launches == read.launches


def test_documented_order_of_partitions():
    assert partition_layout(Recompute.FULL, cp=2).backward == (
        *("fwd_qkv_ar", "fwd_qkv_ag", "fwd_ao_ag", "fwd_ao_ar", "fwd_mlp"),
        *("bwd_qkv_ar", "bwd_qkv_rs", "bwd_a_rs", "bwd_a_ag", "bwd_o_ag", "bwd_o_ar", "bwd_mlp"),
    )
    assert partition_layout(Recompute.NONE, cp=1).backward == ("bwd_attn", "bwd_mlp")


def test_without_recompute_one_pair_per_microbatch():
    pipeline = one_f_one_b(2, 3)
    layout = partition_layout(Recompute.NONE, cp=1)
    launches = tuple(
        tuple((i.direction, (NOT_OVERLAPPED,) * len(layout.names(i.direction))) for i in stage)
        for stage in pipeline.stages
    )
    text = format_launches(launches, layout, COSTS)
    assert text.splitlines()[1].count("(('forward', ") == 3
    assert "none-none-20-1024" in text
    assert parse_launches(text, "pairs", pipeline).launches == launches


points = st.sampled_from(list(LaunchPoint))
entries = st.builds(LaunchEntry, launch_point=points, sm_allocation=st.integers(1, 132))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), pp=st.integers(1, 4), microbatches=st.integers(1, 6))
def test_round_trip_of_any_schedule(data, pp, microbatches):
    pipeline = one_f_one_b(pp, microbatches)
    layout = partition_layout(
        data.draw(st.sampled_from(Recompute)), cp=data.draw(st.sampled_from([1, 2]))
    )
    clocks = tuple(
        tuple((i.direction, data.draw(st.integers(210, 1980))) for i in stage)
        for stage in pipeline.stages
    )
    launches = tuple(
        tuple(
            (i.direction, tuple(data.draw(entries) for _ in layout.names(i.direction)))
            for i in stage
        )
        for stage in pipeline.stages
    )
    frequencies = parse_frequencies(format_frequencies(clocks, COSTS), "f", pipeline)
    assert frequencies.clocks == clocks
    assert frequencies.costs == COSTS
    read = parse_launches(format_launches(launches, layout, COSTS), "s", pipeline)
    assert (read.launches, read.layout, read.costs) == (launches, layout, COSTS)


GOOD = "[[('forward', 900), ('backward', 930)], [('forward', 900), ('backward', 930)]]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__import__('os').system('true')", "not a Python list literal"),
        ("[x for x in ()]", "not a Python list literal"),
        ("[[('forward', 900),", "not a Python list literal"),
        ("[" * 3000, "not a Python list literal"),
        ("{'a': 1}", "a list per stage"),
        ("[]", "a list per stage"),
        ("[[]]", "stage 0: not a list of instructions"),
        (GOOD.replace("930", "930.5", 1), "stage 0, position 1: clock 930.5"),
        (GOOD.replace("930", "True", 1), "stage 0, position 1: clock True"),
        (GOOD.replace("930", "-930", 1), "stage 0, position 1: clock -930"),
        (GOOD.replace("'forward'", "'sideways'", 1), "position 0: instruction 'sideways'"),
        (GOOD.replace("('forward', 900)", "'forward'", 1), "position 0: 'forward' is not a pair"),
        (
            "[[('backward', 900), ('forward', 930)]]",
            "stage 0, position 0: backward where the 1f1b order has forward of microbatch 0",
        ),
        (
            "[[('forward', 900), ('backward', 930)], [('forward', 900)]]",
            "stage 1: holds 1 instructions, expected 2",
        ),
    ],
)
def test_refused_clock_files_name_the_place(text, words):
    with pytest.raises(ScheduleError, match=r"f\.py") as caught:
        parse_frequencies(text, "f.py")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refused_for_another_pipeline():
    with pytest.raises(ScheduleError, match="holds 2 stages, the pipeline has 4"):
        parse_frequencies(GOOD, "f.py", one_f_one_b(4, 1))
    with pytest.raises(ScheduleError, match="stage 0: holds 2 instructions, expected 16"):
        parse_frequencies(GOOD, "f.py", one_f_one_b(2, 8))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("norm_0-none-12", "is not 'launch-end-SMs-threads'"),
        ("swish_0-none-12-1024", "launch point 'swish_0'"),
        ("norm_0-none-0-1024", "1 to 1024 SMs"),
        ("norm_0-none-12-4096", "1 to 1024 SMs"),
        ("9-9-12-1024", "offers operators 0 to 5"),
        ("4-2-12-1024", "ends before its launch"),
        (12, "is not 'launch-end-SMs-threads'"),
    ],
)
def test_refused_strings(text, words):
    with pytest.raises(ScheduleError) as caught:
        parse_entry(text, "fwd_attn", "s.py, stage 1, position 3")
    assert str(caught.value).startswith("s.py, stage 1, position 3: ")
    assert words in str(caught.value)


def test_undocumented_indices_are_refused_rather_than_guessed():
    with pytest.raises(ScheduleError, match="operator indices of bwd_attn"):
        parse_entry("2-5-3-1024", "bwd_attn", "s.py")


def test_wrong_number_of_partitions():
    text = "[[('forward', 'norm_0-none-3-1024'), ('backward', 'norm_0-none-3-1024')]]"
    with pytest.raises(ScheduleError, match="lists 1 partitions, expected 2: fwd_attn, fwd_mlp"):
        parse_launches(text, "s.py")


def test_byte_order_mark_and_windows_lines_are_read():
    assert parse_frequencies(
        decode(b"\xef\xbb\xbf[\r\n[('forward', 900), ('backward', 900)]]", "f"), "f"
    )


def test_large_and_binary_files_are_refused(tmp_path):
    with pytest.raises(ScheduleError, match="larger than"):
        decode(b"[" * (MAX_FILE_BYTES + 1), "f.py")
    with pytest.raises(ScheduleError, match="not UTF-8"):
        decode(b"\xff\xfe", "f.py")
    with pytest.raises(ScheduleError, match=r"missing\.py: cannot be read"):
        read_frequencies(tmp_path / "missing.py")
