"""Partitions: what was measured, which of it is best, and whether the search had enough."""

import pandas as pd
import streamlit as st

from app import url
from app.backend import convergence, measurements, partitions, study_detail
from app.components.charts import draw, palette
from app.components.frame import escape, guarded
from app.components.study_bar import choose_study
from app.components.tables import table_height
from app.components.text import quiet
from app.wording import count
from kareus.errors import NotFoundError
from kareus.report import format as fmt
from kareus.report.data import convergence_frame, partition_frame
from kareus.report.figures import POINT_SELECTION, convergence_figure, partition_figure
from kareus.service import Convergence, PartitionProgress, StudySummary

_CHART = "partition_chart"
_CHOICE = "partition_choice"
_ENERGY = "partition_energy"
_POINT = "partition_point"
_ENERGIES = {"energy_j": "Total energy", "dynamic_energy_j": "Dynamic, per clock"}
_CHART_HEIGHT = 410
# Share of the predicted hypervolume at which a search has enough.
_ENOUGH = 0.99


def show() -> None:
    """Draw the page."""
    url.enter(url.STUDY, url.PARTITION)
    study = choose_study(needs_plans=False)
    if study is not None:
        st.fragment(guarded(_draw))(study)


def _draw(study: StudySummary) -> None:
    """Draw everything that a choice changes."""
    found = partitions(study.id)
    if not found:
        raise NotFoundError(f"study {study.name} has measured nothing yet: watch its job")
    chosen = next((one for one in found if one.name == url.get(url.PARTITION)), found[0])
    frame = partition_frame(
        measurements(study.id, chosen.name, chosen.done),
        static_power_w=_static_power_w(study),
    )
    st.subheader(escape(_answer(chosen, frame)))
    _draw_choice(found, chosen)
    left, right = st.columns([2.05, 1], gap="medium")
    with left:
        _draw_points(frame)
    _draw_table(frame)
    with right, st.spinner("Comparing with random picks"):  # last: it is computed
        _draw_convergence(study, chosen)


def _static_power_w(study: StudySummary) -> float:
    return study_detail(study.id, study.state).workload.gpu.static_power_w


def _answer(chosen: PartitionProgress, frame: pd.DataFrame) -> str:
    """The page's answer: the best of what was measured, and the trade-off it offers."""
    best = frame[frame["on_frontier"]]
    if best.empty:
        return f"{chosen.name}: no energy could be measured"
    best = best.sort_values("time_s")
    fastest, frugal = best.iloc[0], best.iloc[-1]
    return (
        f"{chosen.name}: {len(best)} of {count(len(frame))} configurations are best, from "
        f"{fmt.time(fastest['time_s'])} and {fmt.energy(fastest['energy_j'])} to "
        f"{fmt.time(frugal['time_s'])} and {fmt.energy(frugal['energy_j'])}"
    )


def _draw_choice(found: list[PartitionProgress], chosen: PartitionProgress) -> None:
    """Which partition, which energy."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.session_state[_CHOICE] = chosen.name
        st.selectbox(
            "Partition",
            [one.name for one in found],
            key=_CHOICE,
            label_visibility="collapsed",
            width=240,
            on_change=_apply_choice,
        )
        st.session_state.setdefault(_ENERGY, "energy_j")
        st.segmented_control(
            "Energy",
            list(_ENERGIES),
            key=_ENERGY,
            required=True,
            format_func=_ENERGIES.__getitem__,
            label_visibility="collapsed",
            help="Total: the best of all. Dynamic: the best at each clock, what plans are made of.",
        )
        quiet(f"{count(chosen.done)} of {count(chosen.planned)} measurements", width="content")


def _apply_choice() -> None:
    url.put(url.PARTITION, st.session_state[_CHOICE])
    st.session_state.pop(_POINT, None)


def _draw_points(frame: pd.DataFrame) -> None:
    """The measured points with their frontier."""
    st.altair_chart(
        partition_figure(
            frame,
            energy=st.session_state[_ENERGY],
            selected=st.session_state.get(_POINT),
            palette=palette(),
            height=_CHART_HEIGHT,
        ),
        key=_CHART,
        theme=None,
        width="stretch",
        on_select=_apply_click,
        selection_mode=POINT_SELECTION,
        alt="Energy over time of every configuration of the partition, its frontier connected",
    )


def _apply_click() -> None:
    points = st.session_state[_CHART]["selection"].get(POINT_SELECTION) or []
    if points and "point_id" in points[0]:
        st.session_state[_POINT] = points[0]["point_id"]


def _draw_convergence(study: StudySummary, chosen: PartitionProgress) -> None:
    """How the search got there, beside random picks."""
    st.markdown(
        "**Convergence of the search**",
        help="Share of the hypervolume that the whole space is predicted to have by everything "
        "measured; for random picks its expectation.",
    )
    found = convergence(study.id, chosen.name, chosen.done)
    if found is None:
        quiet("There is nothing to compare yet: hardly anything is measured.")
        return
    if found.num_configurations >= found.size:
        quiet("Every configuration was measured: there was nothing to search for.")
        return
    frame = convergence_frame({"this search": found.search, "random": found.random})
    draw(
        convergence_figure(frame, palette=palette()),
        key="convergence",
        alt_text="Hypervolume over the number of measurements, of this search and of random picks",
    )
    quiet(_verdict(found))


def _verdict(found: Convergence) -> str:
    """What the convergence means, in a sentence."""
    measured = found.search[-1][0]
    enough, share = next((point for point in found.search if point[1] >= _ENOUGH), found.search[-1])
    random = fmt.percent(100 * found.random[-1][1])
    return (
        f"{fmt.percent(100 * share)} of what is predicted to be there after {count(enough)} of "
        f"{count(measured)} measurements; random picks are expected to reach {random} with all "
        f"{count(measured)}, of {count(found.size)} configurations there are."
    )


def _draw_table(frame: pd.DataFrame) -> None:
    """Every configuration, best first."""
    shown = frame.sort_values(["on_frontier", "time_s"], ascending=[False, True])
    st.markdown("**All configurations**")
    st.dataframe(
        shown[
            [
                "clock_mhz",
                "launch_point",
                "sm_allocation",
                "time_s",
                "energy_j",
                "dynamic_energy_j",
                "on_frontier",
                "repeats",
                "source",
            ]
        ].assign(time_s=1e3 * shown["time_s"]),
        key="configurations_measured",
        hide_index=True,
        height=table_height(len(shown), at_most=10),
        placeholder=fmt.DASH,
        column_config={
            "clock_mhz": st.column_config.NumberColumn("Clock (MHz)", format="%d"),
            "launch_point": st.column_config.TextColumn("Launch point"),
            "sm_allocation": st.column_config.NumberColumn("SM allocation", format="%d"),
            "time_s": st.column_config.NumberColumn("Time (ms)", format="%.3f"),
            "energy_j": st.column_config.NumberColumn("Energy (J)", format="%.3f"),
            "dynamic_energy_j": st.column_config.NumberColumn("Dynamic (J)", format="%.3f"),
            "on_frontier": st.column_config.CheckboxColumn("Best"),
            "repeats": st.column_config.NumberColumn("Repeats"),
            "source": st.column_config.TextColumn("Source"),
        },
    )


guarded(show)()
