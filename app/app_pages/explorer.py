"""Explorer: which parallelism to run, on a fixed number of GPUs, for which trade-off."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from app import navigation, url
from app.backend import service
from app.components import exploration_form
from app.components.charts import palette
from app.components.frame import escape, guarded
from app.components.job_actions import cancel_job, resume_job, take_failure
from app.components.marks import source_mark, state_mark
from app.components.tables import table_height
from app.components.text import quiet, small
from app.wording import age, plural
from kareus.core.plan import Method
from kareus.errors import NotFoundError
from kareus.report import format as fmt
from kareus.report.joint import (
    JOINT_SELECTION,
    JointPoint,
    baseline_frame,
    joint_figure,
    joint_frame,
)
from kareus.service import ExplorationView, JobView, Layout, LayoutState, layout_words

NEW = "new"
_CHOICE = "exploration_choice"
_CHART = "joint_chart"
_TABLE = "joint_table"
_CHART_HEIGHT = 400
_POLL_S = 2.0
_STATE_WORDS = {  # in the order of the table
    LayoutState.SEARCHED: "searched",
    LayoutState.WAITING: "waiting",
    LayoutState.FAILED: "failed",
    LayoutState.BEATEN: "beaten by baselines",
    LayoutState.IMPOSSIBLE: "impossible",
}


def show() -> None:
    """Draw the page: the form where there is nothing to show yet, else one exploration."""
    url.enter(url.EXPLORATION, url.POINT)
    views = service().explorations()
    wanted = url.get(url.EXPLORATION)
    if not views or wanted == NEW:
        st.fragment(guarded(exploration_form.draw))(has_others=bool(views))
        return
    if wanted not in {view.exploration for view in views}:
        if wanted is not None:
            url.put(url.EXPLORATION, None)
            raise NotFoundError(
                f"there is no exploration {wanted!r} here: reload the page for the newest"
            )
        url.put(url.EXPLORATION, views[0].exploration)
    _draw_bar(views)
    polling = _under_way(next(v for v in views if v.exploration == url.get(url.EXPLORATION)))
    st.fragment(guarded(_draw), run_every=_POLL_S if polling else None)(polling)


def _under_way(view: ExplorationView) -> bool:
    return view.state in ("queued", "running", "cancelling")


def _draw_bar(views: Sequence[ExplorationView]) -> None:
    """Which exploration, where its numbers come from, and the way to another."""
    by_id = {view.exploration: view for view in views}
    view = by_id[url.get(url.EXPLORATION) or views[0].exploration]
    st.session_state[_CHOICE] = view.exploration
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.selectbox(
            "Exploration",
            list(by_id),
            key=_CHOICE,
            format_func=lambda one: f"{by_id[one].name}, {age(by_id[one].created)}",
            on_change=_apply_choice,
            label_visibility="collapsed",
            width=300,
        )
        base = view.request.base
        source_mark(base.source, extrapolated=_extrapolated(view))
        settings = base.settings
        quiet(
            escape(
                f"{_short(settings.model)}, {view.request.num_gpus} x {settings.gpu}, "
                f"{view.request.global_batch_size} sequences of {settings.seq_len} tokens"
            ),
            width="stretch",
        )
        st.button(
            "New exploration",
            icon=":material/add:",
            key="new_exploration",
            on_click=_choose,
            args=(NEW,),
        )


def _apply_choice() -> None:
    _choose(st.session_state[_CHOICE])


def _choose(exploration: str) -> None:
    url.put(url.POINT, None)
    url.put(url.EXPLORATION, exploration)


def _draw(polling: bool) -> None:
    """Draw everything that changes; the only thing on the page that is redrawn by itself."""
    view = service().exploration(url.get(url.EXPLORATION) or "")
    if polling and not _under_way(view):
        st.rerun()  # the whole page once more, this time without polling
    job = None if view.job is None else service().job(view.job)
    chosen = _chosen(view)
    _draw_head(view, job)
    if job is not None and not job.finished:
        _draw_progress(job)
    if view.result.frontier:
        left, right = st.columns([2.05, 1], gap="medium")
        with left:
            _draw_chart(view, chosen)
        with right:
            _draw_card(view, chosen)
        _draw_table(view, chosen)
    _draw_layouts(view)


def _chosen(view: ExplorationView) -> JointPoint | None:
    """The point the URL names; without one the middle of the frontier."""
    points = _points(view)
    if not points:
        return None
    named = next((p for p in points if f"{p.layout}-{p.plan}" == url.get(url.POINT)), None)
    return named or points[len(points) // 2]


def _points(view: ExplorationView) -> list[JointPoint]:
    return [
        JointPoint(
            layout=point.layout,
            words=_words(view.result.layouts[point.layout]),
            plan=point.plan,
            iteration_time_s=point.iteration_time_s,
            job_energy_j=point.job_energy_j,
        )
        for point in view.result.frontier
    ]


def _words(layout: Layout) -> str:
    """A layout's name in charts and tables."""
    return layout_words(layout).replace(" x ", " × ")


