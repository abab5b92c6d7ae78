"""Small marks that stand where numbers stand: where they come from, how far a study is."""

import streamlit as st

from app.wording import SOURCE_HELP, SOURCE_WORDS
from kareus.core.measurement import SourceKind

_SOURCE_ICONS = {
    SourceKind.SIMULATOR: ":material/function:",
    SourceKind.MEASURED: ":material/speed:",
    SourceKind.REPLAY: ":material/history:",
}
_STATES = {
    "done": ("done", ":material/check_circle:", "green"),
    "running": ("running", ":material/progress_activity:", "blue"),
    "queued": ("queued", ":material/schedule:", "gray"),
    "cancelling": ("cancelling", ":material/cancel:", "gray"),
    "cancelled": ("cancelled", ":material/cancel:", "gray"),
    "interrupted": ("interrupted", ":material/power_off:", "orange"),
    "failed": ("failed", ":material/error:", "red"),
}


def source_mark(source: SourceKind, *, extrapolated: bool) -> None:
    """Draw the mark of a source, and a second one where the simulator is not calibrated."""
    words = SOURCE_WORDS[source]
    st.badge(words, icon=_SOURCE_ICONS[source], color="gray", help=SOURCE_HELP[words])
    if extrapolated:
        st.badge(
            "extrapolated",
            icon=":material/trending_up:",
            color="orange",
            help=SOURCE_HELP["extrapolated"],
        )


def state_mark(state: str) -> None:
    """Draw the mark of a study's or a job's state: symbol, word and colour."""
    word, icon, color = _STATES.get(state, (state, ":material/help:", "gray"))
    st.badge(word, icon=icon, color=color)  # type: ignore[arg-type]
