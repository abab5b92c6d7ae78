"""The charts. They only draw frames of `kareus.report.data`, in the look of `kareus.report.theme`.

Filled marks are measured, hollow ones predicted (simulated or replayed). Every chart has a fixed
height, fills its container's width, and names its units.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import altair as alt
import pandas as pd

from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.comparison import METHOD_NAMES
from kareus.report.data import end_labels
from kareus.report.theme import LIGHT, SHAPES, Palette, config

PLAN_SELECTION = "plan"
"""Name of the frontier's selection; its field is `plan_id`."""
POINT_SELECTION = "point"
"""Name of the partition chart's selection; its field is `point_id`."""
VIEW = "view"
"""Name of the selection that zooms and pans."""

_THIN = {"left": 3, "right": 3, "top": 3, "bottom": 3}
"""Padding of charts without axes; spelt out, because Streamlit writes to its sides."""

_TIMELINE_MARGIN = 92
"""Pixels above and below the lanes, for the scale of colours and the time axis."""

AnyChart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart


def frontier_figure(
    frame: pd.DataFrame,
    *,
    selected: str | None = None,
    pinned: Sequence[str] = (),
    guides: pd.DataFrame | None = None,
    energy_title: str = "Energy per iteration, one GPU of each stage",
    palette: Palette = LIGHT,
    height: int = 440,
) -> AnyChart:
    """Draw energy over time, all methods, with the selected plan ringed.

    Args:
        frame: A frontier frame.
        selected: `plan_id` to ring.
        pinned: Further ones, ringed faintly.
        guides: A guide frame, drawn from the selected plan.
        energy_title: The energy axis' title without its unit.
        palette: The mode's colours.
        height: Pixels.
    """
    x_scale, y_scale = _frontier_scales(frame)
    unit, factor = _prefix(frame["energy_j"], "J")
    y_title = f"{energy_title} ({unit})"
    x = alt.X(
        "iteration_time_s:Q",
        title="Iteration time (s)",
        scale=x_scale,
        axis=alt.Axis(tickCount=8, format="~r"),
    )
    y = alt.Y(
        "energy_j:Q",
        title=y_title,
        scale=y_scale,
        axis=alt.Axis(tickCount=7, labelExpr=f"format(datum.value / {factor:g}, ',.4~r')"),
    )
    shown = _with_frontier_words(frame)
    color = _method_color(shown, palette.methods)
    base = alt.Chart(shown)
    pick = alt.selection_point(
        name=PLAN_SELECTION, fields=["plan_id"], on="click", clear=False, empty=False
    )
    layers: list[alt.Chart] = []
    if frame["energy_low_j"].notna().any():
        layers.append(
            base.mark_area(opacity=0.10, clip=True).encode(
                x=x,
                y=alt.Y("energy_low_j:Q", scale=y_scale, title=y_title),
                y2="energy_high_j:Q",
                color=color,
                tooltip=alt.value(None),
            )
        )
    layers.append(
        base.mark_line(strokeWidth=1.75, clip=True, opacity=0.85).encode(
            x=x, y=y, color=color, order="iteration_time_s:Q", tooltip=alt.value(None)
        )
    )
    layers.append(
        base.mark_point(size=42, strokeWidth=1.5, opacity=1, clip=True).encode(
            x=x,
            y=y,
            stroke=color,
            fill=alt.condition(
                "datum.filled", _method_color(shown, palette.methods), alt.value(palette.background)
            ),
            shape=_method_shape(shown),
            size=alt.condition(pick, alt.value(110), alt.value(42)),
        )
    )
    if guides is not None and not guides.empty:
        layers += _guide_layers(guides, palette, x_scale, y_scale)
    for ids, width, size in (
        (list(pinned), 1.25, 190),
        ([selected] if selected else [], 2.25, 230),
    ):
        if ids:
            layers.append(
                base.transform_filter(alt.FieldOneOfPredicate(field="plan_id", oneOf=ids))
                .mark_point(
                    shape="circle", filled=False, size=size, stroke=palette.text, strokeWidth=width
                )
                .encode(x=x, y=y, tooltip=alt.value(None))
            )
    names = end_labels(shown)
    names["ink"] = [palette.labels[Method(method)] for method in names["method"]]
    layers.append(
        alt.Chart(names)
        .mark_text(align="left", baseline="middle", dx=12, fontSize=12, fontWeight=600)
        .encode(
            x="iteration_time_s:Q",
            y="energy_j:Q",
            text="method_name:N",
            color=alt.Color("ink:N", scale=None),
            tooltip=alt.value(None),
        )
    )
    # A wide invisible mark above all, so that hovering and clicking need no steady hand.
    layers.append(
        base.mark_point(size=260, filled=True, opacity=0.0, cursor="pointer", clip=True)
        .encode(x=x, y=y, tooltip=_frontier_tooltip())
        .add_params(pick, alt.selection_interval(name=VIEW, bind="scales"))
    )
    return _finish(alt.layer(*layers).properties(width="container", height=height), palette)


