"""Reading a Hugging Face `config.json` into a model shape, family by family.

What a family's configuration does not state is filled with that family's own default and listed in
the model's `assumptions`; what would change the computation and is not modelled is refused by name.
Nothing of the file is trusted: every figure is checked for type and range before use.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from kareus.core.workload import Model
from kareus.errors import ConfigError

MAX_CONFIG_BYTES = 1 << 20
"""A model configuration is a few kilobytes; anything beyond this is another file."""


@dataclass(frozen=True, kw_only=True)
class _Family:
    """How one architecture spells its shape.

    `tied` is what the architecture's configuration class assumes where the file is silent.
    """

    name: str
    layers: str = "num_hidden_layers"
    hidden: str = "hidden_size"
    ffn: str = "intermediate_size"
    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"
    gated_mlp: bool = True
    qk_norm: bool = False
    tied: bool = False
    notes: tuple[str, ...] = ()


_FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _Family(name="llama"),
    "MistralForCausalLM": _Family(name="mistral"),
    "Qwen2ForCausalLM": _Family(name="qwen2", notes=("QKV biases are not costed",)),
    "Qwen3ForCausalLM": _Family(name="qwen3", qk_norm=True),
    "GPT2LMHeadModel": _Family(
        name="gpt",
        layers="n_layer",
        hidden="n_embd",
        ffn="n_inner",
        heads="n_head",
        kv_heads=None,
        gated_mlp=False,
        tied=True,
        notes=("learned positions and biases are not costed",),
    ),
}

_ARCHITECTURE_OF_TYPE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}

_EXPERT_FIELDS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
)

# Ten times and more beyond any public model: such a figure is a mistake, not a model.
_LIMITS = {
    "layers": 10_000,
    "hidden": 1_048_576,
    "ffn": 8_388_608,
    "heads": 16_384,
    "head_dim": 8_192,
    "vocab": 16_777_216,
}


def model_from_config(content: str | bytes, *, name: str, place: str) -> Model:
    """Return the shape a configuration describes.

    Args:
        content: The file's content; a byte-order mark is tolerated.
        name: Name for the model.
        place: Where the content comes from, for messages.

    Raises:
        ConfigError: If it is no JSON object, of an unsupported architecture (mixtures of experts
            included), or a field is missing or absurd.
    """
    config = _parse(content, place)
    architecture = _architecture(config, place)
    family = _FAMILIES[architecture]
    reader = _Reader(config=config, place=place)
    assumptions = list(family.notes)

    hidden = reader.positive(family.hidden, _LIMITS["hidden"])
    heads = reader.positive(family.heads, _LIMITS["heads"])
    kv_heads = reader.optional(family.kv_heads, _LIMITS["heads"]) if family.kv_heads else heads
    if kv_heads is None:
        assumptions.append(f"{family.kv_heads} not given: taken as {family.heads} = {heads}")
        kv_heads = heads
    if heads % kv_heads:
        reader.refuse(
            family.kv_heads or family.heads, kv_heads, f"must divide {family.heads} = {heads}"
        )
    head_dim = reader.optional("head_dim", _LIMITS["head_dim"])
    if head_dim is None:
        if hidden % heads:
            reader.refuse(
                family.hidden,
                hidden,
                f"is no multiple of {family.heads} = {heads} and head_dim is not given",
            )
        head_dim = hidden // heads
        if family.name != "gpt":
            assumptions.append(
                f"head_dim not given: taken as {family.hidden} / {family.heads} = {head_dim}"
            )
    if head_dim % 2 and family.name != "gpt":
        reader.refuse("head_dim", head_dim, "is odd: rotary positions pair its elements")
    ffn = reader.optional(family.ffn, _LIMITS["ffn"]) if family.name == "gpt" else None
    if ffn is None and family.name == "gpt":
        ffn = 4 * hidden
        assumptions.append(f"{family.ffn} not given: taken as 4 x {family.hidden} = {ffn}")
    if ffn is None:
        ffn = reader.positive(family.ffn, _LIMITS["ffn"])
    tied = reader.flag("tie_word_embeddings")
    if tied is None:
        tied = family.tied
        assumptions.append(
            f"tie_word_embeddings not given: taken as {str(tied).lower()}, the family's default"
        )
    assumptions.extend(_ignored(config, reader))
    return Model(
        name=re.sub(r"[^\w.\-]+", "-", name).strip("-") or "model",
        family=family.name,
        num_layers=reader.positive(family.layers, _LIMITS["layers"]),
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=reader.positive("vocab_size", _LIMITS["vocab"]),
        gated_mlp=family.gated_mlp,
        qk_norm=family.qk_norm,
        tied_embeddings=tied,
        assumptions=tuple(assumptions),
    )


def _parse(content: str | bytes, place: str) -> dict[str, Any]:
    """The JSON object of the content, or a refusal."""
    if len(content) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{place}: larger than 1 MiB: this is no model's config.json")
    if isinstance(content, bytes):
        try:
            content = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{place}: not UTF-8 text (byte {error.start}): give the model's config.json"
            ) from error
    try:
        config = json.loads(content.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{place}: not JSON (line {error.lineno}, column {error.colno}: {error.msg}): "
            "give the model's config.json"
        ) from error
    except (ValueError, RecursionError) as error:  # absurdly long numbers, absurd nesting
        raise ConfigError(
            f"{place}: not usable JSON ({type(error).__name__}): give the model's config.json"
        ) from error
    if not isinstance(config, dict):
        raise ConfigError(
            f"{place}: holds a JSON {_kind(config)}, not an object: give the model's config.json"
        )
    return config


def _architecture(config: Mapping[str, Any], place: str) -> str:
    """The supported architecture the configuration names, or a refusal naming what it is."""
    supported = f"supported are {', '.join(_FAMILIES)}"
    named = config.get("architectures")
    if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str):
        architecture = named[0]
    elif named is None or named == []:
        model_type = config.get("model_type")
        if not isinstance(model_type, str):
            raise ConfigError(
                f"{place}: neither field architectures nor field model_type names what it is: "
                f"give a Hugging Face config.json; {supported}"
            )
        architecture = _ARCHITECTURE_OF_TYPE.get(model_type, model_type)
    else:
        raise ConfigError(
            f"{place}: field architectures = {_shown(named)} must be a list of one name; "
            f"{supported}"
        )
    if re.search(r"moe|mixtral", architecture, re.IGNORECASE):
        raise ConfigError(
            f"{place}: architecture {_shown(architecture)} is a mixture of experts, which is not "
            f"modelled: choose a dense model; {supported}"
        )
    if architecture not in _FAMILIES:
        raise ConfigError(
            f"{place}: architecture {_shown(architecture)} is not supported; {supported}"
        )
    for field in _EXPERT_FIELDS:
        value = config.get(field)
        if value is not None and value not in (0, 1):
            raise ConfigError(
                f"{place}: field {field} = {_shown(value)} makes this {architecture} a mixture of "
                "experts, which is not modelled: choose a dense model"
            )
    return architecture


def _ignored(config: Mapping[str, Any], reader: "_Reader") -> list[str]:
    """What the configuration states and the shape does not carry, in words."""
    ignored = []
    window = config.get("sliding_window")
    if isinstance(window, int) and window and config.get("use_sliding_window", True) is not False:
        ignored.append(
            f"sliding_window = {window} is ignored: attention is costed as full causal attention"
        )
    if reader.flag("attention_bias") or reader.flag("mlp_bias"):
        ignored.append("biases are not costed")
    if isinstance(config.get("quantization_config"), dict):
        ignored.append("quantization_config is ignored: training is costed in bf16")
    return ignored


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """Takes checked fields from a configuration."""

    config: Mapping[str, Any]
    place: str

    def refuse(self, field: str, value: object, why: str) -> NoReturn:
        """Refuse a field's value in one line."""
        raise ConfigError(f"{self.place}: field {field} = {_shown(value)} {why}")

    def positive(self, field: str, limit: int) -> int:
        """A whole number from 1 to the limit."""
        value = self.optional(field, limit)
        if value is None:
            raise ConfigError(
                f"{self.place}: field {field} is missing: give the model's complete config.json"
            )
        return value

    def optional(self, field: str, limit: int) -> int | None:
        """A whole number from 1 to the limit; None where the field is absent or null."""
        value = self.config.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(field, value, f"must be a whole number, not a {_kind(value)}")
        if not 1 <= value <= limit:
            self.refuse(field, value, f"must be from 1 to {limit}")
        return value

    def flag(self, field: str) -> bool | None:
        """True or false; None where the field is absent or null."""
        value = self.config.get(field)
        if value is not None and not isinstance(value, bool):
            self.refuse(field, value, f"must be true or false, not a {_kind(value)}")
        return value


def _kind(value: object) -> str:
    """What JSON calls the value's type."""
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
    if isinstance(value, float):
        return "number that is not whole" if value == value else "NaN"
    return kinds.get(type(value), "null" if value is None else "object")


def _shown(value: object) -> str:
    """The value as JSON would show it, on one line and short."""
    try:
        text = json.dumps(value)
    except ValueError:  # a number too long to print
        return "(a number too long to show)"
    return text if len(text) <= 60 else text[:57] + "..."