def _draw_head(view: ExplorationView, job: JobView | None) -> None:
    """The answer, and what can be done about the job."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(escape(_answer(view)), width="stretch")
        if job is not None and job.resumable:
            st.button(
                "Resume",
                type="primary",
                icon=":material/resume:",
                key="resume_exploration",
                help="Goes on where it stopped: nothing is measured twice.",
                on_click=resume_job,
                args=(job.job,),
            )
        elif job is not None and not job.finished:
            st.button(
                "Cancel",
                icon=":material/stop_circle:",
                key="cancel_exploration",
                help="Stops the job. What was found is kept.",
                on_click=cancel_job,
                args=(job.job,),
            )
    failure = take_failure() or view.error
    if failure:
        st.error(escape(failure), icon=":material/error:")


def _answer(view: ExplorationView) -> str:
    """The page's answer in a sentence."""
    points = _points(view)
    if not points:
        if _under_way(view):
            return "No layout has been searched yet"
        return f"This exploration is {view.state}, and no layout was searched"
    fastest, frugal = points[0], points[-1]
    so_far = "" if view.state == "done" else ", so far"
    if fastest.layout == frugal.layout:
        return (
            f"{fastest.words} is best throughout{so_far}: {fmt.time(fastest.iteration_time_s)} "
            f"and {fmt.energy(fastest.job_energy_j)} to {fmt.time(frugal.iteration_time_s)} and "
            f"{fmt.energy(frugal.job_energy_j)} per iteration"
        )
    return (
        f"{fastest.words} is fastest{so_far}: {fmt.time(fastest.iteration_time_s)} at "
        f"{fmt.energy(fastest.job_energy_j)}; {frugal.words} is most frugal: "
        f"{fmt.time(frugal.iteration_time_s)} at {fmt.energy(frugal.job_energy_j)}"
    )


def _draw_progress(job: JobView) -> None:
    """How far the job is: a bar and what it does."""
    done = sum(layout.done for layout in job.partitions)
    planned = sum(layout.planned for layout in job.partitions)
    with st.container(horizontal=True, vertical_alignment="center"):
        state_mark(job.state)
        decided = sum(layout.done >= layout.planned for layout in job.partitions)
        facts = [f"{decided} of {plural(len(job.partitions), 'layout')} decided"]
        facts += [escape(job.message)] if job.message else []
        facts += [] if job.started is None else [f"started {age(job.started)}"]
        quiet(" · ".join(facts), width="content")
    st.progress(min(1.0, done / planned) if planned else 0.0)


def _draw_chart(view: ExplorationView, chosen: JointPoint | None) -> None:
    """The picture: job energy over time, by layout."""
    layouts = view.result.layouts
    st.altair_chart(
        joint_figure(
            _frame(view),
            baselines=baseline_frame(
                (_words(one), _STATE_WORDS[one.state], one.baseline) for one in layouts
            ),
            selected=None if chosen is None else f"{chosen.layout}-{chosen.plan}",
            palette=palette(),
            height=_CHART_HEIGHT,
        ),
        key=_CHART,
        theme=None,
        width="stretch",
        on_select=_apply_click,
        selection_mode=JOINT_SELECTION,
        alt="Energy of the job over iteration time of the best plans of all layouts",
    )
    quiet("Grey dashes: the baselines' plans of every layout, as far as they come near.")


def _frame(view: ExplorationView) -> pd.DataFrame:
    return joint_frame(
        _points(view), source=view.request.base.source, extrapolated=_extrapolated(view)
    )


def _extrapolated(view: ExplorationView) -> bool:
    return not service().gpu(view.request.base.settings.gpu).calibrated


def _apply_click() -> None:
    points = st.session_state[_CHART]["selection"].get(JOINT_SELECTION) or []
    if points and "point_id" in points[0]:
        url.put(url.POINT, points[0]["point_id"])


def _draw_card(view: ExplorationView, chosen: JointPoint | None) -> None:
    """The chosen point: its layout, its figures, the way to its study."""
    if chosen is None:
        return
    layout = view.result.layouts[chosen.layout]
    with st.container(border=True, gap="xsmall", height="stretch"):
        st.markdown(f"**{chosen.words}**")
        time_column, energy_column, power_column = st.columns(3, gap="small")
        time_column.metric("Time", fmt.time(chosen.iteration_time_s))
        energy_column.metric("Energy", fmt.energy(chosen.job_energy_j))
        power_column.metric("Power", fmt.power(chosen.job_energy_j / chosen.iteration_time_s))
        small("  \n".join(_facts(view, layout, chosen)), "gray")
        if layout.study is not None and st.button(
            "Open its frontier",
            type="primary",
            icon=navigation.FRONTIER.icon,
            width="stretch",
            key="open_layout",
        ):
            url.choose_study(layout.study)
            parameters = {
                url.STUDY: layout.study,
                url.METHOD: Method.KAREUS.value,
                url.PLAN: str(chosen.plan),
            }
            st.switch_page(navigation.FRONTIER.path, query_params=parameters)


