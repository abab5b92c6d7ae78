import pytest

from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService


def test_the_best_of_what_was_measured_comes_first(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("partitions", study="s1")
    assert not page.exception and not page.error
    assert "fwd_attn" in words(page)
    assert "224 of 224 measurements" in words(page)
    assert "The last batch added 2.0" in words(page)
    best = page.dataframe[0].value["on_frontier"]
    assert best.iloc[0] and not best.iloc[-1]


def test_another_partition_is_chosen(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("partitions", study="s1")
    page.selectbox(key="partition_choice").set_value("bwd_mlp").run()
    assert parameter(page, "partition") == "bwd_mlp"
    page.segmented_control(key="partition_energy").set_value("dynamic_energy_j").run()
    assert not page.exception and not page.error


def test_a_running_study_shows_what_it_has(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", state="running")
    page = open_page("partitions", study="s1")
    assert "configurations are best" in words(page)


def test_a_study_without_measurements_says_so(
    fake: FakeService, open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_study("s1", state="queued")
    monkeypatch.setattr(fake, "partitions", lambda study: [])
    page = open_page("partitions", study="s1")
    assert "has measured nothing yet" in page.error[0].value
