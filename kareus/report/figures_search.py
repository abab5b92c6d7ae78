"""Charts of what was measured: a partition's points, a search's convergence, parity."""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.comparison import METHOD_NAMES
from kareus.report.drawing import (
    VIEW,
    AnyChart,
    finish,
    methods_of,
    prefixed,
)
from kareus.report.theme import LIGHT, SHAPES, Palette

POINT_SELECTION = "point"
"""Name of the partition chart's selection; its field is `point_id`."""

_LAUNCH_SHAPES: Mapping[str, str] = {
    "norm_0": "circle",
    "linear_0": "square",
    "rope_0": "triangle-up",
    "attn_0": "diamond",
    "activation_0": "triangle-down",
    "none": "cross",
    fmt.DASH: "circle",
}


def partition_figure(
    frame: pd.DataFrame,
    *,
    energy: str = "energy_j",
    selected: str | None = None,
    palette: Palette = LIGHT,
    height: int = 380,
) -> AnyChart:
    """Draw a partition's configurations: energy over time, coloured by clock.

    Args:
        frame: A partition frame.
        energy: `energy_j` (total, with the frontier of the whole space) or `dynamic_energy_j`
            (with one frontier per clock).
        selected: `point_id` to ring.
        palette: The mode's colours.
        height: Pixels.
    """
    per_clock = energy == "dynamic_energy_j"
    frontier = "on_clock_frontier" if per_clock else "on_frontier"
    known = frame[frame[energy].notna()]
    time_unit, time_factor = prefixed(known["time_s"], "s")
    unit, factor = prefixed(known[energy], "J")
    shown = known.assign(
        time_words=[fmt.time(value) for value in known["time_s"]],
        total_words=[fmt.energy(value) for value in known["energy_j"]],
        dynamic_words=[fmt.energy(value) for value in known["dynamic_energy_j"]],
        clock_words=[fmt.clock(value) for value in known["clock_mhz"]],
        sm_words=[fmt.number(value, digits=4) for value in known["sm_allocation"]],
        hollow=~known["filled"].astype(bool),
    )
    x = alt.X(
        "time_s:Q",
        title=f"Time of one execution ({time_unit})",
        scale=alt.Scale(zero=False, padding=12),
        axis=alt.Axis(tickCount=8, labelExpr=f"format(datum.value / {time_factor:g}, ',.4~r')"),
    )
    y = alt.Y(
        f"{energy}:Q",
        title=f"{'Dynamic energy' if per_clock else 'Energy'} of one GPU ({unit})",
        scale=alt.Scale(zero=False, padding=12),
        axis=alt.Axis(tickCount=7, labelExpr=f"format(datum.value / {factor:g}, ',.4~r')"),
    )
    color = alt.Color(
        "clock_mhz:Q",
        title="Clock (MHz)",
        scale=alt.Scale(range=list(palette.marks), zero=False, nice=False),
        legend=alt.Legend(
            orient="right", type="gradient", gradientLength=120, gradientThickness=8, format="~r"
        ),
    )
    shape = alt.Shape(
        "launch_point:N",
        title="Launch point",
        scale=alt.Scale(
            domain=list(_LAUNCH_SHAPES),
            range=list(_LAUNCH_SHAPES.values()),
        ),
        legend=alt.Legend(
            orient="right",
            values=[p for p in _LAUNCH_SHAPES if p in set(shown["launch_point"])],
            symbolStrokeColor=palette.muted,
            symbolFillColor="transparent",
        ),
    )
    base = alt.Chart(shown)
    line = (
        base.transform_filter(f"datum.{frontier}")
        .mark_line(strokeWidth=1.25, color=palette.rule)
        .encode(
            x=x,
            y=y,
            order="time_s:Q",
            detail=["clock_mhz:Q"] if per_clock else [],
            tooltip=alt.value(None),
        )
    )
    pick = alt.selection_point(
        name=POINT_SELECTION, fields=["point_id"], on="click", clear=False, empty=False
    )
    fill: Any = alt.condition("datum.filled", color, alt.value("transparent"))
    points = (
        base.mark_point(strokeWidth=1.5, clip=True)
        .encode(
            x=x,
            y=y,
            stroke=color,
            fill=fill,
            shape=shape,
            size=alt.condition(f"datum.{frontier}", alt.value(64), alt.value(32)),
            opacity=alt.condition(f"datum.{frontier}", alt.value(1.0), alt.value(0.8)),
            tooltip=[
                alt.Tooltip("clock_words:N", title="Clock"),
                alt.Tooltip("launch_point:N", title="Launch point"),
                alt.Tooltip("sm_words:N", title="SM allocation"),
                alt.Tooltip("time_words:N", title="Time"),
                alt.Tooltip("total_words:N", title="Energy"),
                alt.Tooltip("dynamic_words:N", title="of it dynamic"),
                alt.Tooltip("repeats:Q", title="Repeats"),
                alt.Tooltip("source:N", title="Source"),
            ],
        )
        .add_params(pick, alt.selection_interval(name=VIEW, bind="scales"))
    )
    layers: list[alt.Chart] = [line, points]
    if selected is not None:
        layers.append(
            base.transform_filter(alt.FieldEqualPredicate(field="point_id", equal=selected))
            .mark_point(shape="circle", filled=False, size=200, stroke=palette.text, strokeWidth=2)
            .encode(x=x, y=y, tooltip=alt.value(None))
        )
    return finish(alt.layer(*layers).properties(width="container", height=height), palette)


