"""Constraints: plan a finished study again under the limits a cluster or a deadline sets."""

import streamlit as st

from app import navigation, url
from app.backend import plan_summaries, service, study_detail
from app.components.constraint_form import Reading, Typed, read
from app.components.frame import escape, guarded
from app.components.marks import state_mark
from app.components.study_bar import choose_study
from app.components.text import quiet, small
from kareus.core.plan import Method
from kareus.errors import KareusError
from kareus.report import format as fmt
from kareus.service import JobView, StudyDetail, StudySummary

_PREFIX = "constraint_"
_REPLAN = "replan"
_FAILURE = "replan_failure"
_POLL_S = 1.0


def show() -> None:
    """Draw the page."""
    url.enter(url.STUDY)
    study = choose_study()
    if study is None:
        return
    job = _job()
    polling = job is not None and not job.finished
    st.fragment(guarded(_draw), run_every=_POLL_S if polling else None)(study, polling)


def _job() -> JobView | None:
    """The job that plans again, if one is under way or has just ended."""
    name = url.get(_REPLAN)
    if name is None:
        return None
    try:
        return service().job(name)
    except KareusError:
        st.query_params.pop(_REPLAN, None)
        return None


def _draw(study: StudySummary, polling: bool) -> None:
    """Draw form and verdict."""
    job = _job()
    if job is not None and job.finished:
        _finish(job)
        return
    detail = study_detail(study.id, study.state)
    plans = plan_summaries(study.id, study.state).get(Method.KAREUS, ())
    st.subheader("Plan again under constraints: nothing is measured anew")
    if plans:
        fastest, frugal = plans[0], min(plans, key=lambda plan: plan.job_energy_j)
        quiet(
            f"Without constraints: {fmt.time(fastest.iteration_time_s)} at "
            f"{fmt.energy(fastest.job_energy_j)} and {fmt.power(fastest.average_power_w)} to "
            f"{fmt.time(frugal.iteration_time_s)} at {fmt.energy(frugal.job_energy_j)} and "
            f"{fmt.power(frugal.average_power_w)}, all GPUs of the job."
        )
    form, verdict = st.columns([2.05, 1], gap="medium")
    with form:
        typed = _draw_fields(detail, disabled=polling)
    reading = read(typed, clocks_mhz=detail.workload.gpu.clocks_mhz, plans=plans)
    with verdict:
        _draw_verdict(study, reading, typed, job)


def _draw_fields(detail: StudyDetail, *, disabled: bool) -> Typed:
    """Draw the fields and return what they say."""
    clocks = list(detail.workload.gpu.clocks_mhz)
    stages = list(range(detail.workload.parallelism.pp))

    def text(label: str, name: str, help_: str, placeholder: str = "free") -> str:
        return st.text_input(
            label,
            key=_PREFIX + name,
            placeholder=placeholder,
            help=help_,
            live=True,
            disabled=disabled,
        )

    def choice(label: str, name: str, options: list[int], help_: str, free: str) -> int | None:
        return st.selectbox(
            label,
            options,
            index=None,
            key=_PREFIX + name,
            placeholder=free,
            help=help_,
            disabled=disabled,
        )

    with st.container(border=True, gap="small"):
        st.markdown("**Limits of the whole job**")
        one, two, three = st.columns(3, gap="small")
        with one:
            deadline = text("Deadline (s)", "deadline", "Iteration time not to exceed.")
        with two:
            budget = text("Energy budget (J)", "budget", "Per iteration, all GPUs of the job.")
        with three:
            cap = text("Power cap (W)", "cap", "Average over an iteration, all GPUs of the job.")
        st.markdown("**Clocks**")
        one, two, three = st.columns(3, gap="small")
        with one:
            floor = choice("Lowest clock (MHz)", "floor", clocks, "No stage goes below.", "free")
        with two:
            ceiling = choice(
                "Highest clock (MHz)", "ceiling", clocks, "No stage goes above.", "free"
            )
        with three:
            max_clocks = choice(
                "Distinct clocks per stage",
                "max_clocks",
                [1, 2, 3, 4, 5, 6],
                "At most so many within a plan.",
                "any number",
            )
        one, two = st.columns([1, 2], gap="small")
        with one:
            listed = text(
                "Only these clocks (MHz)",
                "clocks",
                "What the cluster allows: clocks and ranges.",
                "such as 900-1110, 1410",
            )
        with two:
            st.session_state.setdefault(_PREFIX + "stages", stages)
            chosen = st.pills(
                "Clock limits are for stages",
                stages,
                key=_PREFIX + "stages",
                selection_mode="multi",
                disabled=disabled,
            )
        st.markdown("**Straggler**")
        one, two = st.columns([1, 2], gap="small")
        with one:
            straggler = choice(
                "Slow stage",
                "straggler",
                stages,
                "Throttled, shared, or waiting for its data: the others may slow down at no cost.",
                "none",
            )
        with two:
            slowdown = (
                text("Slower by (%)", "slowdown", "How much longer it takes.", "such as 10")
                if straggler is not None
                else ""
            )
    return Typed(
        deadline=deadline,
        budget=budget,
        cap=cap,
        stages=tuple(sorted(stage for stage in chosen if stage in stages)),
        floor=floor,
        ceiling=ceiling,
        clocks=listed,
        straggler=straggler,
        slowdown=slowdown,
        max_clocks=max_clocks,
    )


