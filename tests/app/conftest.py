"""The dashboard in process, on a service held in memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import app.backend
from tests.app.fake import FakeService

ENTRY = Path(__file__).parents[2] / "app" / "streamlit_app.py"

Opener = Callable[..., AppTest]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """The service the pages see; empty until a test fills it."""
    service = FakeService()
    monkeypatch.setattr(app.backend, "Service", lambda: service)
    st.cache_data.clear()
    return service


@pytest.fixture
def open_page(fake: FakeService) -> Opener:
    """Opens a page by its file's name, with query parameters."""

    def opener(page: str, **parameters: str) -> AppTest:
        test = AppTest.from_file(str(ENTRY), default_timeout=30).run()
        if page != "studies":
            test.switch_page(f"app_pages/{page}.py")
        for name, value in parameters.items():
            test.query_params[name] = value
        return test.run()

    return opener


def words(test: AppTest) -> str:
    """Everything a page says, one element a line, without the escapes of Markdown."""
    parts = [*test.subheader, *test.markdown, *test.caption, *test.error, *test.success, *test.info]
    return "\n".join(str(part.value) for part in parts).replace("\\", "")


def parameter(test: AppTest, name: str) -> str | None:
    """A query parameter's value."""
    values = test.query_params.get(name)
    return values[0] if isinstance(values, list) and values else values or None
