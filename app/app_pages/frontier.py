"""Frontier: all methods in one picture, the plan to run, and what it buys."""

import math

import pandas as pd
import streamlit as st

from app import navigation, url
from app.components.charts import palette
from app.components.frame import escape, guarded
from app.components.frontier_view import (
    Objective,
    View,
    build_view,
    by_objective,
    plan_words,
    select,
)
from app.components.plan_card import draw_plan_card
from app.components.run_settings import CURRENCY, cost_of_run
from app.components.study_bar import choose_study
from app.components.tables import table_height
from app.components.text import quiet, small
from kareus.core.plan import Method
from kareus.errors import KareusError
from kareus.report import format as fmt
from kareus.report.comparison import METHOD_NAMES, headline, savings
from kareus.report.data import Scope, frontier_frame, guide_frame, parse_plan_id, plan_id
from kareus.report.figures import PLAN_SELECTION, frontier_figure
from kareus.service import PlanSummary, StudySummary

_CHART = "frontier_chart"
_TABLE = "frontier_table"
_OBJECTIVE = "objective"
_BOUND = "bound"
_PROBLEM = "objective_problem"
_CHART_HEIGHT = 392
_SCOPE_TITLES = {
    Scope.PIPELINE: "Energy per iteration, one GPU of each stage",
    Scope.JOB: "Energy per iteration, all GPUs",
}
_SCOPE_WORDS = {Scope.PIPELINE: "One GPU per stage", Scope.JOB: "All GPUs"}


def show() -> None:
    """Draw the page."""
    url.enter(
        url.STUDY,
        url.METHOD,
        url.PLAN,
        url.METHODS,
        url.SCOPE,
        url.PINS,
        "tokens",
        "price",
        "carbon",
    )
    study = choose_study()
    if study is not None:
        st.fragment(guarded(_draw))(study)


def _draw(study: StudySummary) -> None:
    """Draw everything that a click changes."""
    if url.get(url.PLAN) is None:
        st.session_state[_OBJECTIVE] = Objective.EQUAL_TIME
    method, plan = url.get(url.METHOD), url.get(url.PLAN)
    view = build_view(study)
    if (plan or str(view.selected.plan)) != str(view.selected.plan) or (
        method or view.selected.method
    ) != view.selected.method:
        st.session_state[_PROBLEM] = (
            f"The link's plan ({' '.join(filter(None, (method, plan)))}) is not in this study: "
            f"this is {plan_words(view.selected)}."
        )
    with st.container(gap="xsmall"):
        answer, _, rest = headline(view.selected, view.frontiers).partition(". ")
        st.subheader(escape(answer))
        st.markdown(escape(rest))
    _draw_choice(view)
    chart, card = st.columns([2.05, 1], gap="medium")
    with chart:
        _draw_toggles(view)
        _draw_chart(view)
    with card:
        draw_plan_card(view)
    if view.pinned:
        _draw_comparison(view)
    _draw_table(view)


