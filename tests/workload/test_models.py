import json
from pathlib import Path

import pytest

from kareus.errors import ConfigError, KareusError, NotFoundError
from kareus.workload.models import (
    CATALOGUE,
    load_model,
    load_model_from_text,
    num_layer_parameters,
    num_parameters,
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_attention_heads": 24,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}


def config(**changes: object) -> str:
    return json.dumps({k: v for k, v in {**LLAMA, **changes}.items() if v != "ABSENT"})


# Parameter counts the model cards state.
@pytest.mark.parametrize(
    ("name", "billions", "digits"),
    [
        ("llama3.2-1b", 1.24, 2),
        ("llama3.2-3b", 3.21, 2),
        ("llama3.1-8b", 8.03, 2),
        ("llama3.3-70b", 70.6, 1),
        ("qwen3-1.7b", 1.7, 1),
        ("qwen3-4b", 4.0, 1),
        ("qwen3-8b", 8.2, 1),
        ("qwen3-14b", 14.8, 1),
        ("qwen3-32b", 32.8, 1),
        ("mistral-7b", 7.25, 2),
        ("gpt3-175b", 175, 0),
    ],
)
def test_catalogue_has_the_published_parameter_counts(name, billions, digits):
    assert round(num_parameters(CATALOGUE[name]) / 1e9, digits) == billions


@pytest.mark.parametrize("name", ["llama3.2-3b", "llama3.2_3b", "Llama-3.2-3B", " LLAMA3.2_3B "])
def test_names_ignore_case_hyphens_and_underscores(name):
    assert load_model(name) is CATALOGUE["llama3.2-3b"]


def test_tiny_suits_trials_on_a_cpu():
    tiny = load_model("tiny")
    assert (tiny.num_layers, tiny.hidden_size) == (4, 64)
    for tp in (1, 2, 4):
        assert tiny.num_heads % tp == tiny.num_kv_heads % tp == tiny.ffn_hidden_size % tp == 0
    assert num_parameters(tiny) < 1e6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3.2-4b", "llama3.2-3b"),
        ("qwen3-7b", "qwen3-1.7b"),
        ("meta-llama/Llama-3.1-8B", "llama3.1-8b"),
        ("zzz", "known are llama3.2-1b"),
    ],
)
def test_an_unknown_model_is_answered_with_suggestions(name, expected):
    with pytest.raises(NotFoundError, match="unknown model") as caught:
        load_model(name)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["\0", "a" * 5000, "line\nbreak", "./absent.json", "~nobody/x"])