def _facts(view: ExplorationView, layout: Layout, chosen: JointPoint) -> list[str]:
    """What else there is to know of a layout."""
    lines = [
        f"Tensor {layout.tp}, context {layout.cp}, pipeline {layout.pp}, data {layout.dp}",
        f"{_microbatches(layout.num_microbatches)} of "
        f"{plural(layout.microbatch_size, 'sequence')} per replica",
    ]
    if layout.peak_memory_bytes is not None:
        gpu = service().gpu(view.request.base.settings.gpu)
        lines.append(
            f"About {layout.peak_memory_bytes / 2**30:.1f} of {gpu.memory_bytes / 2**30:.0f}"
            f"{fmt.THIN_SPACE}GiB per GPU"
        )
    points = _points(view)
    mine = sum(point.layout == chosen.layout for point in points)
    lines.append(f"{mine} of {plural(len(points), 'plan')} of the joint frontier are its own")
    if layout.dp > 1:
        lines.append("Reducing gradients over the replicas is not counted.")
    return lines


def _draw_table(view: ExplorationView, chosen: JointPoint | None) -> None:
    """Every plan of the joint frontier; a click on a row chooses it."""
    frame = _frame(view)
    names = list(frame["point_id"])
    position = 0 if chosen is None else names.index(f"{chosen.layout}-{chosen.plan}")
    st.markdown("**Joint frontier**")
    st.session_state[_TABLE] = {"selection": {"rows": [position]}}
    st.dataframe(
        frame[["words", "plan", "iteration_time_s", "job_energy_j", "average_power_w", "source"]],
        key=_TABLE,
        height=table_height(len(frame), at_most=8),
        hide_index=True,
        on_select=lambda: _apply_row(names),
        selection_mode="single-row-required",
        column_config={
            "words": st.column_config.TextColumn("Layout", width="medium"),
            "plan": st.column_config.NumberColumn("Plan"),
            "iteration_time_s": st.column_config.NumberColumn("Time (s)", format="%.3f"),
            "job_energy_j": st.column_config.NumberColumn("Energy, all GPUs (J)", format="%.0f"),
            "average_power_w": st.column_config.NumberColumn("Power, all GPUs (W)", format="%.0f"),
            "source": st.column_config.TextColumn("Source"),
        },
    )


def _apply_row(names: Sequence[str]) -> None:
    rows = st.session_state[_TABLE]["selection"]["rows"]
    if rows and rows[0] < len(names):
        url.put(url.POINT, names[rows[0]])


def _draw_layouts(view: ExplorationView) -> None:
    """Every layout and what became of it; those left out with the reason."""
    layouts = view.result.layouts
    if not layouts:
        return
    on_frontier = {point.layout for point in view.result.frontier}
    order = list(_STATE_WORDS)
    rows = sorted(
        layouts,
        key=lambda one: (
            one.number not in on_frontier,
            order.index(one.state),
            one.number,
        ),
    )
    counts = {state: sum(one.state is state for one in layouts) for state in _STATE_WORDS}
    words = ", ".join(
        f"{counts[state]} {_STATE_WORDS[state]}" for state in _STATE_WORDS if counts[state]
    )
    st.markdown(f"**All layouts** · {words}")
    st.dataframe(
        pd.DataFrame(
            {
                "layout": [_words(one) for one in rows],
                "state": [
                    "on the frontier" if one.number in on_frontier else _STATE_WORDS[one.state]
                    for one in rows
                ],
                "memory": [
                    None if one.peak_memory_bytes is None else one.peak_memory_bytes / 2**30
                    for one in rows
                ],
                "fastest": [min((t for t, _ in one.baseline), default=None) for one in rows],
                "reason": [
                    one.reason
                    or ("its plans are dominated" if one.state is LayoutState.SEARCHED else "")
                    if one.number not in on_frontier
                    else ""
                    for one in rows
                ],
            }
        ).astype({"memory": "float64", "fastest": "float64"}),
        key="layouts_table",
        height=table_height(len(rows), at_most=10),
        hide_index=True,
        placeholder=fmt.DASH,
        column_config={
            "layout": st.column_config.TextColumn("Layout", width=200),
            "state": st.column_config.TextColumn("State", width=150),
            "memory": st.column_config.NumberColumn("Memory (GiB)", format="%.1f", width=100),
            "fastest": st.column_config.NumberColumn(
                "Baseline time (s)",
                format="%.3f",
                width=120,
                help="Iteration time of its fastest baseline plan.",
            ),
            "reason": st.column_config.TextColumn("Why it is left out", width="large"),
        },
    )


def _microbatches(number: int) -> str:
    return "1 microbatch" if number == 1 else f"{number} microbatches"


def _short(model: str) -> str:
    return exploration_form.model_label(model)


guarded(show)()
