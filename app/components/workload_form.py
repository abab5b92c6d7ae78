"""The form of a new study: three columns of fields, each with a place for what is to say about it.

Numbers are text fields that report while typing; what was typed goes to the service as it is, so
that the words beside a field are the same as the command line's.
"""

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import navigation
from app.backend import doctor, preflight, service
from app.components.example import EXAMPLE, EXAMPLE_SETTINGS
from app.components.frame import escape
from app.components.text import quiet, small
from app.wording import age, count, in_words, plural
from kareus.core.measurement import SourceKind
from kareus.core.workload import Recompute
from kareus.errors import KareusError
from kareus.report.format import THIN_SPACE, clock
from kareus.service import BUILT_IN, DoctorCheck, Finding, Severity, StudyRequest, WorkloadSettings
from kareus.service.views import DatasetView

Slots = Mapping[str, DeltaGenerator]

_PREFIX = "form_"
UPLOADED = "uploaded_models"
DATASET = "last_dataset"
_DEGREES = {
    "tp": ("Tensor (tp)", "GPUs that share every matrix; at most the 8 of a node."),
    "cp": ("Context (cp)", "GPUs that share a sequence."),
    "pp": ("Pipeline (pp)", "Stages the layers are divided over."),
    "dp": ("Data (dp)", "Replicas of the whole pipeline."),
}
_BATCH = {
    "microbatch_size": ("Microbatch size", "Sequences per microbatch; even, as it is halved."),
    "num_microbatches": ("Microbatches", "Per iteration and pipeline."),
    "seq_len": ("Sequence length", "Tokens per sequence."),
}
_SOURCES = {
    SourceKind.SIMULATOR: "Simulator",
    SourceKind.MEASURED: "Measured",
    SourceKind.REPLAY: "Replay",
}
_BUDGETS = {
    "published": "Published",
    "fast": "Fast",
    "exhaustive": "Exhaustive",
    "number": "A number",
}
_BUDGET_HELP = {
    "published": "As many measurements per partition as the published method takes.",
    "fast": "A tenth of each partition's space, 24 to 72 measurements.",
    "exhaustive": "Every configuration of every partition.",
    "number": "So many measurements for the whole study.",
}
_RECOMPUTE = {Recompute.FULL: "Full", Recompute.NONE: "None"}


def draw() -> Slots:
    """Draw the fields.

    Returns:
        Per field of `WorkloadSettings` and `StudyRequest`, the place beneath it for findings.
    """
    slots: dict[str, DeltaGenerator] = {}
    first, second, third = st.columns([0.9, 1.05, 1.06], gap="medium")
    with first:
        _draw_model_and_gpu(slots)
    with second:
        _draw_parallelism(slots)
    with third:
        _draw_source_and_budget(slots)
    return slots


def request() -> StudyRequest:
    """Return what the fields say, not checked yet."""
    budget = _get("budget", "published")
    source = SourceKind(_get("source", SourceKind.SIMULATOR))
    return StudyRequest(
        settings=WorkloadSettings(
            model=_get("model", EXAMPLE_SETTINGS.model),
            gpu=_get("gpu", EXAMPLE_SETTINGS.gpu),
            stage_layers=_stage_layers(_get("stage_layers", "")),  # type: ignore[arg-type]
            recompute=Recompute(_get("recompute", Recompute.FULL)),
            **{name: _typed(name) for name in (*_DEGREES, *_BATCH)},
        ),
        source=source,
        budget=_get("num_measurements", "").strip() if budget == "number" else budget,
        transfer=bool(st.session_state.get(_PREFIX + "transfer")),
        seed=_seed(),
        name=_get("name", "").strip() or None,
        measurements=_get("measurements", "").strip() or None
        if source is SourceKind.REPLAY
        else None,
        calibration=_calibration() if source is SourceKind.SIMULATOR else None,
    )


def fill(request: StudyRequest) -> None:
    """Set the fields to another study's settings; its name stays with it."""
    settings = request.settings
    values: dict[str, object] = {
        "model": settings.model,
        "gpu": settings.gpu,
        "recompute": Recompute(settings.recompute),
        "stage_layers": ",".join(map(str, settings.stage_layers or ())),
        "source": request.source,
        "seed": str(request.seed),
        "measurements": request.measurements,
        "calibration": next(
            (c.name for c in service().calibrations() if c.path == request.calibration), BUILT_IN
        ),
        "name": "",
        "transfer": request.transfer,
    }
    values |= {name: str(getattr(settings, name)) for name in (*_DEGREES, *_BATCH)}
    if request.budget in _BUDGETS:
        values["budget"] = request.budget
    else:
        values |= {"budget": "number", "num_measurements": request.budget}
    for name, value in values.items():
        st.session_state[_PREFIX + name] = value
    uploaded: list[str] = st.session_state.setdefault(UPLOADED, [])
    if settings.model not in (*uploaded, *service().model_names()):
        uploaded.append(settings.model)


