"""The one look of all charts: colours, shapes, type and grid, in light and in dark.

Colours tell apart under the common forms of colour blindness (blue, green, orange, grey of
different lightness), and never alone: every method has its own shape and its name at its line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import altair as alt

from kareus.core.plan import Method

FONT = "Source Sans, Source Sans Pro, Inter, Helvetica, Arial, sans-serif"

SHAPES: Mapping[Method, str] = {
    Method.KAREUS: "circle",
    Method.NANOBATCHING_PERSEUS: "triangle-up",
    Method.PERSEUS: "square",
    Method.MEGATRON: "diamond",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Palette:
    """The colours of one mode.

    Attributes:
        name: `light` or `dark`.
        background: The page's; hollow marks are filled with it.
        text: Main text.
        muted: Axis labels, secondary text (contrast AA on the background).
        grid: Grid lines.
        rule: Guide lines and outlines.
        methods: Colour of each method's marks.
        labels: Colour of each method's name (contrast AA on the background).
        dynamic: Dynamic energy (saturated).
        static: Static energy (light, same hue).
        sequential: Ends and middle of the scale of clocks and powers, low to high.
        marks: The same scale for thin marks, whose low end must stand out from the background.
        on_sequential: Text on the low and on the high end.
        critical: Outline of the critical path.
    """

    name: str
    background: str
    text: str
    muted: str
    grid: str
    rule: str
    methods: Mapping[Method, str]
    labels: Mapping[Method, str]
    dynamic: str
    static: str
    sequential: tuple[str, ...]
    marks: tuple[str, ...]
    on_sequential: tuple[str, str]
    critical: str


LIGHT = Palette(
    name="light",
    background="#ffffff",
    text="#1b2430",
    muted="#55606e",
    grid="#eceff3",
    rule="#8a94a1",
    methods={
        Method.KAREUS: "#1f4fa3",
        Method.NANOBATCHING_PERSEUS: "#0f8a5f",
        Method.PERSEUS: "#d9730d",
        Method.MEGATRON: "#6b7480",
    },
    labels={
        Method.KAREUS: "#1f4fa3",
        Method.NANOBATCHING_PERSEUS: "#12714f",
        Method.PERSEUS: "#a85500",
        Method.MEGATRON: "#5b6673",
    },
    dynamic="#1f4fa3",
    static="#b9cbea",
    sequential=("#dce7f7", "#7fa6dd", "#3a6cbc", "#12316e"),
    marks=("#9dbbe8", "#6690d2", "#2f5fae", "#0d2558"),
    on_sequential=("#1b2430", "#ffffff"),
    critical="#1b2430",
)

DARK = Palette(
    name="dark",
    background="#10141a",
    text="#e6eaf0",
    muted="#a3adba",
    grid="#232b36",
    rule="#75808e",
    methods={
        Method.KAREUS: "#6ea4f7",
        Method.NANOBATCHING_PERSEUS: "#4cc38a",
        Method.PERSEUS: "#f0a35e",
        Method.MEGATRON: "#a3adba",
    },
    labels={
        Method.KAREUS: "#8ab6ff",
        Method.NANOBATCHING_PERSEUS: "#4cc38a",
        Method.PERSEUS: "#f0a35e",
        Method.MEGATRON: "#a3adba",
    },
    dynamic="#6ea4f7",
    static="#2f4468",
    # Dark is high in both modes, so the low end is the light one here too.
    sequential=("#cfe0fb", "#86aeec", "#4474bf", "#22427d"),
    marks=("#dbe8ff", "#9fc1f7", "#6393de", "#3b68b3"),
    on_sequential=("#10141a", "#ffffff"),
    critical="#f5f7fa",
)

PALETTES: Mapping[str, Palette] = {palette.name: palette for palette in (LIGHT, DARK)}


def palette_for(mode: str | None) -> Palette:
    """Return the palette of a mode; light where the mode is unknown."""
    return PALETTES.get(mode or "light", LIGHT)


def config(palette: Palette) -> dict[str, Any]:
    """Return the Vega-Lite configuration of a mode."""
    return {
        "background": "transparent",
        "font": FONT,
        "padding": {"left": 4, "right": 4, "top": 8, "bottom": 4},
        "view": {"stroke": None},
        "axis": {
            "labelColor": palette.muted,
            "labelFontSize": 12,
            "titleColor": palette.muted,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "titlePadding": 8,
            "labelPadding": 6,
            "grid": True,
            "gridColor": palette.grid,
            "gridWidth": 1,
            "domain": False,
            "ticks": False,
        },
        "legend": {
            "labelColor": palette.muted,
            "labelFontSize": 12,
            "titleColor": palette.muted,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "symbolStrokeWidth": 1.5,
        },
        "header": {
            "labelColor": palette.text,
            "labelFontSize": 12,
            "titleColor": palette.muted,
            "titleFontSize": 12,
        },
        "title": {
            "color": palette.text,
            "fontSize": 14,
            "fontWeight": 600,
            "anchor": "start",
            "offset": 8,
        },
        "text": {"color": palette.text, "fontSize": 12},
    }


def register() -> None:
    """Register `kareus-light` and `kareus-dark` with Altair, for charts that are not ours."""
    for palette in PALETTES.values():
        alt.theme.register(f"kareus-{palette.name}", enable=False)(_theme(palette))


def _theme(palette: Palette) -> Callable[[], alt.theme.ThemeConfig]:
    """Return what Altair calls for a mode's configuration."""
    return lambda: cast(alt.theme.ThemeConfig, {"config": config(palette)})
