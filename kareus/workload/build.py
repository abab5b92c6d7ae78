"""From settings to a checked workload, with every objection tied to the field that causes it.

The same findings serve the command line (the first error is raised) and the dashboard (each is
shown beside its field while typing). Decisions where training frameworks differ:

- KV heads that tp does not divide are refused, not replicated.
- A microbatch is split into two nanobatches, so its size must be even.
- tp beyond a node (8 GPUs) is refused; tp x cp beyond the GPUs NVLink joins is costed at NVLink
  speed and warned about.
- Too little memory is a warning, since the estimate assumes no sharded optimizer; weights alone
  beyond the GPU's memory are an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from kareus.core.workload import Gpu, Model, Parallelism, Recompute, Workload
from kareus.errors import ConfigError, KareusError
from kareus.workload.blocks import padded_vocab_size
from kareus.workload.gpus import load_gpu, nvlink_group_size
from kareus.workload.memory import estimate_memory
from kareus.workload.models import load_model

MAX_TP = 8

_T = TypeVar("_T")

# Far beyond any cluster or batch: such a figure is a slip of the keyboard.
_LIMITS = {
    "tp": 1_024,
    "cp": 1_024,
    "pp": 1_024,
    "dp": 65_536,
    "microbatch_size": 65_536,
    "seq_len": 16_777_216,
    "num_microbatches": 65_536,
}


class Severity(StrEnum):
    """How a finding counts: only an error stops the workload."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something to know about a setting.

    Attributes:
        field: Name of the field of `WorkloadSettings` beside which it belongs.
        severity: Error, warning or note.
        message: One line: what, the value, the remedy.
    """

    field: str
    severity: Severity
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSettings:
    """A workload as a person states it; anything may be wrong with it until it is checked.

    Attributes:
        model: Catalogue name, path to a Hugging Face `config.json`, or folder with one.
        gpu: Catalogue name.
        tp: Tensor-parallel degree.
        cp: Context-parallel degree.
        pp: Pipeline stages.
        dp: Data-parallel replicas.
        microbatch_size: Sequences per microbatch, even.
        seq_len: Tokens per sequence.
        num_microbatches: Microbatches per iteration and pipeline.
        stage_layers: Transformer blocks per stage; None for an even split with the remainder on
            the early stages.
        recompute: Full or none.
    """

    model: str
    gpu: str
    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    microbatch_size: int = 8
    seq_len: int = 4096
    num_microbatches: int = 8
    stage_layers: tuple[int, ...] | None = None
    recompute: Recompute = Recompute.FULL


def split_layers(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return an even split of layers over stages, the remainder on the early stages."""
    each, rest = divmod(num_layers, num_stages)
    return tuple(each + (1 if stage < rest else 0) for stage in range(num_stages))


def build_workload(settings: WorkloadSettings, *, model: Model | None = None) -> Workload:
    """Return the workload of the settings.

    Args:
        settings: What was asked for.
        model: A model already loaded (an uploaded configuration); `settings.model` is then only
            its name in messages.

    Raises:
        ConfigError: With the words of the first error found.
    """
    workload, findings = check_workload(settings, model=model)
    if workload is None:
        raise ConfigError(next(f.message for f in findings if f.severity is Severity.ERROR))
    return workload


def check_workload(
    settings: WorkloadSettings, *, model: Model | None = None
) -> tuple[Workload | None, tuple[Finding, ...]]:
    """Return the workload, or None if there is an error, and everything there is to say about it.

    Never raises for anything a person can enter: values of a wrong type are findings too.

    Args:
        settings: What was asked for.
        model: A model already loaded, instead of `settings.model`.

    Returns:
        The workload and the findings, errors first, then warnings, then notes.
    """
    findings = _Findings()
    if model is None:
        model = _loaded(settings.model, "model", load_model, findings)
    gpu = _loaded(settings.gpu, "gpu", load_gpu, findings)
    numbers = {
        name: number
        for name, limit in _LIMITS.items()
        if (number := _whole_number(name, getattr(settings, name), limit, findings)) is not None
    }
    recompute = _recompute(settings.recompute, findings)
    _check_batch(numbers, findings)
    _check_nodes(gpu, numbers, findings)
    if model is not None:
        _check_tensor_parallel(model, numbers, findings)
    stage_layers = _stage_layers(settings.stage_layers, model, numbers.get("pp"), findings)

    workload = None
    if (
        not findings.has_errors
        and model is not None
        and gpu is not None
        and recompute is not None
        and stage_layers is not None
    ):
        workload = Workload(
            model=model,
            gpu=gpu,
            parallelism=Parallelism(
                tp=numbers["tp"], cp=numbers["cp"], pp=numbers["pp"], dp=numbers["dp"]
            ),
            microbatch_size=numbers["microbatch_size"],
            seq_len=numbers["seq_len"],
            num_microbatches=numbers["num_microbatches"],
            stage_layers=stage_layers,
            recompute=recompute,
        )
        _check_memory(workload, findings)
        _note_assumptions(workload, settings, findings)
    return (None if findings.has_errors else workload), findings.in_order()


