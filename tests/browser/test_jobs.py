"""A background job watched, cancelled, found again by its address, resumed, watched to its end."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from kareus.service import Service, StudyRequest
from tests.app.fake import SETTINGS

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_a_job_is_cancelled_and_resumed(page: Page, server: str, home: Path) -> None:
    handle = Service(home / "kareus.db").submit(StudyRequest(settings=SETTINGS, budget="fast"))
    address = f"{server}/jobs?job={handle.job}"
    page.goto(address)
    heading = page.get_by_role("heading", level=3).first
    expect(heading).to_have_text(re.compile("Measuring: [1-9]"), timeout=120_000)

    page.get_by_role("button", name="Cancel").click()
    expect(heading).to_have_text(re.compile("Cancelled after"), timeout=60_000)

    page.goto(address)
    expect(heading).to_have_text(re.compile("Cancelled after"))
    page.get_by_role("button", name="Resume").click()
    # Nobody touches the page from here on: it follows the job and stops at its end.
    expect(page.get_by_role("button", name="See the frontier")).to_be_visible(timeout=300_000)
    expect(heading).to_have_text(re.compile("Finished with"))
