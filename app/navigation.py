"""The pages, in the order of the navigation. A new page is a file and a line here."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from streamlit.navigation.page import Page

_FOLDER = Path(__file__).parent / "app_pages"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageEntry:
    """A page of the dashboard.

    Attributes:
        file: Name of its file in `app_pages/`, without the ending.
        title: What the navigation and the browser's tab say.
        icon: Material symbol.
        hidden: Whether other pages lead to it and the navigation does not list it.
    """

    file: str
    title: str
    icon: str
    hidden: bool = False

    @property
    def path(self) -> Path:
        """Where its script lies."""
        return _FOLDER / f"{self.file}.py"

    @property
    def url_path(self) -> str:
        """Its place in the URL."""
        return self.file.replace("_", "-")


STUDIES = PageEntry(file="studies", title="Studies", icon=":material/science:")
NEW_STUDY = PageEntry(file="new_study", title="New study", icon=":material/add_circle:")
JOBS = PageEntry(file="jobs", title="Jobs", icon=":material/pending_actions:")
FRONTIER = PageEntry(file="frontier", title="Frontier", icon=":material/show_chart:")
PLAN = PageEntry(file="plan", title="Plan", icon=":material/view_timeline:")
PARTITIONS = PageEntry(file="partitions", title="Partitions", icon=":material/scatter_plot:")
MACHINE = PageEntry(file="machine", title="Machine", icon=":material/memory:")
EXPLORER = PageEntry(file="explorer", title="Explorer", icon=":material/explore:")
COMPARE = PageEntry(file="compare", title="Compare", icon=":material/stacked_line_chart:")
TRAINING = PageEntry(file="training", title="Training", icon=":material/model_training:")
TRUST = PageEntry(file="trust", title="Trust", icon=":material/verified:")
CONSTRAINTS = PageEntry(
    file="constraints", title="Constraints", icon=":material/rule:", hidden=True
)
PAGES = (
    STUDIES,
    NEW_STUDY,
    JOBS,
    FRONTIER,
    PLAN,
    PARTITIONS,
    EXPLORER,
    COMPARE,
    TRAINING,
    TRUST,
    MACHINE,
    CONSTRAINTS,
)


def as_streamlit_pages(entries: Iterable[PageEntry]) -> list[Page]:
    """Return the pages as `st.navigation` takes them; the first is the default."""
    return [
        st.Page(
            entry.path,
            title=entry.title,
            icon=entry.icon,
            url_path=entry.url_path,
            default=position == 0,
            visibility="hidden" if entry.hidden else "visible",
        )
        for position, entry in enumerate(entries)
    ]