def draw_findings(slots: Slots, findings: Iterable[Finding]) -> None:
    """Draw errors and warnings beneath their field; of one field, errors alone if there are any."""
    by_field: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.severity is not Severity.NOTE:
            place = finding.field if finding.field in slots else "other"
            by_field.setdefault(place, []).append(finding)
    if _get("source", EXAMPLE.source) == SourceKind.MEASURED:
        by_field.pop("source", None)  # the preflight says it, line by line
    for name, found in by_field.items():
        errors = [finding for finding in found if finding.severity is Severity.ERROR]
        with slots[name]:
            for finding in errors or found:
                _draw_finding(finding)
    _draw_source_reason(slots)


def draw_notes(findings: Iterable[Finding]) -> None:
    """Draw what is assumed; it stands apart from the fields, as nothing has to be done about it."""
    for finding in findings:
        if finding.severity is Severity.NOTE:
            _draw_finding(finding)


def blocking_reason(findings: Iterable[Finding]) -> str | None:
    """Return why the study cannot start, in one line; None if it can."""
    source = SourceKind(_get("source", SourceKind.SIMULATOR))
    if source is SourceKind.REPLAY and not _get("measurements", "").strip():
        return "Choose recorded measurements, or import them first."
    for finding in findings:
        if finding.severity is Severity.ERROR:
            return escape(in_words(finding.message))
    if source is SourceKind.MEASURED and (lack := missing_for_measuring(measuring_checks())):
        return f"Measuring is not possible on this machine: {escape(lack)}"
    return None


def measuring_checks() -> list[DoctorCheck]:
    """Return whether this machine can measure the workload typed, line by line.

    Where the fields are no workload yet: what it can do at all.
    """
    try:
        return preflight(request().settings)
    except KareusError:
        return doctor()


def missing_for_measuring(checks: Iterable[DoctorCheck] | None = None) -> str | None:
    """Return the first thing this machine lacks for measuring; None if nothing.

    Args:
        checks: What was looked at; None for what the machine can do at all.
    """
    checks = doctor() if checks is None else list(checks)
    for check in checks:
        if check.state == "missing":
            return f"{check.name}: {check.found}" + (f" ({check.remedy})" if check.remedy else "")
    if not any("GPU" in check.name for check in checks):
        return "no GPU was found"
    return None


def _draw_model_and_gpu(slots: dict[str, DeltaGenerator]) -> None:
    """What is trained, and on what."""
    api = service()
    uploaded: list[str] = st.session_state.setdefault(UPLOADED, [])
    st.selectbox(
        "Model",
        [*uploaded, *api.model_names()],
        format_func=model_label,
        **_initial("model", EXAMPLE_SETTINGS.model),
    )
    try:
        model = api.model(_get("model", EXAMPLE_SETTINGS.model))
        quiet(
            f"{model.num_layers} layers, hidden {count(model.hidden_size)}, "
            f"{model.num_heads} heads, {model.num_kv_heads} KV heads"
        )
    except KareusError:
        quiet("")  # the finding below says it
    slots["model"] = st.container(gap="xsmall")
    with st.popover("Use your own config.json", icon=":material/upload_file:", width="stretch"):
        _draw_upload(uploaded)
    st.selectbox("GPU", list(api.gpu_names()), **_initial("gpu", EXAMPLE_SETTINGS.gpu))
    try:
        gpu = api.gpu(_get("gpu", EXAMPLE_SETTINGS.gpu))
        quiet(
            f"{gpu.num_sms} SMs, {gpu.clocks_mhz[0]} to {clock(gpu.clocks_mhz[-1])}, "
            f"{gpu.static_power_w:g}{THIN_SPACE}W static"
        )
    except KareusError:
        quiet("")
    slots["gpu"] = st.container(gap="xsmall")
    st.segmented_control(
        "Recompute activations",
        list(_RECOMPUTE),
        format_func=_RECOMPUTE.__getitem__,
        required=True,
        wrap=True,
        help="Full: the backward instruction computes its forward again, which saves memory.",
        **_initial("recompute", EXAMPLE_SETTINGS.recompute),
    )
    slots["recompute"] = st.container(gap="xsmall")


