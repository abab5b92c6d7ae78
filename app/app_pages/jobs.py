"""Jobs: what runs in the background, how far it is, and how to stop or continue it.

The work is done by a detached process; this page only reads its state. One fragment polls while a
job is under way and stops when all have ended.
"""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app import navigation, url
from app.backend import service
from app.components.example import offer_first_study
from app.components.frame import escape, guarded, show_error
from app.components.job_actions import cancel_job, resume_job, take_failure
from app.components.marks import state_mark
from app.components.tables import table_height
from app.components.text import quiet
from app.wording import age, count, plural
from kareus.errors import NotFoundError
from kareus.report.format import DASH, THIN_SPACE, duration
from kareus.service import JobView

_TABLE = "jobs_table"
_POLL_S = 1.0
_PHASES = {
    "measuring": "Measuring",
    "composing": "Composing instructions from the partitions",
    "solving": "Planning iterations",
    "done": "Finished",
}


def show() -> None:
    """Draw the page."""
    url.enter(url.JOB, url.STUDY)
    jobs = service().jobs()
    if not jobs:
        st.subheader("No jobs yet: a study runs as one")
        offer_first_study()
        return
    polling = any(not job.finished for job in jobs)
    st.fragment(guarded(_draw), run_every=_POLL_S if polling else None)(polling)


def _draw(polling: bool) -> None:
    """Draw everything that changes; the only thing on the page that is redrawn by itself.

    Args:
        polling: Whether it is redrawn by itself; that is fixed when the whole page is drawn.
    """
    jobs = service().jobs()
    if polling != any(not job.finished for job in jobs):
        st.rerun()  # the whole page once more, with polling or without
    try:
        job = _chosen(jobs)
    except NotFoundError as error:
        show_error(error)
        url.put(url.JOB, None)
        job = jobs[0]
    _draw_head(job)
    _draw_partitions(job)
    if len(jobs) > 1:
        _draw_table(jobs, job)
    _draw_log(job)


def _chosen(jobs: Sequence[JobView]) -> JobView:
    """The job the URL names; without one, that of the study it names, or the newest."""
    wanted = url.get(url.JOB)
    if wanted is not None:
        return next((job for job in jobs if job.job == wanted), None) or service().job(wanted)
    study = url.get(url.STUDY)
    job = next((job for job in jobs if study is not None and job.study == study), jobs[0])
    url.put(url.JOB, job.job)
    return job


def _draw_head(job: JobView) -> None:
    """State in a sentence, a bar, and what can be done."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(_sentence(job), width="stretch")
        if job.exploration is not None and (job.name is not None or not job.finished):
            st.page_link(
                navigation.EXPLORER.path,
                label="Open the exploration",
                icon=navigation.EXPLORER.icon,
                query_params={url.EXPLORATION: job.exploration},
            )
        if job.state == "done" and job.study is not None:
            if st.button(
                "See the frontier",
                type="primary",
                icon=navigation.FRONTIER.icon,
                key="see_frontier",
            ):
                url.choose_study(job.study)
                st.switch_page(navigation.FRONTIER.path, query_params={url.STUDY: job.study})
        elif job.resumable and not _orphaned(job):
            st.button(
                "Resume",
                type="primary",
                icon=":material/resume:",
                key="resume",
                help="Goes on where it stopped: nothing is measured twice.",
                on_click=resume_job,
                args=(job.job,),
            )
        elif not job.finished:
            st.button(
                "Cancel",
                icon=":material/stop_circle:",
                key="cancel",
                help="Stops the job and its children. What was measured is kept.",
                on_click=cancel_job,
                args=(job.job,),
            )
    st.progress(_share(job))
    with st.container(horizontal=True, vertical_alignment="center"):
        state_mark(job.state)
        quiet(_facts(job), width="content")
    failure = take_failure()
    if failure is not None:
        st.error(escape(failure), icon=":material/error:")
    if job.error:
        st.error(escape(job.error), icon=":material/error:")


def _share(job: JobView) -> float:
    """How much of the measuring is done, from 0 to 1."""
    if job.state == "done":
        return 1.0
    if job.exploration is not None:
        planned = sum(layout.planned for layout in job.partitions)
        return sum(layout.done for layout in job.partitions) / planned if planned else 0.0
    return min(1.0, job.measurements / job.planned) if job.planned else 0.0


def _orphaned(job: JobView) -> bool:
    """Whether what it worked on was deleted."""
    return job.study is None and job.name is None


def _sentence(job: JobView) -> str:
    """The page's answer."""
    if job.finished and _orphaned(job):
        return f"{_ended(job)}; what it worked on has been deleted"
    if not job.finished and job.state == "queued":
        return job.message or "Waiting to start"
    if job.exploration is not None:
        return _exploration_sentence(job)
    if job.state == "done":
        return f"Finished with {plural(job.measurements, 'measurement')}"
    if job.finished:
        if not job.planned:
            return f"{_ended(job)} before the first measurement"
        if job.measurements >= job.planned:
            return f"{_ended(job)} after all {plural(job.measurements, 'measurement')}"
        return f"{_ended(job)} after {count(job.measurements)} of {count(job.planned)} measurements"
    if job.phase is None:
        return "Starting"
    phase = _PHASES.get(job.phase, job.phase.capitalize())
    if job.phase != "measuring":
        return phase
    left = "" if job.seconds_left is None else f", about {duration(job.seconds_left)} left"
    return f"{phase}: {count(job.measurements)} of {count(job.planned)}{left}"


