"""The line at the head of a study's pages: which study, where its numbers come from."""

import streamlit as st

from app import navigation, url
from app.backend import study_detail, study_summaries
from app.components.example import offer_first_study
from app.components.frame import escape
from app.components.marks import source_mark
from app.components.text import quiet
from app.wording import age, in_words, plural
from kareus.report.format import percent
from kareus.service import StudySummary

_KEY = "study_choice"
_STATES = {
    "failed": "This study failed",
    "cancelled": "This study was cancelled",
    "cancelling": "This study is being cancelled",
    "interrupted": "This study was interrupted",
    "queued": "This study waits for its turn",
}


def choose_study(*, needs_plans: bool = True) -> StudySummary | None:
    """Draw the study's line and return the study the URL names, or the newest finished one.

    Args:
        needs_plans: Whether an unfinished study has nothing to show here.

    Returns:
        None where there is nothing to show yet; what to do about it has been drawn.
    """
    studies = study_summaries(url.get(url.STUDY))
    if not studies:
        offer_first_study()
        return None
    by_id = {study.id: study for study in studies}
    wanted = url.get(url.STUDY)
    if wanted is None:
        wanted = next((study.id for study in studies if study.state == "done"), studies[0].id)
    elif wanted not in by_id:
        wanted = next((study.id for study in studies if study.name == wanted), wanted)
        if wanted not in by_id:
            url.put(url.STUDY, None)
            st.error(
                escape(f"there is no study {wanted!r} here: it may have been deleted"),
                icon=":material/error:",
            )
            st.page_link(
                navigation.STUDIES.path, label="Choose a study", icon=navigation.STUDIES.icon
            )
            return None
    url.choose_study(wanted)
    st.session_state[_KEY] = wanted
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.selectbox(
            "Study",
            list(by_id),
            key=_KEY,
            format_func=lambda study: by_id[study].name,
            on_change=_apply_choice,
            label_visibility="collapsed",
            width=360,
        )
        study = by_id[wanted]
        source_mark(study.source, extrapolated=study.extrapolated)
        quiet(study.workload_line, width="content")
        with st.popover("About", type="tertiary", icon=":material/info:", key="about"):
            _draw_about(study)
    if needs_plans and study.state != "done":
        _lead_to_job(study)
        return None
    return study


def _draw_about(study: StudySummary) -> None:
    """How the study came about, and what it assumes."""
    detail = study_detail(study.id, study.state)
    request = detail.request
    st.markdown(
        f"**{escape(study.id)}**, started {age(study.created)}  \n"
        f"{plural(detail.measurements, 'measurement')}, budget {escape(request.budget)}, "
        f"seed {request.seed}"
    )
    if detail.uncertainty is not None:
        quiet(
            f"Extrapolated: times to about {percent(100 * detail.uncertainty.time)}, energies to "
            f"about {percent(100 * detail.uncertainty.energy)}"
        )
    for note in detail.notes:
        quiet(escape(in_words(note)))
    quiet(escape(", ".join(f"{name} {version}" for name, version in detail.versions.items())))


def _apply_choice() -> None:
    url.choose_study(st.session_state[_KEY])


def _lead_to_job(study: StudySummary) -> None:
    """Say that the study has no plans yet, and where to go."""
    with st.container(
        border=True, height=240, horizontal_alignment="center", vertical_alignment="center"
    ):
        st.subheader(
            _STATES.get(study.state, f"This study is {study.state}"), text_alignment="center"
        )
        if study.error:
            st.markdown(f":red[:material/error: {escape(study.error)}]", text_alignment="center")
        elif study.state in ("queued", "running"):
            st.markdown("Its plans appear here when it has finished.", text_alignment="center")
        else:
            st.markdown("Resume its job to get its plans.", text_alignment="center")
        if study.job is not None:
            st.page_link(
                navigation.JOBS.path,
                label="See its job" if study.error else "Watch its job",
                icon=navigation.JOBS.icon,
                query_params={url.JOB: study.job, url.STUDY: study.id},
            )
