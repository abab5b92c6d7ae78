"""Entry of the dashboard: `streamlit run app`. Navigation only; the pages are in `app_pages/`."""

import sys
from pathlib import Path

import streamlit as st

_ROOT = str(Path(__file__).parents[1])
if _ROOT not in sys.path:  # Streamlit puts this folder on the path, not the one that holds `app`.
    sys.path.insert(0, _ROOT)

from app.navigation import PAGES, as_streamlit_pages  # noqa: E402

_MARK = str(Path(__file__).parent / "assets" / "mark.svg")

st.set_page_config(page_title="Kareus", page_icon=_MARK, layout="wide")
st.logo(_MARK, size="large")
page = st.navigation(as_streamlit_pages(PAGES), position="top")
page.run()
