from dataclasses import replace

from kareus.service import StudyRequest
from tests.app.conftest import Opener, words
from tests.app.fake import SETTINGS, FakeService


def test_an_empty_store_leads_to_the_example_study(fake: FakeService, open_page: Opener) -> None:
    page = open_page("studies")
    assert not page.exception
    assert "example takes about a minute" in words(page)
    page.button(key="example").click().run()
    request = fake.submitted[0]
    assert (request.settings.model, request.settings.tp, request.settings.pp) == (
        "llama3.2-3b",
        8,
        2,
    )
    assert "Measuring: 240 of 448" in words(page)  # the job's page, not the studies'


def test_the_answer_names_the_best_study(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", iso_time_energy_reduction_pct=9.0)
    fake.add_study("s2", iso_time_energy_reduction_pct=21.25)
    fake.add_study("s3", state="running")
    page = open_page("studies")
    assert "21.2\u2009% less energy at equal time is the best of 2 finished studies" in words(page)
    table = page.dataframe[0].value
    assert list(table["state"]) == ["running", "done", "done"]  # newest first
    assert table["energy_at_equal_time"].tolist()[1:] == [-21.25, -9.0]  # changes


def test_an_unfinished_study_has_no_frontier_to_open(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", state="running")
    page = open_page("studies")
    assert page.button(key="open_frontier").disabled
    assert "none finished yet" in words(page)


def test_a_study_is_deleted_only_after_a_second_look(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("studies")
    page.button(key="delete").click().run()
    assert "s1" in fake.studies_by_id
    page.button(key="delete_study").click().run()
    assert "s1" not in fake.studies_by_id
    assert "example" in words(page)


def test_a_source_the_simulator_does_not_know_is_marked(
    fake: FakeService, open_page: Opener
) -> None:
    fake.add_study("s1", extrapolated=True)
    assert list(open_page("studies").dataframe[0].value["source"]) == ["simulated, extrapolated"]


def test_another_study_starts_from_these_settings(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    fake.request = StudyRequest(
        settings=replace(SETTINGS, tp=4, cp=2, stage_layers=(15, 13)), budget="120", seed=7
    )
    page = open_page("studies")
    page.button(key="copy_settings").click().run()
    assert page.text_input(key="form_cp").value == "2"
    page.button(key="start").click().run()
    assert fake.submitted == [fake.request]