def _draw_choice(view: View) -> None:
    """Choose a plan by what it should be good at."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.segmented_control(
            "Choose a plan by",
            list(Objective),
            key=_OBJECTIVE,
            label_visibility="collapsed",
            on_change=_apply_objective,
            args=(view,),
        )
        objective = st.session_state.get(_OBJECTIVE)
        if objective in (Objective.DEADLINE, Objective.BUDGET):
            deadline = objective == Objective.DEADLINE
            st.number_input(
                "Bound",
                key=_BOUND,
                min_value=0.0,
                step=0.01 if deadline else 10.0,
                format="%.3f" if deadline else "%.0f",
                label_visibility="collapsed",
                width=150,
                on_change=_apply_objective,
                args=(view,),
            )
            quiet("s" if deadline else "J", width="content")
        else:
            options = {plan_id(plan): plan for plan in view.frontiers[view.selected.method]}
            st.session_state["plan_choice"] = plan_id(view.selected)
            st.selectbox(
                "Plan",
                list(options),
                key="plan_choice",
                format_func=lambda name: plan_words(options[name]),
                label_visibility="collapsed",
                width=250,
                on_change=_apply_plan,
            )
        st.space("stretch")
        st.session_state["scope_shown"] = view.setting.scope
        st.segmented_control(
            "Energy of",
            list(Scope),
            key="scope_shown",
            required=True,
            format_func=_SCOPE_WORDS.__getitem__,
            label_visibility="collapsed",
            on_change=_apply_scope,
        )
    problem = st.session_state.pop(_PROBLEM, None)
    if problem is not None:
        small(f":material/error: {escape(problem)}", "red")


def _apply_objective(view: View) -> None:
    """Select the plan of the objective; why there is none is kept for the next drawing."""
    value = st.session_state.get(_OBJECTIVE)
    if value is None:
        return
    objective = Objective(value)
    bound: float | None = None
    if objective in (Objective.DEADLINE, Objective.BUDGET):
        deadline = objective is Objective.DEADLINE
        current = (
            view.selected.iteration_time_s
            if deadline
            else view.selected.pipeline_energy_j * view.setting.factor
        )
        if st.session_state.get("bound_of") != objective or not st.session_state.get(_BOUND):
            # Starts where the chosen plan is, rounded up so that it meets its own bound.
            places = 3 if deadline else 0
            st.session_state[_BOUND] = math.ceil(current * 10**places) / 10**places
            st.session_state["bound_of"] = objective
        bound = st.session_state[_BOUND] / (1 if deadline else view.setting.factor)
    try:
        plan = by_objective(view.frontiers, objective, bound)
    except KareusError as error:
        st.session_state[_PROBLEM] = str(error)
        return
    select(plan.method, plan.plan)


def _apply_plan() -> None:
    _select_by_id(st.session_state["plan_choice"])


def _select_by_id(name: str) -> None:
    """Select a plan that was pointed at."""
    select(*parse_plan_id(name))
    st.session_state[_OBJECTIVE] = None


def _draw_toggles(view: View) -> None:
    """Which methods are drawn."""
    st.session_state["methods_shown"] = list(view.shown)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.pills(
            "Methods",
            list(view.frontiers),
            key="methods_shown",
            selection_mode="multi",
            format_func=METHOD_NAMES.__getitem__,
            label_visibility="collapsed",
            on_change=_apply_methods,
            args=(tuple(view.frontiers),),
        )
        st.space("stretch")
        st.page_link(
            navigation.CONSTRAINTS.path,
            label="Constraints",
            icon=navigation.CONSTRAINTS.icon,
            help="Plan again under a power cap, allowed clocks, a straggler and more.",
            query_params=url.carried(url.STUDY),
        )


def _apply_methods(every: tuple[Method, ...]) -> None:
    chosen = [method for method in every if method in st.session_state["methods_shown"]]
    url.put(url.METHODS, None if len(chosen) == len(every) else ",".join(chosen) or None)


def _apply_scope() -> None:
    value = Scope(st.session_state["scope_shown"])
    url.put(url.SCOPE, None if value is Scope.PIPELINE else value.value)


def _draw_chart(view: View) -> None:
    """The picture: energy over time, the chosen plan ringed."""
    frame = frontier_frame({m: view.frontiers[m] for m in view.shown}, view.setting)
    guides = None
    if view.selected.method is not Method.PERSEUS:
        guides = guide_frame(view.selected, view.frontiers.get(Method.PERSEUS, ()), view.setting)
    st.altair_chart(
        frontier_figure(
            frame,
            selected=plan_id(view.selected),
            pinned=[plan_id(plan) for plan in view.pinned],
            guides=guides if Method.PERSEUS in view.shown else None,
            energy_title=_SCOPE_TITLES[view.setting.scope],
            palette=palette(),
            height=_CHART_HEIGHT,
        ),
        key=_CHART,
        theme=None,
        width="stretch",
        on_select=_apply_click,
        selection_mode=PLAN_SELECTION,
        alt="Energy over iteration time of every plan of every method; the chosen plan is ringed",
    )


def _apply_click() -> None:
    """Select the plan that was clicked."""
    points = st.session_state[_CHART]["selection"].get(PLAN_SELECTION) or []
    if points and "plan_id" in points[0]:
        _select_by_id(points[0]["plan_id"])


def _draw_comparison(view: View) -> None:
    """The pinned plans beside the chosen one."""
    st.markdown("**Compared**")
    plans = [view.selected, *view.pinned]
    rows: dict[str, list[str]] = {plan_words(plan): _facts(plan, view) for plan in plans}
    st.dataframe(
        pd.DataFrame(rows, index=pd.Index(_FACTS, name="per iteration")),
        height=table_height(len(_FACTS), at_most=12),
        column_config={name: st.column_config.TextColumn(name, alignment="right") for name in rows},
    )


_FACTS = (
    "Iteration time",
    "Energy",
    "Average power",
    "Static share",
    "Above the lower bound",
    "Time against Megatron-LM",
    "Energy against Megatron-LM",
    "Time of the run",
    "Energy of the run",
    "Cost of the run",
    "CO₂ of the run",
)


def _facts(plan: PlanSummary, view: View) -> list[str]:
    """A plan's column of the comparison."""
    factor = view.setting.factor
    against = savings(plan, view.frontiers).get(Method.MEGATRON)
    cost = cost_of_run(plan, view.detail.workload)
    return [
        fmt.time(plan.iteration_time_s),
        fmt.energy(plan.pipeline_energy_j * factor),
        fmt.power(plan.pipeline_energy_j * factor / plan.iteration_time_s),
        fmt.percent(100 * plan.static_energy_j / plan.pipeline_energy_j),
        fmt.DASH if plan.gap is None else fmt.percent(100 * plan.gap),
        fmt.DASH if against is None else fmt.speed(against.fastest_time_pct),
        fmt.DASH if against is None else fmt.reduction(against.fastest_energy_pct, "energy"),
        fmt.duration(cost.time_s),
        fmt.electricity(cost.energy_j),
        fmt.money(cost.cost, CURRENCY),
        fmt.mass(cost.co2_kg),
    ]


