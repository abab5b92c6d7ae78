"""Plan: one iteration under the chosen plan, beside a baseline at one scale, and its launch."""

import pandas as pd
import streamlit as st

from app import navigation, url
from app.backend import plan as load_plan
from app.backend import timeline
from app.components.charts import draw, palette
from app.components.downloads import draw_download
from app.components.frame import escape, guarded
from app.components.frontier_view import View, build_view, plan_words, select
from app.components.study_bar import choose_study
from app.components.tables import table_height
from app.components.text import quiet
from app.wording import plural
from kareus.core.plan import Method
from kareus.errors import InfeasibleError
from kareus.report import format as fmt
from kareus.report.comparison import METHOD_NAMES
from kareus.report.data import (
    bubble_share,
    configuration_frame,
    parse_plan_id,
    plan_id,
    timeline_frame,
)
from kareus.report.figures import timeline_figure
from kareus.service import PlanSummary, StudySummary, select_plan

_COLOURS = {"clock_mhz": "Clock", "average_power_w": "Power"}
_COLOUR = "timeline_colour"
_AROUND_PX = 84  # axis, legend and padding; charts are sized as a whole
_MAX_LANES_PX = 380


def show() -> None:
    """Draw the page."""
    url.enter(url.STUDY, url.METHOD, url.PLAN, url.BASELINE)
    study = choose_study()
    if study is not None:
        st.fragment(guarded(_draw))(study)


def _draw(study: StudySummary) -> None:
    """Draw everything that a choice changes."""
    view = build_view(study)
    baseline = _baseline(view)
    mine = _rows(view, view.selected)
    other = None if baseline is None else _rows(view, baseline)
    st.subheader(escape(_answer(view, mine, baseline, other)))
    _draw_choice(view, baseline)
    _draw_timelines(view, mine, baseline, other)
    _draw_configurations(view)
    _draw_launch(view)


def _answer(
    view: View, mine: pd.DataFrame, baseline: PlanSummary | None, other: pd.DataFrame | None
) -> str:
    """The page's answer: how busy the stages are, and at which clocks."""
    sentence = (
        f"{plan_words(view.selected)}: {fmt.time(view.selected.iteration_time_s)} per iteration, "
        f"stages idle {fmt.percent(100 * bubble_share(mine))} of it, {_clocks(mine)}."
    )
    if baseline is None or other is None:
        return sentence
    return (
        f"{sentence} {plan_words(baseline)}: {fmt.time(baseline.iteration_time_s)}, "
        f"idle {fmt.percent(100 * bubble_share(other))}, {_clocks(other)}."
    )


def _clocks(frame: pd.DataFrame) -> str:
    low, high = int(frame["clock_mhz"].min()), int(frame["clock_mhz"].max())
    return f"at {fmt.clock(high)}" if low == high else f"at {low} to {fmt.clock(high)}"


def _rows(view: View, plan: PlanSummary) -> pd.DataFrame:
    return timeline_frame(timeline(view.detail.id, view.detail.state, plan.method, plan.plan))


def _baseline(view: View) -> PlanSummary | None:
    """The plan to compare with: of the method the URL names, at equal time if there is one."""
    others = [method for method in view.frontiers if method is not view.selected.method]
    if not others:
        return None
    fallback = Method.MEGATRON if Method.MEGATRON in others else others[-1]
    method = url.get_method(url.BASELINE, fallback)
    if method not in others:
        method = fallback
    plans = view.frontiers[method]
    try:
        return select_plan(plans, deadline_s=view.selected.iteration_time_s)
    except InfeasibleError:
        return plans[0]


def _draw_choice(view: View, baseline: PlanSummary | None) -> None:
    """Which plan, beside which baseline, coloured by what."""
    options = {plan_id(plan): plan for plans in view.frontiers.values() for plan in plans}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.session_state["plan_page_choice"] = plan_id(view.selected)
        st.selectbox(
            "Plan",
            list(options),
            key="plan_page_choice",
            format_func=lambda name: (
                f"{plan_words(options[name])}, {fmt.time(options[name].iteration_time_s)}"
            ),
            label_visibility="collapsed",
            width=300,
            on_change=_apply_plan,
        )
        if baseline is not None:
            others = [method for method in view.frontiers if method is not view.selected.method]
            st.session_state["baseline_choice"] = baseline.method
            st.selectbox(
                "Beside",
                others,
                key="baseline_choice",
                format_func=lambda method: f"beside {METHOD_NAMES[method]}",
                label_visibility="collapsed",
                width=280,
                on_change=_apply_baseline,
            )
        st.session_state.setdefault(_COLOUR, "clock_mhz")
        st.segmented_control(
            "Colour by",
            list(_COLOURS),
            key=_COLOUR,
            format_func=_COLOURS.__getitem__,
            required=True,
            label_visibility="collapsed",
        )
        st.page_link(
            navigation.FRONTIER.path,
            label="Back to the frontier",
            icon=navigation.FRONTIER.icon,
            query_params=url.carried(
                url.STUDY, url.METHOD, url.PLAN, url.METHODS, url.SCOPE, url.PINS
            ),
        )