@dataclass(kw_only=True)
class _Findings:
    """Collects findings."""

    found: list[Finding] = field(default_factory=list)

    def error(self, name: str, message: str) -> None:
        """Add an error."""
        self.found.append(Finding(field=name, severity=Severity.ERROR, message=message))

    def warn(self, name: str, message: str) -> None:
        """Add a warning."""
        self.found.append(Finding(field=name, severity=Severity.WARNING, message=message))

    def note(self, name: str, message: str) -> None:
        """Add a note."""
        self.found.append(Finding(field=name, severity=Severity.NOTE, message=message))

    @property
    def has_errors(self) -> bool:
        """Whether an error is among them."""
        return any(finding.severity is Severity.ERROR for finding in self.found)

    def in_order(self) -> tuple[Finding, ...]:
        """By severity, then as they were found."""
        order = list(Severity)
        return tuple(sorted(self.found, key=lambda finding: order.index(finding.severity)))


def _loaded(name: object, place: str, load: Callable[[str], _T], findings: _Findings) -> _T | None:
    """What a name stands for; None with an error if it stands for nothing."""
    if not isinstance(name, str) or not name.strip():
        findings.error(place, f"{place} is empty: give a name from the catalogue")
        return None
    try:
        return load(name)
    except KareusError as error:
        findings.error(place, str(error))
        return None


def _option(name: str) -> str:
    """The command-line spelling of a field."""
    return "--" + name.replace("_", "-")


def _whole_number(name: str, value: object, limit: int, findings: _Findings) -> int | None:
    """A whole number from 1 to the limit; None with an error otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        findings.error(
            name, f"{_option(name)} {_shown(value)} is not a whole number: give 1 or more"
        )
        return None
    if value < 1:
        findings.error(name, f"{_option(name)} {_shown(value)} is too small: give 1 or more")
        return None
    if value > limit:
        findings.error(name, f"{_option(name)} {_shown(value)} is too large: at most {limit}")
        return None
    return value


def _shown(value: object) -> str:
    """The value on one line, short."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "(a number of more than 30 digits)"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _recompute(value: object, findings: _Findings) -> Recompute | None:
    """The recompute mode; None with an error if it is none."""
    try:
        return Recompute(value)  # type: ignore[arg-type]  # whatever a form or file gave
    except ValueError:
        findings.error(
            "recompute",
            f"--recompute {_shown(value)} is unknown: give {' or '.join(Recompute)}",
        )
        return None