def _draw_upload(uploaded: list[str]) -> None:
    """Take a Hugging Face configuration; its content is checked here, whatever its name."""
    file = st.file_uploader("Hugging Face config.json", type="json", key="config_upload")
    if file is None:
        quiet("Dense Llama, Qwen3, Mistral and GPT families are supported.")
        return
    try:
        text = file.getvalue().decode("utf-8-sig")
    except UnicodeDecodeError:
        st.error(escape(f"{file.name} is not text in UTF-8: give a config.json"))
        return
    try:
        name = service().add_model(file.name, text)
    except KareusError as error:
        st.error(escape(str(error)))
        return
    if name not in uploaded:
        uploaded.insert(0, name)
        st.session_state["model_to_choose"] = name
        st.rerun()
    st.success(f"{escape(model_label(name))} is among the models.", icon=":material/check_circle:")


def model_label(name: str) -> str:
    """A model's name; of an uploaded configuration the folder that keeps it."""
    path = PurePath(name)
    return path.parent.name if path.name == "config.json" else path.name


def _draw_parallelism(slots: dict[str, DeltaGenerator]) -> None:
    """Degrees, batch, layers per stage."""
    for names in (("tp", "cp"), ("pp", "dp")):
        for column, name in zip(st.columns(2, gap="small"), names, strict=True):
            label, text = _DEGREES[name]
            column.text_input(
                label, live=True, help=text, **_initial(name, str(getattr(EXAMPLE_SETTINGS, name)))
            )
        for name in names:
            slots[name] = st.container(gap="xsmall")
    for column, name in zip(
        st.columns(2, gap="small"), ("microbatch_size", "num_microbatches"), strict=True
    ):
        label, text = _BATCH[name]
        column.text_input(
            label, live=True, help=text, **_initial(name, str(getattr(EXAMPLE_SETTINGS, name)))
        )
    slots["microbatch_size"] = st.container(gap="xsmall")
    slots["num_microbatches"] = st.container(gap="xsmall")
    left, right = st.columns(2, gap="small")
    label, text = _BATCH["seq_len"]
    left.text_input(
        label, live=True, help=text, **_initial("seq_len", str(EXAMPLE_SETTINGS.seq_len))
    )
    right.text_input(
        "Layers per stage",
        live=True,
        placeholder="even split",
        help="Such as 15,13. Empty: an even split, the remainder on the early stages.",
        **_initial("stage_layers", ""),
    )
    slots["seq_len"] = st.container(gap="xsmall")
    slots["stage_layers"] = st.container(gap="xsmall")


def _draw_source_and_budget(slots: dict[str, DeltaGenerator]) -> None:
    """Where measurements come from, and how many."""
    st.segmented_control(
        "Measurements from",
        list(_SOURCES),
        format_func=_SOURCES.__getitem__,
        required=True,
        wrap=True,
        **_initial("source", EXAMPLE.source),
    )
    slots["source"] = st.container(gap="xsmall")
    if _get("source", EXAMPLE.source) == SourceKind.REPLAY:
        _draw_recorded()
    slots["measurements"] = st.container(gap="xsmall")
    if _get("source", EXAMPLE.source) == SourceKind.SIMULATOR:
        _draw_calibration()
    slots["calibration"] = st.container(gap="xsmall")
    st.selectbox(
        "Measuring budget",
        list(_BUDGETS),
        format_func=_BUDGETS.__getitem__,
        **_initial("budget", EXAMPLE.budget),
    )
    budget = _get("budget", EXAMPLE.budget)
    if budget == "number":
        st.text_input("Measurements in all", live=True, **_initial("num_measurements", "500"))
    else:
        quiet(_BUDGET_HELP[budget])
    slots["budget"] = st.container(gap="xsmall")
    st.toggle(
        "Start from earlier studies",
        help="Let what finished studies on this GPU measured say where to measure first. "
        "Worth it where each partition gets few measurements.",
        **_initial("transfer", EXAMPLE.transfer),
    )
    slots["transfer"] = st.container(gap="xsmall")
    left, right = st.columns([1, 2], gap="small")
    left.text_input(
        "Seed",
        live=True,
        help="The same seed gives the same study.",
        **_initial("seed", str(EXAMPLE.seed)),
    )
    right.text_input("Name", placeholder="from the workload", **_initial("name", ""))
    slots["seed"] = st.container(gap="xsmall")
    slots["name"] = st.container(gap="xsmall")
    slots["other"] = st.container(gap="xsmall")


