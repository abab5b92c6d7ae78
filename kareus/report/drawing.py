"""What the charts share: the mode's look, the methods' colours and shapes, prefixed units."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import altair as alt
import pandas as pd

from kareus.core.plan import Method
from kareus.report.theme import SHAPES, Palette, config

AnyChart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart | alt.HConcatChart

VIEW = "view"
"""Name of the selection that zooms and pans."""

THIN_PADDING = {"left": 3, "right": 3, "top": 3, "bottom": 3}
"""Padding of charts without axes; spelt out, because Streamlit writes to its sides."""


def finish(chart: AnyChart, palette: Palette) -> AnyChart:
    """Give a chart the mode's look."""
    return cast(AnyChart, chart.configure(**config(palette)))


def methods_of(frame: pd.DataFrame) -> list[Method]:
    """Return the methods of a frame in their usual order."""
    present = set(frame["method"])
    return [method for method in Method if method.value in present]


def method_color(frame: pd.DataFrame, colors: Mapping[Method, str]) -> alt.Color:
    """Return the fixed colours of the methods."""
    methods = methods_of(frame)
    return alt.Color(
        "method:N",
        scale=alt.Scale(domain=[m.value for m in methods], range=[colors[m] for m in methods]),
        legend=None,
    )


def method_shape(frame: pd.DataFrame) -> alt.Shape:
    """Return the fixed shapes of the methods."""
    methods = methods_of(frame)
    return alt.Shape(
        "method:N",
        scale=alt.Scale(domain=[m.value for m in methods], range=[SHAPES[m] for m in methods]),
        legend=None,
    )


def prefixed(values: "pd.Series[Any]", unit: str) -> tuple[str, float]:
    """Return the prefixed unit that fits a column, and what to divide by."""
    largest = float(values.abs().max()) if len(values) else 0.0
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ")):
        if largest >= factor and not (unit == "s" and factor > 1):
            return f"{prefix}{unit}", factor
    return unit, 1.0
