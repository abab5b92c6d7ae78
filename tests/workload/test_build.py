import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.workload import Recompute
from kareus.errors import ConfigError
from kareus.workload.build import (
    Severity,
    WorkloadSettings,
    build_workload,
    check_workload,
    split_layers,
)
from kareus.workload.models import load_model

FIELDS = {field.name for field in dataclasses.fields(WorkloadSettings)}


def settings(**changes: object) -> WorkloadSettings:
    base: dict[str, object] = {
        "model": "llama3.2-3b",
        "gpu": "A100-SXM4-40GB",
        "tp": 8,
        "pp": 2,
        "microbatch_size": 8,
        "seq_len": 4096,
        "num_microbatches": 8,
    }
    return WorkloadSettings(**{**base, **changes})  # type: ignore[arg-type]


def errors(**changes: object) -> dict[str, str]:
    workload, findings = check_workload(settings(**changes))
    found = {f.field: f.message for f in findings if f.severity is Severity.ERROR}
    assert (workload is None) == bool(found)
    return found


def test_a_good_workload_has_no_errors_and_even_stages():
    workload = build_workload(settings())
    assert workload.stage_layers == (14, 14)
    assert workload.parallelism.num_gpus == 16
    assert workload.recompute is Recompute.FULL


# The reference experiments: all ran on A100-SXM4-40GB.
@pytest.mark.parametrize("seq_len", [4096, 8192])
@pytest.mark.parametrize("microbatch_size", [8, 16])
@pytest.mark.parametrize(("cp", "tp"), [(1, 8), (2, 4)])
@pytest.mark.parametrize("model", ["llama3.2_3b", "qwen3_1.7b"])
def test_the_reference_workloads_pass_without_a_warning(model, cp, tp, microbatch_size, seq_len):
    workload, findings = check_workload(
        settings(
            model=model,
            cp=cp,
            tp=tp,
            microbatch_size=microbatch_size,
            seq_len=seq_len,
            stage_layers=(15, 13),
        )
    )
    assert workload is not None
    assert {finding.severity for finding in findings} <= {Severity.NOTE}


def test_the_emulated_70b_workload_passes():
    assert build_workload(settings(model="llama3.3-70b", pp=10, microbatch_size=4))


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"model": "llama9"}, "model", "unknown model"),
        ({"model": ""}, "model", "empty"),
        ({"model": None}, "model", "empty"),
        ({"gpu": "H1000"}, "gpu", "H100-SXM5-80GB"),
        ({"gpu": 5}, "gpu", "empty"),
        ({"tp": 3}, "tp", "does not divide the 8 KV heads"),
        ({"tp": 5}, "tp", "does not divide the 24 attention heads"),
        ({"tp": 16}, "tp", "8 GPUs of a node"),
        ({"cp": 3, "tp": 2}, "cp", "multiple of 2 x cp = 6, such as 4098"),
        ({"cp": 2, "tp": 4, "seq_len": 4098}, "cp", "multiple of 2 x cp = 4, such as 4100"),
        ({"pp": 29}, "pp", "exceeds the 28 layers"),
        ({"stage_layers": (15, 14)}, "stage_layers", "add up to 29"),
        ({"stage_layers": (28,)}, "stage_layers", "names 1 stages"),
        ({"stage_layers": (28, 0)}, "stage_layers", "1 or more"),
        ({"stage_layers": (29, -1)}, "stage_layers", "1 or more"),
        ({"stage_layers": (14.0, 14.0)}, "stage_layers", "whole number"),
        ({"stage_layers": (True, 27)}, "stage_layers", "whole number"),
        ({"stage_layers": "15,13"}, "stage_layers", "not a list"),
        ({"stage_layers": 28}, "stage_layers", "not a list"),
        ({"microbatch_size": 7}, "microbatch_size", "use 6 or 8"),
        ({"microbatch_size": 1}, "microbatch_size", "use 2"),
        ({"num_microbatches": 0}, "num_microbatches", "too small"),
        ({"recompute": "some"}, "recompute", "full or none"),
        ({"recompute": None}, "recompute", "full or none"),
        ({"model": "gpt3-175b", "tp": 1, "pp": 1}, "gpu", "weights alone"),
    ],
)
def test_each_mistake_is_an_error_beside_its_field(changes, field, words):
    found = errors(**changes)
    assert set(found) == {field}
    assert words in found[field]
    with pytest.raises(ConfigError) as caught:
        build_workload(settings(**changes))
    assert str(caught.value) == found[field]