def _draw_recorded() -> None:
    """Choose among the imported measurements, or name a path on the server."""
    kept = {one.dataset: one for one in service().datasets()}
    field = _initial("measurements", st.session_state.get(DATASET) or next(iter(kept), None))
    named = st.session_state[field["key"]]
    st.selectbox(
        "Recorded measurements",
        list(kept) if named is None or named in kept else [*kept, named],
        format_func=lambda name: _recorded_words(kept[name]) if name in kept else name,
        accept_new_options=True,
        placeholder="choose, or type a path",
        help="Imported measurements, or the path of a folder of them on the server.",
        **field,
    )
    if kept:
        quiet("Type the path of a folder on the server to read it instead.")
    else:
        quiet("None is imported yet: type a path on the server, or import them first.")
        st.page_link(
            navigation.MACHINE.path, label="Import measurements", icon=navigation.MACHINE.icon
        )


def _recorded_words(one: DatasetView) -> str:
    """What imported measurements are of, and when they came."""
    layout = one.workload.parallelism
    return f"{one.name}, tp{layout.tp} cp{layout.cp}, {plural(one.rows, 'row')}, {age(one.created)}"


def _calibrations() -> list[str]:
    """Names of the kept calibrations of the GPU chosen."""
    gpu = _get("gpu", EXAMPLE_SETTINGS.gpu)
    return [one.name for one in service().calibrations() if one.gpu == gpu]


def _calibration() -> str | None:
    """Path of the calibration chosen; None for the GPU's own."""
    name = _get("calibration", BUILT_IN)
    gpu = _get("gpu", EXAMPLE_SETTINGS.gpu)
    found = (one for one in service().calibrations() if (one.name, one.gpu) == (name, gpu))
    return next((one.path for one in found), None)


def _draw_calibration() -> None:
    """Choose the simulator's calibration, where there is more than the GPU's own."""
    kept = _calibrations()
    if not kept:
        return
    if st.session_state.get(_PREFIX + "calibration") not in (None, BUILT_IN, *kept):
        st.session_state[_PREFIX + "calibration"] = BUILT_IN
    st.selectbox(
        "Calibration",
        [BUILT_IN, *kept],
        format_func=lambda name: "Built-in" if name == BUILT_IN else name,
        help="What the simulator computes with; the Trust page takes more.",
        **_initial("calibration", BUILT_IN),
    )


def _draw_source_reason(slots: Slots) -> None:
    """With the measured source: what this machine can do, and what it lacks."""
    if _get("source", EXAMPLE.source) != SourceKind.MEASURED:
        return
    with slots["source"]:
        for check in measuring_checks():
            icon, color = _CHECK_MARKS.get(check.state, _CHECK_MARKS["warning"])
            remedy = f"; {check.remedy}" if check.remedy and check.state != "ok" else ""
            small(f"{icon} **{escape(check.name)}**: {escape(check.found + remedy)}", color)


_CHECK_MARKS = {
    "ok": (":material/check_circle:", "green"),
    "warning": (":material/warning:", "orange"),
    "missing": (":material/cancel:", "red"),
}
_FINDING_MARKS = {
    Severity.ERROR: (":material/error:", "red"),
    Severity.WARNING: (":material/warning:", "orange"),
    Severity.NOTE: (":material/info:", "gray"),
}


def _draw_finding(finding: Finding) -> None:
    icon, color = _FINDING_MARKS[finding.severity]
    small(f"{icon} {escape(in_words(finding.message))}", color)


def _initial(name: str, value: object) -> dict[str, Any]:
    """Key of a field whose first value is set before it is drawn; it outlives a page switch."""
    key = _PREFIX + name
    chosen = st.session_state.pop("model_to_choose", None) if name == "model" else None
    if chosen is not None:
        st.session_state[key] = chosen
    st.session_state.setdefault(key, value)
    return {"key": key, "persist_state": "session"}


def _get(name: str, default: str) -> str:
    """A field's value."""
    value = st.session_state.get(_PREFIX + name)
    return default if value is None else value


def _typed(name: str) -> int:
    """What was typed as a number if it is one, else the text, for the service to judge."""
    text = _get(name, str(getattr(EXAMPLE_SETTINGS, name))).strip()
    try:
        return int(text)
    except ValueError:
        return text  # type: ignore[return-value]


def _seed() -> int:
    text = _get("seed", "0").strip()
    try:
        return int(text)
    except ValueError:
        return text  # type: ignore[return-value]


def _stage_layers(text: str) -> object:
    """The layers per stage as numbers where they are some; None for an even split."""
    if not text.strip():
        return None
    parts = [part.strip() for part in text.split(",")]
    return tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)
