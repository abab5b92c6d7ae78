"""The chosen plan's card: its figures, where its energy goes, what a run costs, the download."""

import streamlit as st

from app import navigation, url
from app.components.charts import draw, palette
from app.components.downloads import draw_download
from app.components.frontier_view import View, plan_words
from app.components.run_settings import (
    CURRENCY,
    cost_of_run,
    draw_run_settings,
    num_tokens,
    tokens_words,
)
from app.components.text import quiet
from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.data import split_frame
from kareus.report.figures import split_figure

MAX_PINS = 3


def draw_plan_card(view: View) -> None:
    """Draw the card."""
    plan = view.selected
    factor = view.setting.factor
    with st.container(border=True, gap="xsmall", height="stretch"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plan_words(plan)}**", width="stretch")
            _draw_pin(view)
        time_column, energy_column, power_column = st.columns(3, gap="small")
        time_column.metric("Time", fmt.time(plan.iteration_time_s))
        energy_column.metric(
            "Energy", fmt.energy(plan.pipeline_energy_j * factor), help=_bound_words(plan.gap)
        )
        power_column.metric(
            "Power", fmt.power(plan.pipeline_energy_j * factor / plan.iteration_time_s)
        )
        draw(
            split_figure(split_frame(plan, view.frontiers, view.setting), palette=palette()),
            key="split",
            alt_text="Static and dynamic energy of the chosen plan beside its baselines",
        )
        _draw_run(view)
        draw_download(view.detail.id, plan, key="download")


def _bound_words(gap: float | None) -> str | None:
    """How near the plan is to the least energy possible at its time."""
    if gap is None:
        return None
    return (
        f"At most {fmt.percent(100 * gap)} above the least energy any choice of these options "
        "needs at this time (lower bound of a linear program)."
    )


def _draw_run(view: View) -> None:
    """What a run of many tokens takes, and what it saves."""
    cost = cost_of_run(view.selected, view.detail.workload)
    lines = [
        f"{fmt.duration(cost.time_s)} · {fmt.electricity(cost.energy_j)} · "
        f"{fmt.money(cost.cost, CURRENCY)} · {fmt.mass(cost.co2_kg)} CO₂"
    ]
    baseline = view.frontiers.get(Method.MEGATRON)
    if baseline and view.selected.method is not Method.MEGATRON:
        other = cost_of_run(baseline[0], view.detail.workload)
        earlier_s, saved_j = other.time_s - cost.time_s, other.energy_j - cost.energy_j
        lines.append(
            f"Against Megatron-LM: {_sooner(earlier_s, cost.time_s)}, "
            f"{_less(fmt.electricity(abs(saved_j)), saved_j)}"
        )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"A run of {tokens_words(num_tokens())}", width="stretch")
        with st.popover("Change", type="tertiary", icon=":material/tune:"):
            draw_run_settings()
    quiet(lines[0])
    for line in lines[1:]:
        quiet(line)


def _sooner(earlier_s: float, whole_s: float) -> str:
    """A difference in time in words; none where it is below what the run's time shows."""
    if abs(earlier_s) < 5e-4 * whole_s:
        return "as fast"
    return _less(fmt.duration(abs(earlier_s)), earlier_s)


def _less(words: str, saved: float) -> str:
    """A difference in words."""
    return f"{words} {'less' if saved >= 0 else 'more'}"


def _draw_pin(view: View) -> None:
    """Pin the plan to compare it with another, or let it go."""
    mine = (view.selected.method, view.selected.plan)
    pins = url.get_pins()
    pinned = mine in pins
    st.button(
        "Unpin" if pinned else "Pin",
        icon=":material/keep_off:" if pinned else ":material/keep:",
        type="tertiary",
        key="pin",
        help="Pinned plans stay marked in the chart and stand side by side below it.",
        on_click=_toggle_pin,
        args=(mine,),
        disabled=not pinned and len(pins) >= MAX_PINS,
    )
    if st.button("Open", icon=navigation.PLAN.icon, type="tertiary", key="open_plan"):
        st.switch_page(
            navigation.PLAN.path, query_params=url.carried(url.STUDY, url.METHOD, url.PLAN)
        )


def _toggle_pin(pin: tuple[Method, int]) -> None:
    pins = url.get_pins()
    url.put_pins([other for other in pins if other != pin] if pin in pins else [*pins, pin])
