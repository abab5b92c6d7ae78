"""The form of a new exploration: what is fixed, what is tried, and what that would take."""

from typing import Any

import streamlit as st

from app import navigation, url
from app.backend import exploration_assessment, service
from app.components import workload_form
from app.components.frame import escape, show_error
from app.components.marks import source_mark
from app.components.text import quiet, small
from app.wording import count, in_words, plural
from kareus.core.measurement import SourceKind
from kareus.core.workload import Recompute
from kareus.errors import KareusError
from kareus.report.format import DASH, duration
from kareus.service import (
    ExplorationAssessment,
    ExplorationRequest,
    StudyRequest,
    WorkloadSettings,
)

_PREFIX = "explore_"
_CPS = (1, 2, 4, 8)
_MICROBATCH_SIZES = (2, 4, 8, 16, 32)
_BUDGETS = {
    "fast": "Fast",
    "published": "Published",
    "number": "A number",
}
_BUDGET_HELP = {
    "fast": "A tenth of each partition's space, 24 to 72 measurements.",
    "published": "As many measurements per partition as the published method takes.",
}
model_label = workload_form.model_label


def draw(*, has_others: bool) -> None:
    """Draw the form; starting goes to the exploration's own view.

    Args:
        has_others: Whether there are explorations to go back to.
    """
    form, summary = st.columns([3.25, 1.35], gap="medium")
    with form:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.subheader("Which parallelism to run? Say what is fixed", width="stretch")
            if has_others and st.button(
                "Back", icon=":material/arrow_back:", type="tertiary", key="explore_back"
            ):
                url.put(url.EXPLORATION, None)
                st.rerun()
        request = _draw_fields()
    assessment = exploration_assessment(request)
    with form:
        if assessment.error is not None:
            small(f":material/error: {escape(in_words(assessment.error))}", "red")
        quiet(
            "Every layout of the step on the GPUs is looked at: those that cannot be built or do "
            "not fit the memory are listed with the reason, those whose baselines are beaten "
            "beyond hope are not searched, and the plans of all others are joined into one "
            "frontier."
        )
    with summary:
        _draw_summary(request, assessment)


def _draw_fields() -> ExplorationRequest:
    """Draw the fields and return what they say, not checked yet."""
    api = service()
    first, second, third = st.columns(3, gap="medium")
    with first:
        uploaded: list[str] = st.session_state.get(workload_form.UPLOADED, [])
        model = st.selectbox(
            "Model",
            [*uploaded, *api.model_names()],
            format_func=model_label,
            **_initial("model", "llama3.2-3b"),
        )
        gpu = st.selectbox("GPU", list(api.gpu_names()), **_initial("gpu", "A100-SXM4-40GB"))
        num_gpus = _number("Number of GPUs", "num_gpus", "8", "All of them are used.")
    with second:
        batch = _number(
            "Global batch", "batch", "16", "Sequences per iteration, over all replicas."
        )
        seq_len = _number("Sequence length", "seq_len", "4096", "Tokens per sequence.")
        recompute = st.segmented_control(
            "Recompute activations",
            list(Recompute),
            format_func=lambda one: str(one.value).capitalize(),
            required=True,
            **_initial("recompute", Recompute.FULL),
        )
    with third:
        cps = st.pills(
            "Context degrees tried",
            _CPS,
            selection_mode="multi",
            help="GPUs that share a sequence. Tensor and pipeline degrees follow from the model.",
            **_initial("cps", [1, 2]),
        )
        sizes = st.pills(
            "Microbatch sizes tried",
            _MICROBATCH_SIZES,
            selection_mode="multi",
            help="Sequences per microbatch.",
            **_initial("sizes", [4, 8]),
        )
        budget = st.selectbox(
            "Budget of each layout",
            list(_BUDGETS),
            format_func=_BUDGETS.__getitem__,
            help="How much is measured of each layout that is searched.",
            **_initial("budget", "fast"),
        )
        if budget == "number":
            budget = st.text_input(
                "Measurements per layout", live=True, **_initial("measurements", "500")
            ).strip()
        else:
            quiet(_BUDGET_HELP[budget])
    return ExplorationRequest(
        base=StudyRequest(
            settings=WorkloadSettings(
                model=model, gpu=gpu, seq_len=seq_len, recompute=Recompute(recompute)
            ),
            source=SourceKind.SIMULATOR,
            budget=budget,
        ),
        num_gpus=num_gpus,
        global_batch_size=batch,
        cps=tuple(sorted(cps)),
        microbatch_sizes=tuple(sorted(sizes)),
    )


def _draw_summary(request: ExplorationRequest, assessment: ExplorationAssessment) -> None:
    """What the exploration would take, and the button."""
    with st.container(border=True, gap="small"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{_layouts(assessment)}**", width="stretch")
            source_mark(SourceKind.SIMULATOR, extrapolated=assessment.extrapolated)
        quiet(_left_out(assessment))
        quiet("At most, if no layout is beaten by its baselines:")
        left, right = st.columns(2)
        left.metric("Measurements", count(assessment.num_measurements))
        right.metric("Time, about", duration(assessment.estimated_s))
    reason = assessment.error
    if st.button(
        "Start exploration",
        type="primary",
        icon=":material/play_arrow:",
        width="stretch",
        disabled=reason is not None,
        key="start_exploration",
    ):
        _start(request)
    if reason is not None:
        quiet(f":material/block: {escape(in_words(reason))}")
    else:
        quiet("It runs in the background: this page shows what it finds, and Jobs lists it.")


def _start(request: ExplorationRequest) -> None:
    """Submit it and show it."""
    try:
        handle = service().submit_exploration(request)
    except KareusError as error:
        show_error(error)
        return
    url.put(url.POINT, None)
    url.put(url.EXPLORATION, handle.exploration)
    st.switch_page(navigation.EXPLORER.path, query_params={url.EXPLORATION: handle.exploration})


def _layouts(assessment: ExplorationAssessment) -> str:
    if assessment.num_possible is None:
        return f"Layouts: {DASH}"
    return f"{plural(assessment.num_possible, 'layout')} to look at"


def _left_out(assessment: ExplorationAssessment) -> str:
    if assessment.num_layouts is None or assessment.num_possible is None:
        return DASH
    impossible = assessment.num_layouts - assessment.num_possible
    if not impossible:
        return "All layouts can be built and fit the memory"
    return f"{impossible} of {assessment.num_layouts} cannot be built or do not fit the memory"


def _number(label: str, name: str, value: str, text: str) -> int:
    """A number as typed: what is none goes to the service as it is, for its words."""
    typed: Any = st.text_input(label, live=True, help=text, **_initial(name, value)).strip()
    try:
        return int(typed)
    except ValueError:
        return typed  # type: ignore[no-any-return]


def _initial(name: str, value: object) -> dict[str, Any]:
    """Key of a field whose first value is set before it is drawn; it outlives a page switch."""
    key = _PREFIX + name
    st.session_state.setdefault(key, value)
    return {"key": key, "persist_state": "session"}
