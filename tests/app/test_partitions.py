import pytest

from kareus.service import Convergence
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService


def test_the_best_of_what_was_measured_comes_first(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("partitions", study="s1")
    assert not page.exception and not page.error
    assert "fwd_attn" in words(page)
    assert "224 of 224 measurements" in words(page)
    text = words(page)
    assert "99.1\u2009% of what is predicted to be there after 120 of 224 measurements" in text
    assert "random picks are expected to reach 95.0\u2009% with all 224" in text
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


def test_too_little_to_compare_is_said(
    fake: FakeService, open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_study("s1")
    monkeypatch.setattr(fake, "convergence", lambda study, partition: None)
    page = open_page("partitions", study="s1")
    assert "There is nothing to compare yet" in words(page)


def test_everything_measured_leaves_nothing_to_find(
    fake: FakeService, open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.add_study("s1")
    trace = ((36, 0.8), (720, 1.0))
    whole = Convergence(search=trace, random=trace, num_configurations=720, size=720)
    monkeypatch.setattr(fake, "convergence", lambda study, partition: whole)
    assert "there was nothing to search for" in words(open_page("partitions", study="s1"))