def convergence_figure(
    frame: pd.DataFrame, *, palette: Palette = LIGHT, height: int = 240
) -> AnyChart:
    """Draw hypervolume over measurements, one line per series, each named at its end."""
    series = list(frame["series"].drop_duplicates())
    colors = [palette.methods[method] for method in Method]
    scale = alt.Scale(domain=series, range=(colors * (1 + len(series) // 4))[: len(series)])
    most = float(frame["num_measurements"].max())
    x = alt.X(
        "num_measurements:Q",
        title="Measurements",
        scale=alt.Scale(domain=[0, most * 1.28], nice=False),
    )
    y = alt.Y(
        "hypervolume:Q",
        title="Hypervolume",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(format=".3~g"),
    )
    color = alt.Color("series:N", scale=scale, legend=None)
    base = alt.Chart(frame)
    line = base.mark_line(strokeWidth=1.75, interpolate="step-after").encode(x=x, y=y, color=color)
    dots = base.mark_point(size=30, filled=True, opacity=1).encode(
        x=x,
        y=y,
        color=color,
        tooltip=[
            alt.Tooltip("series:N", title="Search"),
            alt.Tooltip("num_measurements:Q", title="Measurements"),
            alt.Tooltip("hypervolume:Q", title="Hypervolume", format=".4s"),
        ],
    )
    ends = frame.loc[frame.groupby("series")["num_measurements"].idxmax()]
    names = (
        alt.Chart(ends)
        .mark_text(align="left", dx=8, fontWeight=600)
        .encode(x=x, y=y, text="series:N", color=color)
    )
    return finish(
        alt.layer(line, dots, names).properties(width="container", height=height), palette
    )


def parity_figure(frame: pd.DataFrame, *, palette: Palette = LIGHT, side: int = 300) -> AnyChart:
    """Draw predicted against recorded values, time and energy side by side, with the diagonal."""
    charts = [
        _parity_panel(frame[frame["quantity"] == quantity], title, unit, palette, side)
        for quantity, title, unit in (("time", "time", "s"), ("energy", "energy", "J"))
    ]
    return finish(alt.hconcat(*charts, spacing=32), palette)


def _parity_panel(
    frame: pd.DataFrame, title: str, unit: str, palette: Palette, side: int
) -> alt.LayerChart | alt.FacetChart:
    """Draw one quantity."""
    axis_unit, factor = prefixed(frame["recorded"], unit)
    low = 0.95 * float(min(frame["recorded"].min(), frame["predicted"].min()))
    high = 1.05 * float(max(frame["recorded"].max(), frame["predicted"].max()))
    scale = alt.Scale(domain=[low, high], nice=False, zero=False)
    axis = alt.Axis(tickCount=5, labelExpr=f"format(datum.value / {factor:g}, ',.4~r')")
    shown = frame.assign(
        recorded_words=[fmt.quantity(value, unit) for value in frame["recorded"]],
        predicted_words=[fmt.quantity(value, unit) for value in frame["predicted"]],
        error_words=[
            f"{fmt.percent(value)} {'above' if value > 0 else 'below'}"
            for value in frame["error_pct"]
        ],
        method_name=[
            METHOD_NAMES[Method(method)] if method in list(Method) else method
            for method in frame["method"]
        ],
    )
    ends = pd.DataFrame({"recorded": [low, high], "predicted": [low, high]})
    x = alt.X("recorded:Q", title=f"Recorded {title} ({axis_unit})", scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title=f"Predicted {title} ({axis_unit})", scale=scale, axis=axis)
    diagonal = alt.Chart(ends).mark_line(color=palette.rule, strokeWidth=1).encode(x=x, y=y)
    methods = methods_of(frame)
    others = sorted(set(frame["method"]) - set(Method))  # a sweep has no method
    names = [METHOD_NAMES[method] for method in methods] + others
    points = (
        alt.Chart(shown)
        .mark_point(size=46, strokeWidth=1.5, filled=False, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "method_name:N",
                scale=alt.Scale(
                    domain=names,
                    range=[palette.methods[m] for m in methods] + [palette.dynamic] * len(others),
                ),
                legend=alt.Legend(title=None, orient="top", direction="horizontal"),
            ),
            shape=alt.Shape(
                "method_name:N",
                scale=alt.Scale(
                    domain=names,
                    range=[SHAPES[m] for m in methods] + ["circle"] * len(others),
                ),
            ),
            tooltip=[
                alt.Tooltip("label:N", title="Workload"),
                alt.Tooltip("method_name:N", title="Method"),
                alt.Tooltip("recorded_words:N", title="Recorded"),
                alt.Tooltip("predicted_words:N", title="Predicted"),
                alt.Tooltip("error_words:N", title="Prediction"),
            ],
        )
    )
    return alt.layer(diagonal, points).properties(width=side, height=side)
