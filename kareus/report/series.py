"""Colours and shapes for what is no method: layouts, studies. Never the methods' own colours.

The first is Kareus' blue, as all such series are Kareus' plans; the others differ from it and from
each other under the common forms of colour blindness, and by shape.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import altair as alt

from kareus.report.theme import Palette

_COLORS: Mapping[str, Sequence[str]] = {
    "light": (
        "#1f4fa3",
        "#a8479a",
        "#0b7f8c",
        "#b3541e",
        "#6d6200",
        "#6a4fc4",
        "#3f7d2a",
        "#8a4b5c",
    ),
    "dark": (
        "#6ea4f7",
        "#df94d3",
        "#5cc8d2",
        "#f09a6c",
        "#d3c65a",
        "#b4a1f5",
        "#93cf7c",
        "#d9a3b2",
    ),
}
_SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
)

MAX_SERIES = len(_SHAPES)
"""So many series can be told apart."""


def series_colors(names: Sequence[str], palette: Palette) -> dict[str, str]:
    """Return the colour of each series, in the order given; beyond the eighth they repeat."""
    colors = _COLORS[palette.name]
    return {name: colors[i % len(colors)] for i, name in enumerate(names)}


def series_color(
    field: str,
    names: Sequence[str],
    palette: Palette,
    *,
    legend: alt.Legend | None = None,
) -> alt.Color:
    """Return the colour encoding of series."""
    return alt.Color(
        f"{field}:N",
        title=None,
        scale=alt.Scale(domain=list(names), range=list(series_colors(names, palette).values())),
        legend=legend,
    )


def series_shape(
    field: str, names: Sequence[str], *, legend: alt.Legend | None = None
) -> alt.Shape:
    """Return the shape encoding of series."""
    shapes = [_SHAPES[i % len(_SHAPES)] for i in range(len(names))]
    return alt.Shape(
        f"{field}:N",
        title=None,
        scale=alt.Scale(domain=list(names), range=shapes),
        legend=legend,
    )


def series_legend(orient: Literal["right", "top"] = "right") -> alt.Legend:
    """Return the legend of series, for charts whose lines have no end to stand at."""
    return alt.Legend(title=None, orient=orient, symbolSize=70, labelLimit=220, rowPadding=6)
