"""Secondary text: smaller and greyer than the body, still of contrast AA (captions are not)."""

from typing import Literal

import streamlit as st


def quiet(
    text: str, *, width: Literal["auto", "content", "stretch"] = "auto", center: bool = False
) -> None:
    """Draw secondary text; Markdown, with foreign parts already escaped."""
    if text:
        alignment: Literal["center", "left"] = "center" if center else "left"
        st.markdown(f":gray[:small[{text}]]", width=width, text_alignment=alignment)


def small(text: str, color: str) -> None:
    """Draw small text in one of the theme's colours."""
    st.markdown(f":{color}[:small[{text}]]")
