"""The planned iteration of one plan, and where its energy goes."""

import altair as alt
import pandas as pd

from kareus.report import format as fmt
from kareus.report.drawing import VIEW, AnyChart, finish, prefixed
from kareus.report.theme import LIGHT, Palette

_TIMELINE_MARGIN = 92
"""Pixels above and below the lanes, for the scale of colours and the time axis."""


def timeline_figure(
    frame: pd.DataFrame,
    *,
    color_by: str = "clock_mhz",
    end_s: float | None = None,
    color_domain: tuple[float, float] | None = None,
    palette: Palette = LIGHT,
    lane_height: int = 44,
) -> AnyChart:
    """Draw the planned iteration: stages as lanes, instructions as blocks, bubbles as gaps.

    Args:
        frame: A timeline frame.
        color_by: `clock_mhz` or `average_power_w`; dark is high.
        end_s: End of the time axis, to draw two plans at one scale; None for the plan's own.
        color_domain: Ends of the colour scale, likewise.
        palette: The mode's colours.
        lane_height: Pixels per stage.
    """
    title = {"clock_mhz": "Clock (MHz)", "average_power_w": "Power of one GPU (W)"}[color_by]
    low, high = color_domain or (float(frame[color_by].min()), float(frame[color_by].max()))
    if low == high:  # one clock: its colour is the scale's middle
        low, high = low * 0.9, high * 1.1
    end_s = 1.004 * (end_s or float(frame["end_s"].max()))  # room for the last outline
    middle = (low + high) / 2
    shown = frame.assign(
        block=[f"{a}{b}" for a, b in zip(frame["letter"], frame["microbatch"], strict=True)],
        fits=frame["duration_s"] > 0.021 * end_s,
        ink=[palette.on_sequential[int(value > middle)] for value in frame[color_by]],
        instruction=[
            f"{direction} of microbatch {microbatch}"
            for direction, microbatch in zip(frame["direction"], frame["microbatch"], strict=True)
        ],
        clock_words=[fmt.clock(value) for value in frame["clock_mhz"]],
        duration_words=[fmt.time(value) for value in frame["duration_s"]],
        slack_words=[
            "critical" if critical else f"{fmt.time(value)} of slack"
            for critical, value in zip(frame["critical"], frame["slack_s"], strict=True)
        ],
        energy_words=[fmt.energy(value) for value in frame["energy_j"]],
        dynamic_words=[fmt.energy(value) for value in frame["dynamic_energy_j"]],
        power_words=[fmt.power(value) for value in frame["average_power_w"]],
    )
    lanes = list(frame.sort_values("stage")["lane"].drop_duplicates())
    x = alt.X(
        "start_s:Q",
        title="Time from the beginning of the iteration (s)",
        scale=alt.Scale(domain=[0, end_s], nice=False),
        axis=alt.Axis(tickCount=10, grid=False, format="~r", labelFlush=True),
    )
    y = alt.Y(
        "lane:N",
        sort=lanes,
        title=None,
        scale=alt.Scale(paddingInner=0.22, paddingOuter=0.12),
        axis=alt.Axis(grid=False, labelColor=palette.text),
    )
    base = alt.Chart(shown)
    blocks = (
        base.mark_bar(stroke=palette.background, strokeWidth=1, cornerRadius=2)
        .encode(
            x=x,
            x2="end_s:Q",
            y=y,
            color=alt.Color(
                f"{color_by}:Q",
                title=title,
                scale=alt.Scale(range=list(palette.sequential), domain=[low, high], clamp=True),
                legend=alt.Legend(
                    orient="top",
                    direction="horizontal",
                    gradientLength=160,
                    gradientThickness=8,
                    titleOrient="left",
                    titlePadding=8,
                    tickCount=3,
                    offset=4,
                    format="~r",
                ),
            ),
            tooltip=[
                alt.Tooltip("lane:N", title="Stage"),
                alt.Tooltip("instruction:N", title="Instruction"),
                alt.Tooltip("clock_words:N", title="Clock"),
                alt.Tooltip("duration_words:N", title="Duration"),
                alt.Tooltip("slack_words:N", title="Critical path"),
                alt.Tooltip("energy_words:N", title="Energy of one GPU"),
                alt.Tooltip("dynamic_words:N", title="of it dynamic"),
                alt.Tooltip("power_words:N", title="Power"),
                alt.Tooltip("execution:N", title="Execution"),
                alt.Tooltip("configurations:N", title="Configurations"),
            ],
        )
        .add_params(alt.selection_interval(name=VIEW, bind="scales", encodings=["x"]))
    )
    outline = (
        base.transform_filter("datum.critical")
        .mark_bar(filled=False, fill=None, stroke=palette.critical, strokeWidth=1.5, cornerRadius=2)
        .encode(x=x, x2="end_s:Q", y=y, tooltip=alt.value(None))
    )
    names = (
        base.transform_filter("datum.fits")
        .transform_calculate(middle_s="(datum.start_s + datum.end_s) / 2")
        .mark_text(fontSize=11, clip=True)
        .encode(
            x=alt.X("middle_s:Q", scale=alt.Scale(domain=[0, end_s], nice=False)),
            y=y,
            text="block:N",
            color=alt.Color("ink:N", scale=None),
            tooltip=alt.value(None),
        )
    )
    return finish(
        alt.layer(blocks, outline, names).properties(
            width="container", height=lane_height * len(lanes) + _TIMELINE_MARGIN
        ),
        palette,
    )