def _exploration_sentence(job: JobView) -> str:
    """The answer of a job that explores layouts."""
    total = len(job.partitions)
    decided = sum(layout.done >= layout.planned for layout in job.partitions)
    if job.state == "done":
        return f"Finished: {plural(total, 'layout')} decided"
    if job.finished:
        if not total:
            return f"{_ended(job)} before the first layout"
        return f"{_ended(job)} after {count(decided)} of {plural(total, 'layout')}"
    return f"Exploring: {count(decided)} of {plural(total, 'layout')} decided"


def _ended(job: JobView) -> str:
    """How it ended, in a word."""
    return "Finished" if job.state == "done" else job.state.capitalize()


def _facts(job: JobView) -> str:
    """Which study, since when, by which process."""
    facts = [] if job.name is None else [job.name]
    if job.study is not None:
        facts.append(f"study {job.study}")
    facts.append(f"job {job.job}")
    if job.started is not None:
        facts.append(f"started {age(job.started)}")
    if job.pid is not None and not job.finished:
        facts.append(f"process {job.pid}")
    return escape(" · ".join(facts))


def _draw_partitions(job: JobView) -> None:
    """Partitions as rows: done, hypervolume, rate, time left."""
    if not job.partitions:
        if not job.finished:
            quiet("What it works on appears with its first report.")
        return
    if job.exploration is not None:
        _draw_layouts(job)
        return
    frame = pd.DataFrame(
        {
            "partition": [partition.name for partition in job.partitions],
            "share": [
                100 * partition.done / partition.planned if partition.planned else 0.0
                for partition in job.partitions
            ],
            "measurements": [
                f"{count(partition.done)} of {count(partition.planned)}"
                for partition in job.partitions
            ],
            "hypervolume": [list(partition.hypervolume) for partition in job.partitions],
            "rate": [
                DASH
                if job.finished
                else _rate(partition.planned - partition.done, partition.seconds_left)
                for partition in job.partitions
            ],
            "left": [
                DASH
                if job.finished or partition.done >= partition.planned
                else duration(partition.seconds_left)
                for partition in job.partitions
            ],
        }
    )
    st.dataframe(
        frame,
        key="job_partitions",
        hide_index=True,
        height=table_height(len(frame), at_most=11),
        column_config={
            "partition": st.column_config.TextColumn("Partition", width="medium"),
            "share": st.column_config.ProgressColumn(
                "Done", min_value=0.0, max_value=100.0, format="%.0f %%", width="medium"
            ),
            "measurements": st.column_config.TextColumn("Measurements", alignment="right"),
            "hypervolume": st.column_config.LineChartColumn(
                "Best hypervolume",
                width="medium",
                help="How much of the time-energy plane the best points cover, batch by batch.",
            ),
            "rate": st.column_config.TextColumn("Rate", alignment="right"),
            "left": st.column_config.TextColumn("Time left", alignment="right"),
        },
    )


def _draw_layouts(job: JobView) -> None:
    """Layouts of an exploration as rows, those under way first."""
    layouts = sorted(job.partitions, key=lambda layout: layout.done >= layout.planned)
    st.dataframe(
        pd.DataFrame(
            {
                "layout": [layout.name for layout in layouts],
                "state": [
                    "decided"
                    if layout.done >= layout.planned
                    else "its baselines are planned"
                    if layout.done
                    else "waiting"
                    for layout in layouts
                ],
            }
        ),
        key="job_layouts",
        hide_index=True,
        height=table_height(len(layouts), at_most=8),
        column_config={
            "layout": st.column_config.TextColumn("Layout", width="medium"),
            "state": st.column_config.TextColumn("State", width="large"),
        },
    )


def _rate(remaining: int, seconds_left: float | None) -> str:
    """Measurements per second; a dash before there is a rate."""
    if not seconds_left or remaining <= 0:
        return DASH
    return f"{remaining / seconds_left:.3g}{THIN_SPACE}/s"


def _draw_table(jobs: Sequence[JobView], chosen: JobView) -> None:
    """All jobs, one row each with a bar; a click opens one."""
    st.markdown("**All jobs**")
    position = next((i for i, job in enumerate(jobs) if job.job == chosen.job), 0)
    st.session_state[_TABLE] = {"selection": {"rows": [position]}}
    st.dataframe(
        pd.DataFrame(
            {
                "job": [job.job for job in jobs],
                "name": [job.name for job in jobs],
                "state": [str(job.state) for job in jobs],
                "share": [100 * _share(job) for job in jobs],
                "started": [DASH if job.started is None else age(job.started) for job in jobs],
            }
        ),
        key=_TABLE,
        placeholder=DASH,
        height=table_height(len(jobs), at_most=5),
        hide_index=True,
        on_select=lambda: _open(jobs),
        selection_mode="single-row-required",
        column_config={
            "job": st.column_config.TextColumn("Job"),
            "name": st.column_config.TextColumn("Study or exploration", width="medium"),
            "state": st.column_config.TextColumn("State"),
            "share": st.column_config.ProgressColumn(
                "Done", min_value=0.0, max_value=100.0, format="%.0f %%", width="medium"
            ),
            "started": st.column_config.TextColumn("Started", alignment="right"),
        },
    )


def _open(jobs: Sequence[JobView]) -> None:
    """Open the job of the selected row."""
    rows = st.session_state[_TABLE]["selection"]["rows"]
    if rows and rows[0] < len(jobs):
        url.put(url.JOB, jobs[rows[0]].job)


def _draw_log(job: JobView) -> None:
    """The log, read only while it is shown."""
    if st.toggle("Show log", key="show_log"):
        text = service().job_log(job.job, last=200)
        st.code(text or "The job has written nothing yet.", language=None, height=240)


guarded(show)()
