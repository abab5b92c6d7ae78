"""The frontier: energy over time, all methods, the chosen plan and what it gains."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.data import end_labels
from kareus.report.drawing import VIEW, AnyChart, finish, method_color, method_shape, prefixed
from kareus.report.theme import LIGHT, Palette

PLAN_SELECTION = "plan"
"""Name of the frontier's selection; its field is `plan_id`."""


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
    unit, factor = prefixed(frame["energy_j"], "J")
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
    color = method_color(shown, palette.methods)
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
        layers.append(_band_words(frame, palette))
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
                "datum.filled", method_color(shown, palette.methods), alt.value(palette.background)
            ),
            shape=method_shape(shown),
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
    return finish(alt.layer(*layers).properties(width="container", height=height), palette)


def _band_words(frame: pd.DataFrame, palette: Palette) -> alt.Chart:
    """Say what the bands are, where no line ends: at the lower right."""
    banded = frame[frame["energy_high_j"].notna()]
    share = float((banded["energy_high_j"] / banded["energy_j"] - 1).max())
    words = f"bands: energies to about \N{PLUS-MINUS SIGN}{fmt.percent(100 * share)}, assumed"
    chart: alt.Chart = (
        alt.Chart(pd.DataFrame({"words": [words]}))
        .mark_text(align="right", baseline="bottom", fontSize=12, color=palette.muted)
        .encode(
            x=alt.value(alt.ExprRef("width - 8")),
            y=alt.value(alt.ExprRef("height - 8")),
            text="words:N",
            tooltip=alt.value(None),
        )
    )
    return chart


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


_GUIDE_TEXT: Mapping[str, dict[str, Any]] = {
    "time": {"align": "left", "baseline": "bottom", "dx": 8, "dy": -6},
    "fastest": {"align": "left", "baseline": "bottom", "dx": 8, "dy": -6},
    "energy": {"align": "left", "baseline": "bottom", "dx": 8, "dy": -5},
}
_LINE = 17  # pixels from one line of words to the next
_LINE_SHARE = 0.07  # of the chart's height that two lines of words take, amply
_WORDS_SHARE = 0.3  # of the chart's width that a guide's words take, amply


def _guide_styles(
    guides: pd.DataFrame, x_scale: alt.Scale, y_scale: alt.Scale
) -> dict[str, dict[str, Any]]:
    """Return how each guide's words stand: within the chart, none over another."""
    styles = {kind: dict(style) for kind, style in _GUIDE_TEXT.items()}
    ends = guides.set_index("kind")
    (first_s, last_s), (least_j, most_j) = x_scale.domain, y_scale.domain
    for kind in ends.index:
        if (last_s - ends["end_time_s"][kind]) / (last_s - first_s) < _WORDS_SHARE:
            styles[kind] |= {"align": "right", "dx": -12}
    if {"time", "energy"} <= set(ends.index):
        apart_j = ends["end_energy_j"]["time"] - ends["end_energy_j"]["energy"]
        if abs(apart_j) / (most_j - least_j) < _LINE_SHARE:
            styles["time"]["dy"] -= _LINE
    return styles


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
    for kind, style in _guide_styles(guides, x_scale, y_scale).items():
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


def _guide_words(kind: str, time_pct: float, energy_pct: float) -> str:
    """Return what a guide line says."""
    if kind == "time":
        return f"{fmt.reduction(energy_pct, 'energy')} at equal time"
    if kind == "energy":
        return f"{fmt.reduction(time_pct, 'time')} at equal energy"
    return f"{fmt.speed(time_pct)}, {fmt.reduction(energy_pct, 'energy')}"
