"""Model shapes: the catalogue, and loading by name or from a Hugging Face `config.json`.

Shapes are those of the public `config.json` files (base models), so tied embeddings follow them
too: Llama 3.2 1B/3B and Qwen3 1.7B/4B tie. How ties count: the weight is one parameter matrix
(`num_parameters`), the head's work stays on the last stage, and with more than one stage the copy
the last stage keeps is memory of that stage only (`kareus.workload.memory`).
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kareus.core.workload import Model
from kareus.errors import ConfigError, NotFoundError
from kareus.workload.hf_config import MAX_CONFIG_BYTES, model_from_config
from kareus.workload.names import find, suggestion

_LLAMA3_VOCAB = 128256
_QWEN3_VOCAB = 151936


def _llama(
    name: str, layers: int, hidden: int, ffn: int, heads: int, head_dim: int, *, tied: bool
) -> Model:
    """A Llama 3 shape; all have 8 key/value heads."""
    return Model(
        name=name,
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=head_dim,
        vocab_size=_LLAMA3_VOCAB,
        tied_embeddings=tied,
    )


def _qwen3(name: str, layers: int, hidden: int, ffn: int, heads: int, *, tied: bool) -> Model:
    """A dense Qwen3 shape; all have 8 key/value heads of width 128 and normalise q and k."""
    return Model(
        name=name,
        family="qwen3",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=_QWEN3_VOCAB,
        qk_norm=True,
        tied_embeddings=tied,
    )


_MODELS = (
    _llama("llama3.2-1b", 16, 2048, 8192, 32, 64, tied=True),
    _llama("llama3.2-3b", 28, 3072, 8192, 24, 128, tied=True),
    _llama("llama3.1-8b", 32, 4096, 14336, 32, 128, tied=False),
    _llama("llama3.3-70b", 80, 8192, 28672, 64, 128, tied=False),
    _qwen3("qwen3-1.7b", 28, 2048, 6144, 16, tied=True),
    _qwen3("qwen3-4b", 36, 2560, 9728, 32, tied=True),
    _qwen3("qwen3-8b", 36, 4096, 12288, 32, tied=False),
    _qwen3("qwen3-14b", 40, 5120, 17408, 40, tied=False),
    _qwen3("qwen3-32b", 64, 5120, 25600, 64, tied=False),
    # Mistral 7B v0.3: no sliding window, 32768 tokens of vocabulary (v0.1 had 32000).
    Model(
        name="mistral-7b",
        family="mistral",
        num_layers=32,
        hidden_size=4096,
        ffn_hidden_size=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=32768,
    ),
    # Brown et al. 2020, table 2.1: plain GELU MLP of 4 x hidden, the vocabulary of GPT-2, tied.
    Model(
        name="gpt3-175b",
        family="gpt",
        num_layers=96,
        hidden_size=12288,
        ffn_hidden_size=49152,
        num_heads=96,
        num_kv_heads=96,
        head_dim=128,
        vocab_size=50257,
        gated_mlp=False,
        tied_embeddings=True,
        assumptions=("learned positions and biases are not costed",),
    ),
    # For trials on a CPU: divisible by tp 1, 2, 4, with grouped queries.
    Model(
        name="tiny",
        family="llama",
        num_layers=4,
        hidden_size=64,
        ffn_hidden_size=256,
        num_heads=8,
        num_kv_heads=4,
        head_dim=8,
        vocab_size=512,
    ),
)

CATALOGUE: Mapping[str, Model] = MappingProxyType({model.name: model for model in _MODELS})


def load_model(name_or_path: str) -> Model:
    """Return the model of a catalogue name, of a `config.json`, or of a folder that holds one.

    The catalogue goes first; names are compared without case, hyphens and underscores.

    Raises:
        NotFoundError: If it is neither a catalogue name nor an existing path.
        ConfigError: If the file is not the configuration of a supported dense transformer.
    """
    name = find(name_or_path, CATALOGUE)
    if name is not None:
        return CATALOGUE[name]
    path = _config_path(name_or_path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}): check it") from error
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return model_from_config(content, name=name or path.stem, place=str(path))


def _config_path(name_or_path: str) -> Path:
    """The configuration file a path stands for; refused where there is none."""
    shown = repr(name_or_path if len(name_or_path) <= 200 else name_or_path[:197] + "...")
    try:
        path = Path(name_or_path).expanduser()
        if path.is_file():
            return path
        if path.is_dir():
            if (path / "config.json").is_file():
                return path / "config.json"
            raise NotFoundError(f"no config.json in the folder {shown}: give a model's folder")
    except (OSError, RuntimeError, ValueError) as error:  # a name no path can have, no permission
        raise NotFoundError(
            f"no readable model configuration at {shown} ({type(error).__name__}): "
            f"give a config.json or a catalogue name such as {_MODELS[1].name}"
        ) from error
    if name_or_path.endswith(".json") or name_or_path.startswith((".", "/", "~")):
        raise NotFoundError(
            f"no model configuration at {shown}: give an existing config.json, "
            f"a folder that holds one, or a catalogue name such as {_MODELS[1].name}"
        )
    raise NotFoundError(
        f"unknown model {shown}: {suggestion(name_or_path, CATALOGUE)} "
        "(a path to a Hugging Face config.json works too)"
    )


def load_model_from_text(text: str | bytes, name: str) -> Model:
    """Return the model of the content of a Hugging Face `config.json`, such as an uploaded one.

    Args:
        text: The file's content.
        name: What it is called in messages; the model is named after it.

    Raises:
        ConfigError: If it is not the configuration of a supported dense transformer.
    """
    return model_from_config(text, name=Path(name).stem or "model", place=name)


def num_layer_parameters(model: Model) -> int:
    """Return the parameters of one transformer block: its matrices and norms, without biases."""
    hidden, head_dim = model.hidden_size, model.head_dim
    attention = hidden * head_dim * (2 * model.num_heads + 2 * model.num_kv_heads)
    mlp = hidden * model.ffn_hidden_size * (3 if model.gated_mlp else 2)
    norms = 2 * hidden + (2 * head_dim if model.qk_norm else 0)
    return attention + mlp + norms


def num_parameters(model: Model) -> int:
    """Return the model's parameters; tied embeddings count once."""
    embeddings = model.vocab_size * model.hidden_size * (1 if model.tied_embeddings else 2)
    return model.num_layers * num_layer_parameters(model) + embeddings + model.hidden_size
