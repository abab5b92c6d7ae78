"""How charts are put on a page: in the reader's mode, at a fixed height, with a description."""

import streamlit as st

from kareus.report.figures import AnyChart
from kareus.report.theme import Palette, palette_for


def palette() -> Palette:
    """Return the colours of the mode the reader's browser shows."""
    return palette_for(st.context.theme.type)


def draw(chart: AnyChart, *, key: str, alt_text: str, height: int | None = None) -> None:
    """Draw a chart that only shows; its own theme is kept.

    Args:
        chart: The chart.
        key: Stable identity.
        alt_text: What it shows, for screen readers.
        height: Pixels it takes, however much it holds; None for what it needs.
    """
    st.altair_chart(
        chart,
        key=key,
        theme=None,
        width="stretch",
        height="content" if height is None else height,
        alt=alt_text,
    )
