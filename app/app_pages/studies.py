"""Studies: what was planned so far, and what the best of it saves."""

from collections.abc import Iterable

import pandas as pd
import streamlit as st

from app import navigation, url
from app.backend import service, study_detail, study_summaries
from app.components import workload_form
from app.components.example import offer_first_study
from app.components.frame import escape, guarded
from app.components.tables import table_height
from app.components.text import small
from app.wording import age, plural, source_words
from kareus.errors import KareusError
from kareus.report.format import reduction
from kareus.service import StudySummary

_TABLE = "studies_table"
_FAILURE = "studies_failure"
_COPIED = "settings_copied"


def show() -> None:
    """Draw the page."""
    studies = study_summaries()
    if not studies:
        offer_first_study()
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(_answer(studies), width="stretch")
        if st.button("New study", type="primary", icon=":material/add:", key="new_study"):
            st.switch_page(navigation.NEW_STUDY.path)
    failure = st.session_state.pop(_FAILURE, None)
    if failure is not None:
        st.error(escape(failure), icon=":material/error:")
    actions = st.container(horizontal=True, vertical_alignment="center")
    event = st.dataframe(
        _table(studies),
        key=_TABLE,
        height=table_height(len(studies), at_most=14),
        hide_index=True,
        placeholder="–",
        on_select="rerun",
        selection_mode="single-row-required",
        column_config={
            "time_at_equal_energy": st.column_config.NumberColumn(
                "Time, equal energy",
                width=114,
                format="%+.1f %%",
                help="Change against the most frugal plan of Megatron-LM + Perseus.",
            ),
            "energy_at_equal_time": st.column_config.NumberColumn(
                "Energy, equal time",
                width=114,
                format="%+.1f %%",
                help="Change against the fastest plan of Megatron-LM + Perseus.",
            ),
            "name": st.column_config.TextColumn("Study", width=172),
            "workload": st.column_config.TextColumn("Workload", width=400),
            "source": st.column_config.TextColumn("Source", width=140),
            "state": st.column_config.TextColumn("State", width=76),
            "age": st.column_config.TextColumn("Started", alignment="right", width=80),
        },
    )
    rows = event["selection"]["rows"]
    chosen = studies[rows[0]] if rows and rows[0] < len(studies) else studies[0]
    with actions:
        _draw_actions(chosen)


def _answer(studies: list[StudySummary]) -> str:
    """The page's answer in a sentence."""
    finished = [study for study in studies if study.iso_time_energy_reduction_pct is not None]
    if not finished:
        return f"{plural(len(studies), 'study')}, none finished yet"
    best = max(finished, key=lambda study: study.iso_time_energy_reduction_pct or 0.0)
    return (
        f"{reduction(best.iso_time_energy_reduction_pct, 'energy')} at equal time "
        f"is the best of {plural(len(finished), 'finished study')}"
    )


def _table(studies: list[StudySummary]) -> pd.DataFrame:
    """One row per study, newest first."""
    return pd.DataFrame(
        {
            "name": [study.name for study in studies],
            "workload": [study.workload_line for study in studies],
            "source": [
                source_words(study.source, extrapolated=study.extrapolated) for study in studies
            ],
            "state": [study.state for study in studies],
            "energy_at_equal_time": _changes(
                study.iso_time_energy_reduction_pct for study in studies
            ),
            "time_at_equal_energy": _changes(
                study.iso_energy_time_reduction_pct for study in studies
            ),
            "age": [age(study.created) for study in studies],
        }
    ).astype({"energy_at_equal_time": "float64", "time_at_equal_energy": "float64"})


def _changes(reductions: Iterable[float | None]) -> list[float | None]:
    """Reductions as changes, so that what became more shows so."""
    return [None if one is None else 0.0 - one for one in reductions]


def _draw_actions(study: StudySummary) -> None:
    """What can be done with the chosen study."""
    done = study.state == "done"
    if st.button(
        "Open frontier",
        icon=navigation.FRONTIER.icon,
        disabled=not done,
        help=None if done else f"This study is {study.state}: it has no plans yet.",
        key="open_frontier",
    ):
        _go(navigation.FRONTIER, study)
    if study.job is not None and st.button("Watch job", icon=navigation.JOBS.icon, key="watch_job"):
        url.put(url.JOB, study.job)
        _go(navigation.JOBS, study, **{url.JOB: study.job})
    st.button(
        "Copy settings",
        icon=":material/content_copy:",
        type="tertiary",
        key="copy_settings",
        help="Start another study from this one's settings.",
        on_click=_copy,
        args=(study.id, study.state),
    )
    if st.session_state.pop(_COPIED, False):
        st.switch_page(navigation.NEW_STUDY.path)
    if st.button("Delete", type="tertiary", icon=":material/delete:", key="delete"):
        _confirm_deletion(study)
    st.markdown(f"**{escape(study.name)}**", width="content")
    if study.error:
        small(f":material/error: {escape(study.error)}", "red")


def _copy(study: str, state: str) -> None:
    workload_form.fill(study_detail(study, state).request)
    st.session_state[_COPIED] = True


def _go(page: navigation.PageEntry, study: StudySummary, **parameters: str) -> None:
    url.choose_study(study.id)
    st.switch_page(page.path, query_params={url.STUDY: study.id, **parameters})


@st.dialog("Delete this study?")
def _confirm_deletion(study: StudySummary) -> None:
    """Ask before anything is lost."""
    st.markdown(
        f"**{escape(study.name)}** goes with its measurements and plans. "
        "Bundles already downloaded stay valid."
    )
    with st.container(horizontal=True, horizontal_alignment="right"):
        if st.button("Keep", key="keep"):
            st.rerun()
        if st.button(
            "Delete study", type="primary", key="delete_study", on_click=_delete, args=(study.id,)
        ):
            st.rerun()


def _delete(study: str) -> None:
    """Delete it; why it cannot be deleted is kept for the next drawing."""
    try:
        service().delete_study(study)
    except KareusError as error:
        st.session_state[_FAILURE] = str(error)
        return
    if url.get(url.STUDY) == study:
        url.put(url.STUDY, None)


guarded(show)()