NUMBERS = ["tp", "cp", "pp", "dp", "microbatch_size", "seq_len", "num_microbatches"]


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize(
    "value",
    [0, -2, True, 2.0, float("nan"), "8", None, 10**9, 10**5000, [8]],
    ids=lambda value: (
        repr(value)[:8] if not isinstance(value, int) else f"{float(min(value, 1e9))}"
    ),
)
def test_every_number_is_checked_for_type_and_range(field, value):
    found = errors(**{field: value})
    assert field in found
    assert "\n" not in found[field]
    assert len(found[field]) < 250


def test_several_mistakes_are_all_found_at_once():
    found = errors(model="nope", tp=0, microbatch_size=3, num_microbatches=-1)
    assert set(found) == {"model", "tp", "microbatch_size", "num_microbatches"}


def test_two_kv_heads_on_eight_gpus_are_refused_not_replicated():
    model = dataclasses.replace(load_model("llama3.2-3b"), num_kv_heads=2)
    workload, findings = check_workload(settings(), model=model)
    assert workload is None
    (error,) = [f for f in findings if f.severity is Severity.ERROR]
    assert error.field == "tp"
    assert "2 KV heads" in error.message
    assert "not replicated" in error.message
    assert "use 1, 2" in error.message


def test_thirty_layers_on_four_stages_are_shown():
    model = dataclasses.replace(load_model("llama3.2-3b"), num_layers=30)
    workload, findings = check_workload(settings(pp=4), model=model)
    assert workload is not None
    assert workload.stage_layers == (8, 8, 7, 7)
    (note,) = [f for f in findings if f.field == "stage_layers"]
    assert note.message == "30 layers on 4 stages: 2 x 8, 2 x 7, the larger ones first"


def test_fewer_microbatches_than_stages_are_warned_about():
    workload, findings = check_workload(settings(pp=4, num_microbatches=1))
    assert workload is not None
    (warning,) = [f for f in findings if f.severity is Severity.WARNING]
    assert warning.field == "num_microbatches"
    assert "bubble" in warning.message
    assert "75%" in warning.message


def test_too_little_memory_is_a_warning_with_its_remedy():
    workload, findings = check_workload(
        settings(model="llama3.1-8b", tp=2, pp=2, recompute=Recompute.NONE)
    )
    assert workload is not None
    (warning,) = [f for f in findings if f.severity is Severity.WARNING]
    assert warning.field == "gpu"
    assert "--recompute full" in warning.message


@pytest.mark.parametrize(("gpu", "tp", "cp"), [("A100-SXM4-40GB", 8, 2), ("A40", 4, 1)])
def test_groups_beyond_nvlink_are_warned_about(gpu, tp, cp):
    workload, findings = check_workload(settings(gpu=gpu, tp=tp, cp=cp))
    assert workload is not None
    assert any("NVLink" in f.message for f in findings if f.severity is Severity.WARNING)


def test_assumptions_are_notes():
    _, findings = check_workload(settings(gpu="H100-SXM5-80GB"))
    text = " | ".join(f.message for f in findings if f.severity is Severity.NOTE)
    assert "static power of H100-SXM5-80GB is assumed" in text
    assert "padded to 129024" in text
    assert "weights count once" in text


@given(st.integers(1, 200), st.integers(1, 64))
def test_even_splits_sum_to_the_layers_with_the_remainder_early(num_layers, num_stages):
    split = split_layers(num_layers, num_stages)
    assert sum(split) == num_layers
    assert len(split) == num_stages
    assert max(split) - min(split) <= 1
    assert list(split) == sorted(split, reverse=True)


odd_values = st.one_of(
    st.integers(-3, 20),
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(alphabet="0189 ax.,-", max_size=5),
    st.lists(st.integers(-2, 20), max_size=3),
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(sorted(FIELDS), odd_values)))
def test_whatever_is_entered_is_answered_beside_a_field(changes):
    workload, findings = check_workload(settings(**changes))
    assert {finding.field for finding in findings} <= FIELDS
    assert (workload is None) == any(f.severity is Severity.ERROR for f in findings)
    assert all("\n" not in finding.message for finding in findings)
    severities = [list(Severity).index(finding.severity) for finding in findings]
    assert severities == sorted(severities)
    if workload is not None:
        assert sum(workload.stage_layers) == workload.model.num_layers
