"""New study: choose a workload and a budget, and see what it needs before starting it."""

import streamlit as st

from app.backend import service
from app.components import workload_form
from app.components.example import start
from app.components.footprint import draw_summary
from app.components.frame import guarded, show_error
from app.components.text import quiet
from kareus.errors import KareusError


def show() -> None:
    """Draw the page: three columns that ask, one that answers."""
    st.fragment(guarded(_draw))()


def _draw() -> None:
    form, summary = st.columns([3.25, 1.35], gap="medium")
    with form:
        st.subheader("Choose what to train, and how much to measure")
        slots = workload_form.draw()
        request = workload_form.request()
        assessment = service().assess(request)
        workload_form.draw_findings(slots, assessment.findings)
    with summary:
        reason = workload_form.blocking_reason(assessment.findings)
        draw_summary(assessment)
        if st.button(
            "Start study",
            type="primary",
            icon=":material/play_arrow:",
            width="stretch",
            disabled=reason is not None,
            key="start",
        ):
            try:
                start(request)
            except KareusError as error:
                show_error(error)
        if reason is not None:
            quiet(f":material/block: {reason}")
        workload_form.draw_notes(assessment.findings)


guarded(show)()