def _draw_verdict(study: StudySummary, reading: Reading, typed: Typed, job: JobView | None) -> None:
    """What stands against the constraints, and the button."""
    with st.container(border=True, gap="small"):
        st.markdown("**What stands against it**")
        failed: tuple[Typed, str] | None = st.session_state.get(_FAILURE)
        if failed is not None and failed[0] == typed:
            small(f":material/error: {escape(failed[1])}", "red")
        elif failed is not None and failed[0] is not None:
            st.session_state.pop(_FAILURE)
        if reading.empty:
            quiet("Nothing is constrained yet.")
        for line in reading.errors:
            small(f":material/error: {escape(line)}", "red")
        solved = st.session_state.get(_FAILURE) is not None  # the solver has said more exactly
        for line in () if solved else reading.clashes:
            small(f":material/warning: {escape(line)}", "orange")
        if reading.constraints is not None and not reading.clashes and failed is None:
            small(":material/check_circle: Nothing that is known before planning", "green")
        name = st.text_input(
            "Name", key=_PREFIX + "name", placeholder=f"{study.name}, constrained"
        ).strip()
        if st.button(
            "Planning" if job is not None else "Plan again",
            type="primary",
            icon=":material/route:",
            width="stretch",
            disabled=reading.constraints is None or job is not None,
            key="plan_again",
        ):
            _start(study, reading, typed, name or None)
        if job is not None:
            with st.container(horizontal=True, vertical_alignment="center"):
                state_mark(job.state)
                quiet("" if job.phase is None else job.phase, width="content")
        quiet(
            "The result is a study of its own: its frontier opens when it is planned, which takes "
            "some seconds."
        )


def _start(study: StudySummary, reading: Reading, typed: Typed, name: str | None) -> None:
    """Submit it; the page then watches the job."""
    assert reading.constraints is not None, "the button is disabled otherwise"
    try:
        handle = service().submit_replan(study.id, reading.constraints, name=name)
    except KareusError as error:
        st.session_state[_FAILURE] = (typed, str(error))
    else:
        st.session_state[_FAILURE] = None
        st.session_state["replan_typed"] = typed
        st.query_params[_REPLAN] = handle.job
    st.rerun()


def _finish(job: JobView) -> None:
    """Open the new study's frontier, or keep why there is none and let the study go."""
    if _REPLAN in st.query_params:
        del st.query_params[_REPLAN]
    if job.state == "done" and job.study is not None:
        url.choose_study(job.study)
        st.switch_page(navigation.FRONTIER.path, query_params={url.STUDY: job.study})
    reason = job.error or f"planning was {job.state}: plan again"
    st.session_state[_FAILURE] = (st.session_state.pop("replan_typed", Typed()), reason)
    if job.study is not None:
        service().delete_study(job.study)
    st.rerun()


guarded(show)()