def split_figure(
    frame: pd.DataFrame, *, palette: Palette = LIGHT, row_height: int = 44
) -> AnyChart:
    """Draw static and dynamic energy of the plan and of its baselines as bars from zero."""
    unit, factor = _prefix(frame["energy_j"], "J")
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
    return _finish(
        layered.properties(width="container", height=row_height * len(order) + 40), palette
    )


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
    return _finish(
        alt.layer(blocks, outline, names).properties(
            width="container", height=lane_height * len(lanes) + _TIMELINE_MARGIN
        ),
        palette,
    )


def sparkline_figure(
    frame: pd.DataFrame, *, palette: Palette = LIGHT, height: int = 28
) -> AnyChart:
    """Draw one search's hypervolume over measurements, without axes."""
    shown = frame.assign(words=[fmt.percent(100 * value) for value in frame["share"]])
    x = alt.X("num_measurements:Q", axis=None, scale=alt.Scale(nice=False))
    y = alt.Y("hypervolume:Q", axis=None, scale=alt.Scale(zero=False, nice=False))
    base = alt.Chart(shown)
    line = base.mark_line(
        color=palette.methods[Method.KAREUS], strokeWidth=1.5, interpolate="step-after"
    ).encode(x=x, y=y)
    last = (
        base.transform_window(last="last_value(num_measurements)", frame=[None, None])
        .transform_filter("datum.num_measurements == datum.last")
        .mark_point(color=palette.methods[Method.KAREUS], filled=True, size=24, opacity=1)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("series:N", title="Search"),
                alt.Tooltip("num_measurements:Q", title="Measurements"),
            ],
        )
    )
    spark = alt.layer(line, last).properties(width="container", height=height, padding=_THIN)
    return _finish(spark, palette)


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
        scale=alt.Scale(domain=[0, most * 1.22], nice=False),
    )
    y = alt.Y(
        "hypervolume:Q",
        title="Hypervolume",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(format=".3~s"),
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
    return _finish(
        alt.layer(line, dots, names).properties(width="container", height=height), palette
    )


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
    time_unit, time_factor = _prefix(known["time_s"], "s")
    unit, factor = _prefix(known[energy], "J")
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
            opacity=alt.condition(f"datum.{frontier}", alt.value(1.0), alt.value(0.65)),
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
    return _finish(alt.layer(*layers).properties(width="container", height=height), palette)


def parity_figure(frame: pd.DataFrame, *, palette: Palette = LIGHT, side: int = 300) -> AnyChart:
    """Draw predicted against recorded values, time and energy side by side, with the diagonal."""
    charts = [
        _parity_panel(frame[frame["quantity"] == quantity], title, unit, palette, side)
        for quantity, title, unit in (("time", "time", "s"), ("energy", "energy", "J"))
    ]
    return _finish(alt.hconcat(*charts, spacing=32), palette)


_LAUNCH_SHAPES: Mapping[str, str] = {
    "norm_0": "circle",
    "linear_0": "square",
    "rope_0": "triangle-up",
    "attn_0": "diamond",
    "activation_0": "triangle-down",
    "none": "cross",
    fmt.DASH: "circle",
}


def _finish(chart: AnyChart, palette: Palette) -> AnyChart:
    """Give a chart the mode's look."""
    return cast(AnyChart, chart.configure(**config(palette)))


def _methods(frame: pd.DataFrame) -> list[Method]:
    """Return the methods of a frame in their usual order."""
    present = set(frame["method"])
    return [method for method in Method if method.value in present]


def _method_color(frame: pd.DataFrame, colors: Mapping[Method, str]) -> alt.Color:
    """Return the fixed colours of the methods."""
    methods = _methods(frame)
    return alt.Color(
        "method:N",
        scale=alt.Scale(domain=[m.value for m in methods], range=[colors[m] for m in methods]),
        legend=None,
    )


def _method_shape(frame: pd.DataFrame) -> alt.Shape:
    """Return the fixed shapes of the methods."""
    methods = _methods(frame)
    return alt.Shape(
        "method:N",
        scale=alt.Scale(domain=[m.value for m in methods], range=[SHAPES[m] for m in methods]),
        legend=None,
    )


def _prefix(values: "pd.Series[Any]", unit: str) -> tuple[str, float]:
    """Return the prefixed unit that fits a column, and what to divide by."""
    largest = float(values.abs().max()) if len(values) else 0.0
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if largest >= factor and not (unit == "s" and factor > 1):
            return f"{prefix}{unit}", factor
    return unit, 1.0


def _frontier_scales(frame: pd.DataFrame) -> tuple[alt.Scale, alt.Scale]:
    """Return scales with room for the names at the right and for the bands."""
    times, energies = frame["iteration_time_s"], frame["energy_j"]
    span_s = max(float(times.max() - times.min()), 0.02 * float(times.max()))
    low = min(float(energies.min()), float(frame["energy_low_j"].fillna(energies).min()))
    high = max(float(energies.max()), float(frame["energy_high_j"].fillna(energies).max()))
    span_j = max(high - low, 0.02 * high)
    return (
        alt.Scale(
            domain=[float(times.min()) - 0.06 * span_s, float(times.max()) + 0.34 * span_s],
            nice=False,
            zero=False,
        ),
        alt.Scale(domain=[low - 0.08 * span_j, high + 0.08 * span_j], nice=False, zero=False),
    )


def _with_frontier_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the tooltip's words."""
    return frame.assign(
        time_words=[fmt.time(value) for value in frame["iteration_time_s"]],
        energy_words=[fmt.energy(value) for value in frame["pipeline_energy_j"]],
        job_words=[fmt.energy(value) for value in frame["job_energy_j"]],
        share_words=[
            fmt.percent(100 * static / energy)
            for static, energy in zip(frame["static_energy_j"], frame["energy_j"], strict=True)
        ],
        power_words=[fmt.power(value) for value in frame["average_power_w"]],
        gap_words=[
            fmt.DASH if pd.isna(value) else f"{value:.2f}{fmt.THIN_SPACE}%"
            for value in frame["gap_pct"]
        ],
    )


def _frontier_tooltip() -> list[alt.Tooltip]:
    """Return what hovering a plan says."""
    return [
        alt.Tooltip("method_name:N", title="Method"),
        alt.Tooltip("plan:Q", title="Plan"),
        alt.Tooltip("time_words:N", title="Iteration time"),
        alt.Tooltip("energy_words:N", title="Energy, one GPU per stage"),
        alt.Tooltip("job_words:N", title="Energy, whole job"),
        alt.Tooltip("share_words:N", title="Static share"),
        alt.Tooltip("power_words:N", title="Average power"),
        alt.Tooltip("gap_words:N", title="Above the lower bound"),
        alt.Tooltip("source:N", title="Source"),
    ]


def _guide_layers(
    guides: pd.DataFrame, palette: Palette, x_scale: alt.Scale, y_scale: alt.Scale
) -> list[alt.Chart]:
    """Return the lines to the Perseus frontier, each with its words."""
    shown = guides.assign(
        words=[
            _guide_words(*values)
            for values in zip(
                guides["kind"],
                guides["time_reduction_pct"],
                guides["energy_reduction_pct"],
                strict=True,
            )
        ]
    )
    x = alt.X("iteration_time_s:Q", scale=x_scale)
    y = alt.Y("energy_j:Q", scale=y_scale)
    end_x = alt.X("end_time_s:Q", scale=x_scale)
    end_y = alt.Y("end_energy_j:Q", scale=y_scale)
    nothing = alt.value(None)
    layers = [
        alt.Chart(shown)
        .mark_rule(strokeDash=[4, 3], stroke=palette.rule, strokeWidth=1.25, clip=True)
        .encode(x=x, y=y, x2="end_time_s:Q", y2="end_energy_j:Q", tooltip=nothing),
        alt.Chart(shown)
        .mark_point(
            shape="square", filled=True, size=30, opacity=1, color=palette.methods[Method.PERSEUS]
        )
        .encode(x=end_x, y=end_y, tooltip=nothing),
    ]
    for kind, style in _GUIDE_TEXT.items():
        rows = shown[shown["kind"] == kind]
        if rows.empty:
            continue
        # The words may cross a line: a halo of the background keeps them readable.
        for halo in (True, False):
            ink: dict[str, Any] = (
                {"stroke": palette.background, "strokeWidth": 4, "strokeJoin": "round"}
                if halo
                else {}
            )
            layers.append(
                alt.Chart(rows)
                .mark_text(color=palette.text, fontSize=12, clip=True, **style, **ink)
                .encode(x=end_x, y=end_y, text="words:N", tooltip=nothing)
            )
    return layers


_GUIDE_TEXT: Mapping[str, dict[str, Any]] = {
    "time": {"align": "left", "baseline": "bottom", "dx": 8, "dy": -6},
    "fastest": {"align": "left", "baseline": "bottom", "dx": 8, "dy": -6},
    "energy": {"align": "right", "baseline": "bottom", "dx": -12, "dy": -5},
}


def _guide_words(kind: str, time_pct: float, energy_pct: float) -> str:
    """Return what a guide line says."""
    if kind == "time":
        return f"{fmt.reduction(energy_pct, 'energy')} at equal time"
    if kind == "energy":
        return f"{fmt.reduction(time_pct, 'time')} at equal energy"
    return f"{fmt.speed(time_pct)}, {fmt.reduction(energy_pct, 'energy')}"


def _parity_panel(
    frame: pd.DataFrame, title: str, unit: str, palette: Palette, side: int
) -> alt.LayerChart | alt.FacetChart:
    """Draw one quantity."""
    prefixed, factor = _prefix(frame["recorded"], unit)
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
    x = alt.X("recorded:Q", title=f"Recorded {title} ({prefixed})", scale=scale, axis=axis)
    y = alt.Y("predicted:Q", title=f"Predicted {title} ({prefixed})", scale=scale, axis=axis)
    diagonal = alt.Chart(ends).mark_line(color=palette.rule, strokeWidth=1).encode(x=x, y=y)
    methods = _methods(frame)
    names = [METHOD_NAMES[method] for method in methods]
    points = (
        alt.Chart(shown)
        .mark_point(size=46, strokeWidth=1.5, filled=False, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "method_name:N",
                scale=alt.Scale(domain=names, range=[palette.methods[m] for m in methods]),
                legend=alt.Legend(title=None, orient="top", direction="horizontal"),
            ),
            shape=alt.Shape(
                "method_name:N",
                scale=alt.Scale(domain=names, range=[SHAPES[m] for m in methods]),
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
