"""The schedule's download: the bundle is built when it is asked for, not when the page is drawn."""

from collections.abc import Callable

import streamlit as st

from app.backend import service
from kareus.service import PlanSummary


def draw_download(study: str, plan: PlanSummary, *, key: str) -> None:
    """Draw the button that builds and hands over a plan's bundle."""
    st.download_button(
        "Download schedule",
        data=_builder(study, plan),
        file_name=f"{study}-{plan.method.value}-plan-{plan.plan}.zip",
        mime="application/zip",
        type="primary",
        icon=":material/download:",
        width="stretch",
        on_click="ignore",
        key=key,
        help="A bundle with schedule, launch scripts and timeline.",
    )


def _builder(study: str, plan: PlanSummary) -> Callable[[], bytes]:
    """What builds the bundle; it runs outside the page's thread."""
    method, number = plan.method, plan.plan

    def build() -> bytes:
        return service().bundle(study, number, method=method)[1]

    return build
