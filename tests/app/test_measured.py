"""A measured study from the page to its frontier, over two stand-in GPUs."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

import app.backend
from kareus.service import Service
from tests.app.conftest import ENTRY, words
from tests.profiling.conftest import quick
from tests.standin import StandIn
from tests.standin.plugin import standin, standin_library

__all__ = ["quick", "standin", "standin_library"]


@pytest.fixture
def service(
    standin: StandIn, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Service:
    """The real service on a machine with two GPUs of two clocks."""
    monkeypatch.setenv("KAREUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KAREUS_DEVICE", "rehearsal")
    monkeypatch.setenv("STANDIN_CLOCKS", "900:1410:510")
    monkeypatch.setattr(app.backend, "Service", Service)
    st.cache_data.clear()
    return Service()


def _wait(service: Service, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not reached():
        assert time.monotonic() < deadline, service.jobs()
        time.sleep(0.2)


def _fill(page: AppTest) -> AppTest:
    """The tiny model on two GPUs, measured."""
    page.selectbox(key="form_model").set_value("tiny").run()
    for field, value in (("tp", "2"), ("pp", "1"), ("microbatch_size", "2"),
                         ("num_microbatches", "2"), ("seq_len", "32")):  # fmt: skip
        page.text_input(key=f"form_{field}").set_value(value).run()
    page.selectbox(key="form_budget").set_value("number").run()
    page.text_input(key="form_num_measurements").set_value("56").run()
    return page.segmented_control(key="form_source").set_value("measured").run()


@pytest.mark.slow
def test_a_measured_study_is_started_watched_cancelled_and_resumed(
    service: Service, standin: StandIn
) -> None:
    page = AppTest.from_file(str(ENTRY), default_timeout=60).run()
    page.switch_page("app_pages/new_study.py").run()
    page = _fill(page)
    assert not page.exception
    said = words(page)
    assert "Visible GPUs" in said
    assert "2 (" in said
    assert not page.button(key="start").disabled
    page.button(key="start").click().run()
    assert not page.exception

    job = service.jobs()[0].job
    _wait(service, lambda: service.job(job).measurements >= 3)
    page.switch_page("app_pages/jobs.py")
    page.query_params["job"] = job
    page.run()
    assert "Measuring" in words(page)
    page.button(key="cancel").click().run()
    _wait(service, lambda: service.job(job).finished)
    assert service.job(job).state == "cancelled"
    _wait(service, lambda: [standin.gpu(i).locked_mhz for i in (0, 1)] == [0, 0])
    page.run()
    page.button(key="resume").click().run()
    _wait(service, lambda: service.job(job).finished)
    assert service.job(job).state == "done", service.job(job).error

    page.switch_page("app_pages/frontier.py").run()
    assert not page.exception
    assert "measured" in words(page)