def split_figure(
    frame: pd.DataFrame, *, palette: Palette = LIGHT, row_height: int = 44
) -> AnyChart:
    """Draw static and dynamic energy of the plan and of its baselines as bars from zero."""
    unit, factor = prefixed(frame["energy_j"], "J")
    totals = frame.groupby(["label", "order"], as_index=False)["energy_j"].sum()
    totals["words"] = [fmt.energy(value) for value in totals["energy_j"]]
    frame = frame.assign(
        words=[fmt.energy(value) for value in frame["energy_j"]],
        time_words=[fmt.time(value) for value in frame["iteration_time_s"]],
        layer=(frame["kind"] == "static").astype(int),
    )
    order = list(frame.sort_values("order")["label"].drop_duplicates())
    # Names stand above their bars: beside them they would take half of a narrow card.
    y = alt.Y("label:N", sort=order, title=None, axis=None)
    x = alt.X(
        "energy_j:Q",
        title=None,
        stack="zero",
        scale=alt.Scale(domain=[0, 1.25 * float(totals["energy_j"].max())]),
        axis=None,
    )
    bars = (
        alt.Chart(frame)
        .mark_bar(height=12, yOffset=9)
        .encode(
            y=y,
            x=x,
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(
                    domain=["dynamic", "static"], range=[palette.dynamic, palette.static]
                ),
                legend=alt.Legend(
                    title=None, orient="top", direction="horizontal", offset=8, symbolType="square"
                ),
            ),
            order=alt.Order("layer:Q"),
            tooltip=[
                alt.Tooltip("label:N", title="Plan"),
                alt.Tooltip("kind:N", title="Part"),
                alt.Tooltip("words:N", title=f"Energy ({unit})" if factor == 1 else "Energy"),
                alt.Tooltip("time_words:N", title="Iteration time"),
            ],
        )
    )
    names = (
        alt.Chart(totals)
        .mark_text(align="left", baseline="middle", dy=-9, color=palette.muted)
        .encode(y=y, x=alt.value(0), text="label:N")
    )
    values = (
        alt.Chart(totals)
        .mark_text(align="left", baseline="middle", dx=6, dy=9, fontWeight=600, color=palette.text)
        .encode(y=y, x="energy_j:Q", text="words:N")
    )
    layered = alt.layer(bars, names, values)
    return finish(
        layered.properties(width="container", height=row_height * len(order) + 40), palette
    )