def test_impossible_paths_are_answered_in_one_short_line(name):
    with pytest.raises(NotFoundError) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_config_equals_its_catalogue_entry(tmp_path: Path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(config())
    for path in (folder, folder / "config.json"):
        model = load_model(str(path))
        assert model.name == "my-llama"
        assert model.assumptions == ()
        assert num_parameters(model) == num_parameters(CATALOGUE["llama3.2-3b"])
    other = tmp_path / "shape.json"
    other.write_text(config())
    assert load_model(str(other)).name == "shape"


def test_a_folder_without_config_is_refused(tmp_path: Path):
    with pytest.raises(NotFoundError, match=r"no config\.json in the folder"):
        load_model(str(tmp_path))


def test_head_dim_of_the_file_wins_over_the_quotient():
    text = config(
        architectures=["Qwen3ForCausalLM"],
        hidden_size=5120,
        num_attention_heads=64,
        head_dim=128,
        intermediate_size=25600,
        num_hidden_layers=64,
        vocab_size=151936,
        tie_word_embeddings=False,
    )
    model = load_model_from_text(text, "config.json")
    assert model.head_dim == 128
    assert model.qk_norm
    assert num_parameters(model) == num_parameters(CATALOGUE["qwen3-32b"])


@pytest.mark.parametrize("absent", ["ABSENT", None])
def test_what_is_missing_or_null_is_assumed_and_stated(absent):
    model = load_model_from_text(
        config(num_key_value_heads=absent, head_dim=absent, tie_word_embeddings=absent), "x"
    )
    assert model.num_kv_heads == 24
    assert model.head_dim == 128
    assert not model.tied_embeddings
    text = " | ".join(model.assumptions)
    for field in ("num_key_value_heads", "head_dim", "tie_word_embeddings"):
        assert f"{field} not given" in text


def test_gpt2_is_read_with_its_own_field_names():
    model = load_model_from_text(
        json.dumps(
            {
                "architectures": ["GPT2LMHeadModel"],
                "n_embd": 768,
                "n_head": 12,
                "n_layer": 12,
                "n_inner": None,
                "vocab_size": 50257,
            }
        ),
        "gpt2",
    )
    assert model.family == "gpt"
    assert model.ffn_hidden_size == 3072
    assert not model.gated_mlp
    assert model.tied_embeddings
    # 124 M parameters with biases and positions (0.8 M), which are not costed.
    assert num_parameters(model) == pytest.approx(124e6, rel=0.01)


def test_model_type_stands_in_for_absent_architectures():
    model = load_model_from_text(config(architectures="ABSENT", model_type="mistral"), "x")
    assert model.family == "mistral"


@pytest.mark.parametrize("text", ["\ufeff" + config(), b"\xef\xbb\xbf" + config().encode()])
def test_a_byte_order_mark_is_tolerated(text):
    assert load_model_from_text(text, "x").num_layers == 28


def test_ignored_settings_are_stated():
    model = load_model_from_text(
        config(sliding_window=4096, attention_bias=True, quantization_config={"bits": 4}), "x"
    )
    text = " | ".join(model.assumptions)
    assert "sliding_window = 4096 is ignored" in text
    assert "biases" in text
    assert "bf16" in text
    unused = load_model_from_text(config(sliding_window=4096, use_sliding_window=False), "x")
    assert unused.assumptions == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "mixture of experts"),
        ({"num_local_experts": 8}, "num_local_experts = 8"),
        ({"num_experts": 64}, "num_experts = 64"),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "DeepseekV3ForCausalLM"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"architectures": [1]}, "architectures"),
        ({"architectures": []}, "model_type"),
        ({"architectures": "ABSENT", "model_type": "bert"}, "bert"),
        ({"architectures": "ABSENT", "model_type": ["llama"]}, "model_type"),
    ],
)
def test_unsupported_architectures_are_refused_by_name(changes, named):
    with pytest.raises(ConfigError) as caught:
        load_model_from_text(config(**changes), "some.json")
    assert named in str(caught.value)
    assert "some.json" in str(caught.value)


FIELDS = [
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
]
ABSURD = [-1, 0, True, "64", 1.5, 64.0, float("nan"), float("inf"), 10**12, 10**4000, [], {}]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", ABSURD, ids=lambda value: repr(value)[:12])
def test_absurd_figures_are_refused_naming_field_and_file(field, value):
    with pytest.raises(ConfigError) as caught:
        load_model_from_text(config(**{field: value}), "some.json")
    message = str(caught.value)
    assert field in message
    assert "some.json" in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    "field", [field for field in FIELDS if field not in ("num_key_value_heads", "head_dim")]
)
@pytest.mark.parametrize("value", ["ABSENT", None])
def test_missing_fields_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"field {field} is missing"):
        load_model_from_text(config(**{field: value}), "some.json")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_key_value_heads": 7}, "num_key_value_heads = 7"),
        ({"num_key_value_heads": 48}, "num_key_value_heads = 48"),
        ({"head_dim": None, "hidden_size": 3073}, "hidden_size = 3073"),
        ({"head_dim": 127}, "odd"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ],
)
def test_contradictions_are_refused(changes, named):
    with pytest.raises(ConfigError) as caught:
        load_model_from_text(config(**changes), "x")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not json",
        "{",
        "[1, 2]",
        "null",
        "42",
        '"text"',
        "[" * 100_000,
        '{"hidden_size": ' + "9" * 5000 + "}",
        "import os",
        b"\xff\xfe\x00{",
        b"\x80\x04pickle",
        " " * (1 << 20) + "{}",
    ],
    ids=lambda content: repr(content)[:16],
)
def test_what_is_no_config_is_refused_in_one_line(content, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_model(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(KareusError):
        load_model_from_text(content, "upload.json")


def test_names_of_imported_models_are_fit_for_files():
    assert load_model_from_text(config(), "../my model;rm.json").name == "my-model-rm"


def test_layer_parameters_follow_the_matrices():
    model = CATALOGUE["qwen3-8b"]
    expected = 4096 * 128 * (32 + 8 + 8 + 32) + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    assert num_layer_parameters(model) == expected