def _check_batch(numbers: dict[str, int], findings: _Findings) -> None:
    """Nanobatches, context-parallel halves and pipeline bubbles."""
    size = numbers.get("microbatch_size")
    if size is not None and size % 2:
        remedy = "2" if size == 1 else f"{size - 1} or {size + 1}"
        findings.error(
            "microbatch_size",
            f"--microbatch-size {size} is odd and cannot be split into two nanobatches: "
            f"use {remedy}",
        )
    seq_len, cp = numbers.get("seq_len"), numbers.get("cp")
    if seq_len is not None and cp is not None and cp > 1 and seq_len % (2 * cp):
        above = -(-seq_len // (2 * cp)) * 2 * cp
        findings.error(
            "cp",
            f"--cp {cp} cannot share --seq-len {seq_len} evenly: causal load balancing needs a "
            f"multiple of 2 x cp = {2 * cp}, such as {above}",
        )
    stages, num_microbatches = numbers.get("pp"), numbers.get("num_microbatches")
    if stages is not None and num_microbatches is not None and num_microbatches < stages:
        idle = (stages - 1) / (num_microbatches + stages - 1)
        findings.warn(
            "num_microbatches",
            f"--num-microbatches {num_microbatches} is below the {stages} stages: the pipeline is "
            f"dominated by its bubble ({idle:.0%} of the time idle); use {stages} or more",
        )


def _check_tensor_parallel(model: Model, numbers: dict[str, int], findings: _Findings) -> None:
    """What tp must divide."""
    tp = numbers.get("tp")
    if tp is None or tp > MAX_TP:  # refused already, with the better reason
        return
    divided = {
        "attention heads": model.num_heads,
        "KV heads": model.num_kv_heads,
        "FFN width": model.ffn_hidden_size,
    }
    failing = {what: number for what, number in divided.items() if number % tp}
    if failing:
        usable = [
            str(degree)
            for degree in range(1, MAX_TP + 1)
            if not any(number % degree for number in divided.values())
        ]
        what, number = next(iter(failing.items()))
        replicated = " (KV heads are not replicated)" if what == "KV heads" else ""
        findings.error(
            "tp",
            f"--tp {tp} does not divide the {number} {what} of {model.name}{replicated}: "
            f"use {', '.join(usable)}",
        )
        return
    padded = padded_vocab_size(model, tp)
    if padded != model.vocab_size:
        findings.note(
            "tp",
            f"the vocabulary of {model.vocab_size} is padded to {padded}, "
            f"a multiple of 128 x tp = {128 * tp}",
        )


def _check_nodes(gpu: Gpu | None, numbers: dict[str, int], findings: _Findings) -> None:
    """Groups that leave the GPUs NVLink joins."""
    tp, cp = numbers.get("tp"), numbers.get("cp")
    if tp is None:
        return
    if tp > MAX_TP:
        findings.error(
            "tp",
            f"--tp {tp} exceeds the {MAX_TP} GPUs of a node, beyond which tensor parallelism is "
            f"not modelled: use at most {MAX_TP} and more of --pp or --cp",
        )
        return
    if cp is None or gpu is None:
        return
    joined = nvlink_group_size(gpu)
    if tp * cp > joined:
        findings.warn(
            "cp" if cp > 1 else "tp",
            f"tp x cp = {tp * cp} exceeds the {joined} {gpu.name} that NVLink joins, but "
            "collectives are costed at NVLink speed: times are optimistic",
        )


def _stage_layers(
    given: object, model: Model | None, num_stages: int | None, findings: _Findings
) -> tuple[int, ...] | None:
    """Layers per stage; None with an error, or where model or stages are unknown."""
    layers: tuple[int, ...] | None = None
    if given is not None:
        if not isinstance(given, Sequence) or isinstance(given, str):
            findings.error(
                "stage_layers",
                f"--stage-layers {_shown(given)} is not a list of whole numbers: give e.g. 15,13",
            )
            return None
        for number in given:
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                findings.error(
                    "stage_layers",
                    f"--stage-layers holds {_shown(number)}: every stage needs a whole number of "
                    "layers, 1 or more",
                )
                return None
        layers = tuple(given)
    if model is None or num_stages is None:
        return None
    if num_stages > model.num_layers:
        findings.error(
            "pp",
            f"--pp {num_stages} exceeds the {model.num_layers} layers of {model.name}: "
            f"use at most {model.num_layers}",
        )
        return None
    if layers is None:
        return split_layers(model.num_layers, num_stages)
    even = ",".join(map(str, split_layers(model.num_layers, num_stages)))
    if len(layers) != num_stages:
        findings.error(
            "stage_layers",
            f"--stage-layers names {len(layers)} stages, but --pp is {num_stages}: "
            f"give {num_stages} numbers, such as {even if num_stages <= 16 else 'an even split'}",
        )
        return None
    if sum(layers) != model.num_layers:
        findings.error(
            "stage_layers",
            f"--stage-layers add up to {_shown(sum(layers))}, but {model.name} has "
            f"{model.num_layers} layers: give e.g. {even if num_stages <= 16 else 'an even split'}",
        )
        return None
    return layers


def _check_memory(workload: Workload, findings: _Findings) -> None:
    """The fullest stage against the GPU's memory."""
    estimate = estimate_memory(workload)
    fullest, limit = estimate.peak, estimate.limit_bytes
    weights = max(stage.weights_bytes for stage in estimate.stages)
    gib = 2**30
    if weights > limit:
        findings.error(
            "gpu",
            f"the weights alone need {weights / gib:.1f} GiB per GPU, {workload.gpu.name} has "
            f"{limit / gib:.1f} GiB: use more --tp or --pp",
        )
    elif not estimate.fits:
        remedies = "more --tp or --pp, or a smaller --microbatch-size"
        if workload.recompute is Recompute.NONE:
            remedies += ", or --recompute full"
        if workload.parallelism.dp > 1:
            remedies += ", or a distributed optimizer (not counted)"
        findings.warn(
            "gpu",
            f"stage {fullest.stage} needs about {fullest.total_bytes / gib:.1f} GiB per GPU, "
            f"{workload.gpu.name} has {limit / gib:.1f} GiB: use {remedies}",
        )


def _note_assumptions(workload: Workload, settings: WorkloadSettings, findings: _Findings) -> None:
    """What was assumed, in words."""
    model, gpu = workload.model, workload.gpu
    for assumption in model.assumptions:
        findings.note("model", f"{model.name}: {assumption}")
    if model.tied_embeddings and workload.parallelism.pp > 1:
        findings.note(
            "model",
            f"{model.name} ties embedding and head: weights count once, the head's work stays on "
            "the last stage, which keeps a copy",
        )
    if not gpu.static_power_measured:
        findings.note(
            "gpu",
            f"static power of {gpu.name} is assumed to be {gpu.static_power_w:g} W: "
            "nobody has published a measurement",
        )
    if settings.stage_layers is None and len(set(workload.stage_layers)) > 1:
        counts = sorted(set(workload.stage_layers), reverse=True)
        findings.note(
            "stage_layers",
            f"{model.num_layers} layers on {workload.parallelism.pp} stages: "
            + ", ".join(f"{workload.stage_layers.count(c)} x {c}" for c in counts)
            + ", the larger ones first",
        )