def _apply_plan() -> None:
    select(*parse_plan_id(st.session_state["plan_page_choice"]))


def _apply_baseline() -> None:
    url.put(url.BASELINE, st.session_state["baseline_choice"])


def _draw_timelines(
    view: View, mine: pd.DataFrame, baseline: PlanSummary | None, other: pd.DataFrame | None
) -> None:
    """Both timelines at one time axis and one colour scale."""
    colour = st.session_state[_COLOUR]
    frames = [mine] if other is None else [mine, other]
    end_s = max(float(frame["end_s"].max()) for frame in frames)
    domain = (
        min(float(frame[colour].min()) for frame in frames),
        max(float(frame[colour].max()) for frame in frames),
    )
    num_stages = view.detail.workload.parallelism.pp
    lane_px = max(14, min(44, _MAX_LANES_PX // num_stages))
    for key, plan, frame in (("mine", view.selected, mine), ("other", baseline, other)):
        if plan is None or frame is None:
            continue
        st.markdown(f"**{plan_words(plan)}**")
        draw(
            timeline_figure(
                frame,
                color_by=colour,
                end_s=end_s,
                color_domain=domain,
                palette=palette(),
                lane_height=lane_px,
            ).properties(height=lane_px * num_stages + _AROUND_PX),
            key=f"timeline_{key}",
            alt_text=(
                f"Timeline of {plan_words(plan)}: one lane per stage, one block per instruction, "
                "the critical path outlined"
            ),
        )


def _draw_configurations(view: View) -> None:
    """What each stage's forwards and backwards run with."""
    plan = view.selected
    frame = configuration_frame(
        load_plan(view.detail.id, view.detail.state, plan.method, plan.plan),
        timeline(view.detail.id, view.detail.state, plan.method, plan.plan),
    )
    st.markdown(
        f"**Configurations** · {plural(len(frame), 'distinct setting')} "
        "(launch point and SMs of each partition)"
    )
    st.dataframe(
        frame,
        key="configurations",
        hide_index=True,
        height=table_height(len(frame), at_most=10),
        column_config={
            "stage": st.column_config.NumberColumn("Stage", pinned=True),
            "instruction": st.column_config.TextColumn("Instruction", pinned=True),
            "microbatches": st.column_config.TextColumn("Microbatches"),
            "count": None,
            "clock_mhz": st.column_config.NumberColumn("Clock (MHz)", format="%d"),
            "execution": st.column_config.TextColumn("Execution"),
            "time_s": st.column_config.NumberColumn("Time (s)", format="%.4f"),
            "dynamic_energy_j": st.column_config.NumberColumn("Dynamic (J)", format="%.1f"),
        },
    )


def _draw_launch(view: View) -> None:
    """How to run it: download, then one command."""
    plan = view.selected
    name = f"{view.detail.id}-{plan.method.value}-plan-{plan.plan}"
    st.markdown("**Launch**")
    left, right = st.columns([1, 2.4], gap="medium", vertical_alignment="top")
    with left:
        draw_download(view.detail.id, plan, key="download_plan")
        quiet(
            "schedule.json, the clock and launch lists, launch.sh, launch.sbatch, and a trace for "
            "Perfetto, with a checksum."
        )
    with right:
        st.code(
            f"unzip {name}.zip -d {name}\n"
            f"./{name}/launch.sh --steps 100          # one node\n"
            f"sbatch {name}/launch.sbatch --steps 100  # Slurm, one task per node",
            language="bash",
        )
        st.code(
            f"kareus export {view.detail.id} --plan {plan.plan} --method {plan.method.value} "
            f"--out {name}.zip",
            language="bash",
        )


guarded(show)()