def _draw_table(view: View) -> None:
    """Every plan that is drawn; a click on a row chooses it."""
    frame = frontier_frame({m: view.frontiers[m] for m in view.shown}, view.setting)
    st.markdown(
        f"**All plans** · {_SCOPE_TITLES[view.setting.scope].lower().replace('gpu', 'GPU')}"
    )
    names = list(frame["plan_id"])
    position = names.index(plan_id(view.selected))
    st.session_state[_TABLE] = {"selection": {"rows": [position]}}
    st.dataframe(
        frame[
            [
                "method_name",
                "plan",
                "iteration_time_s",
                "energy_j",
                "dynamic_energy_j",
                "static_energy_j",
                "average_power_w",
                "gap_pct",
                "source",
            ]
        ],
        key=_TABLE,
        height=table_height(len(frame), at_most=10),
        hide_index=True,
        placeholder=fmt.DASH,
        on_select=lambda: _apply_row(names),
        selection_mode="single-row-required",
        column_config={
            "method_name": st.column_config.TextColumn("Method", width="medium"),
            "plan": st.column_config.NumberColumn("Plan"),
            "iteration_time_s": st.column_config.NumberColumn("Time (s)", format="%.3f"),
            "energy_j": st.column_config.NumberColumn("Energy (J)", format="%.0f"),
            "dynamic_energy_j": st.column_config.NumberColumn("Dynamic (J)", format="%.0f"),
            "static_energy_j": st.column_config.NumberColumn("Static (J)", format="%.0f"),
            "average_power_w": st.column_config.NumberColumn("Power (W)", format="%.0f"),
            "gap_pct": st.column_config.NumberColumn("Above bound (%)", format="%.2f"),
            "source": st.column_config.TextColumn("Source"),
        },
    )


def _apply_row(names: list[str]) -> None:
    rows = st.session_state[_TABLE]["selection"]["rows"]
    if rows and rows[0] < len(names):
        _select_by_id(names[rows[0]])


guarded(show)()
