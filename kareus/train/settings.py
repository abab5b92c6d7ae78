"""What a training run is told: one dataclass, its command line, and back."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kareus.errors import ConfigError


class DeviceType(StrEnum):
    """What trains."""

    CPU = "cpu"
    CUDA = "cuda"


class ClockMode(StrEnum):
    """What becomes of the clocks a schedule asks for.

    `AUTO`: applied on CUDA, logged on a CPU. `APPLY`: locked (NVML). `LOG`: written down only.
    """

    AUTO = "auto"
    APPLY = "apply"
    LOG = "log"


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """Everything that fixes a training run beside its bundle.

    Attributes:
        bundle: The schedule's bundle, folder or .zip.
        log: Folder of the run's logs.
        device: What trains.
        steps: Train up to this step (counted from the very first, also when resuming).
        clocks: What becomes of the clocks.
        data: File of tokens (.npy, or raw .bin of uint16/uint32); None for synthetic ones.
        checkpoint_dir: Folder of checkpoints; None for none.
        checkpoint_every: Steps between two checkpoints; 0 for one at the end only.
        keep_checkpoints: How many of the newest to keep.
        resume: Continue from the newest checkpoint.
        pfo_url: A Zeus pipeline frequency optimizer server that says the clocks; None for the
            schedule's own.
        seed: Seed of weights, data and dropout.
        learning_rate: The highest learning rate.
        warmup_steps: Steps of linear warm-up.
        decay_steps: Step at which the cosine decay ends at a tenth; None for the run's steps.
        weight_decay: AdamW's, for matrices only.
        clip_norm: Largest global norm of the gradient; 0 for no clipping.
        dropout: Dropout rate.
        trace_every: Record launch points at the first and then every so many steps; 0 for never.
        threads: CPU threads per process; 0 for torch's own choice.
    """

    bundle: Path
    log: Path
    device: DeviceType = field(default=DeviceType.CUDA, metadata={"help": "cpu or cuda"})
    steps: int = field(default=20, metadata={"help": "train up to this step"})
    clocks: ClockMode = field(default=ClockMode.AUTO, metadata={"help": "auto, apply or log"})
    data: Path | None = field(
        default=None, metadata={"help": "file of tokens (.npy or .bin); synthetic without"}
    )
    checkpoint_dir: Path | None = field(default=None, metadata={"help": "folder of checkpoints"})
    checkpoint_every: int = field(
        default=0, metadata={"help": "steps between checkpoints; 0: at the end only"}
    )
    keep_checkpoints: int = field(default=2, metadata={"help": "newest checkpoints kept"})
    resume: bool = field(default=False, metadata={"help": "continue from the newest checkpoint"})
    pfo_url: str | None = field(
        default=None, metadata={"help": "Zeus pipeline frequency optimizer server"}
    )
    seed: int = field(default=0, metadata={"help": "seed of weights, data and dropout"})
    learning_rate: float = field(default=1e-3, metadata={"help": "highest learning rate"})
    warmup_steps: int = field(default=2, metadata={"help": "steps of linear warm-up"})
    decay_steps: int | None = field(
        default=None, metadata={"help": "end of the cosine decay (default: the run's steps)"}
    )
    weight_decay: float = field(
        default=0.1, metadata={"help": "AdamW's weight decay, matrices only"}
    )
    clip_norm: float = field(
        default=1.0, metadata={"help": "largest global gradient norm; 0: no clipping"}
    )
    dropout: float = field(default=0.0, metadata={"help": "dropout rate"})
    trace_every: int = field(
        default=10, metadata={"help": "record launch points every so many steps; 0: never"}
    )
    threads: int = field(default=0, metadata={"help": "CPU threads per process; 0: torch's choice"})

    def __post_init__(self) -> None:
        for name, kind in (("device", DeviceType), ("clocks", ClockMode)):
            try:
                object.__setattr__(self, name, kind(getattr(self, name)))
            except ValueError as error:
                raise ConfigError(
                    f"{name} = {getattr(self, name)}: use {' or '.join(kind)}"
                ) from error
        for name, lowest in (
            ("steps", 1),
            ("checkpoint_every", 0),
            ("keep_checkpoints", 1),
            ("warmup_steps", 0),
            ("weight_decay", 0),
            ("clip_norm", 0),
            ("trace_every", 0),
            ("threads", 0),
            ("seed", 0),
        ):
            if not getattr(self, name) >= lowest:
                raise ConfigError(f"{name} = {getattr(self, name)}: use {lowest} or more")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate = {self.learning_rate}: use a value above 0")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout = {self.dropout}: use 0 or more and less than 1")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ConfigError(f"decay_steps = {self.decay_steps}: use 1 or more")
        if self.resume and self.checkpoint_dir is None:
            raise ConfigError(
                "resume needs the folder of the checkpoints to continue from: give --checkpoint-dir"
            )
        if self.checkpoint_every and self.checkpoint_dir is None:
            raise ConfigError(
                f"checkpoint_every = {self.checkpoint_every}: give --checkpoint-dir as well"
            )

    @property
    def applies_clocks(self) -> bool:
        """Whether clocks are locked, not just written down."""
        if self.clocks is ClockMode.AUTO:
            return self.device is DeviceType.CUDA
        return self.clocks is ClockMode.APPLY

    def to_arguments(self) -> list[str]:
        """Return the command line of `python -m kareus.train` that says the same."""
        arguments = [str(self.bundle), str(self.log)]
        for each in _options():
            value = getattr(self, each.name)
            if value == each.default:
                continue
            flag = _flag(each.name)
            arguments += [flag] if value is True else [flag, str(value)]
        return arguments


_ADAPTER = TypeAdapter(TrainingSettings)


def parse_arguments(arguments: Sequence[str]) -> TrainingSettings:
    """Return the settings a command line says.

    Raises:
        ConfigError: A value is not what its setting can be.
        SystemExit: The command line is malformed, or asks for help.
    """
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m kareus.train",
        description="Trains under a bundle's schedule; 'kareus launch' checks it first and starts "
        "these processes.",
    )
    parser.add_argument("bundle", help="the bundle, folder or .zip")
    # Not an option: torchrun would take `--log` for one of its own.
    parser.add_argument("log", help="folder of the run's logs")
    for each in _options():
        if each.default is False:
            parser.add_argument(_flag(each.name), action="store_true", help=each.metadata["help"])
        else:
            parser.add_argument(_flag(each.name), default=each.default, help=each.metadata["help"])
    return training_settings(vars(parser.parse_args(arguments)))


def training_settings(values: Mapping[str, object]) -> TrainingSettings:
    """Return the settings with the given values, as texts or of their own types.

    Raises:
        ConfigError: A value is not what its setting can be.
    """
    try:
        return _ADAPTER.validate_python(dict(values))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        if not problem["loc"]:
            # Raised over all values at once, in words that name the one that is wrong.
            raise ConfigError(problem["msg"].removeprefix("Value error, ")) from error
        name = ".".join(map(str, problem["loc"]))
        raise ConfigError(f"{_flag(name)} {problem['input']}: {problem['msg']}") from error


def settings_document(settings: TrainingSettings) -> dict[str, Any]:
    """Return the settings as JSON values."""
    document: dict[str, Any] = _ADAPTER.dump_python(settings, mode="json")
    return document


def _options() -> list[Any]:
    return [each for each in fields(TrainingSettings) if each.default is not MISSING]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
