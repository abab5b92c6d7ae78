from dataclasses import replace

import pytest

from kareus.core.plan import Method
from kareus.service import Exploration, ExplorationAssessment
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService
from tests.app.fake_explorations import EXPLORATION


def test_without_explorations_the_form_stands_ready(fake: FakeService, open_page: Opener) -> None:
    page = open_page("explorer")
    assert not page.exception
    said = words(page)
    assert "3 layouts to look at" in said
    assert "2 of 5 cannot be built or do not fit the memory" in said
    page.text_input(key="explore_num_gpus").set_value("16").run()
    page.button(key="start_exploration").click().run()
    request = fake.explored[0]
    assert (request.num_gpus, request.global_batch_size) == (16, 16)
    assert (request.cps, request.microbatch_sizes) == ((1, 2), (4, 8))
    assert request.base.budget == "fast"
    assert parameter(page, "exploration") == "e-new"
    assert "No layout has been searched yet" in words(page)


def test_what_cannot_be_explored_is_refused_while_typing(
    fake: FakeService, open_page: Opener
) -> None:
    page = open_page("explorer")
    page.text_input(key="explore_num_gpus").set_value("many").run()
    assert page.button(key="start_exploration").disabled
    assert "GPUs = 'many' is no whole number" in words(page)
    assert [metric.value for metric in page.metric] == ["–", "–"]
    fake.exploration_assessment = ExplorationAssessment(error="no layout of 7 sequences")
    page.text_input(key="explore_num_gpus").set_value("4").run()
    assert "no layout of 7 sequences" in words(page)
    assert fake.explored == []


def test_the_joint_frontier_names_the_layouts(fake: FakeService, open_page: Opener) -> None:
    fake.add_exploration()
    page = open_page("explorer")
    assert not page.exception
    said = words(page)
    assert "tp2 cp1 pp1 dp4, 4 × 4 is fastest" in said
    assert "tp4 cp1 pp2 dp1, 4 × 4 is most frugal" in said
    joint, layouts = (element.value for element in page.dataframe)
    assert list(joint["iteration_time_s"]) == sorted(joint["iteration_time_s"])
    assert set(joint["source"]) == {"simulated"}
    reasons = dict(zip(layouts["state"], layouts["reason"], strict=True))
    assert reasons["beaten by baselines"] == "even 25% faster it would be beaten"
    assert reasons["impossible"] == "needs about 61 GiB per GPU"
    assert reasons["failed"] == "nothing could be measured"
    assert "2 searched, 1 failed, 1 beaten by baselines, 1 impossible" in said


def test_a_point_leads_to_its_layouts_study(fake: FakeService, open_page: Opener) -> None:
    fake.add_exploration()
    study = fake.add_study("layout-0", job=None)
    fake.archived["layout-0"] = fake.studies_by_id.pop(study.id)
    page = open_page("explorer", exploration="e1", point="0-2")
    assert page.metric[0].value.startswith("4.80")
    page.button(key="open_layout").click().run()
    assert not page.exception and not page.error
    assert parameter(page, "study") == "layout-0"
    assert (parameter(page, "method"), parameter(page, "plan")) == (Method.KAREUS.value, "2")
    assert "Plan 2 runs an iteration" in words(page)


@pytest.mark.parametrize("point", ["99-1", "x", ""])
def test_nonsense_in_the_url_gives_a_default_point(
    fake: FakeService, open_page: Opener, point: str
) -> None:
    fake.add_exploration()
    page = open_page("explorer", point=point)
    assert not page.exception and not page.error
    middle = EXPLORATION.frontier[len(EXPLORATION.frontier) // 2]
    assert page.metric[0].value.startswith(f"{middle.iteration_time_s:.2f}")


def test_an_unknown_exploration_is_named(fake: FakeService, open_page: Opener) -> None:
    fake.add_exploration()
    page = open_page("explorer", exploration="gone")
    assert "gone" in page.error[0].value
    assert "is fastest" in words(page.run())


def test_a_running_one_is_watched_and_cancelled(fake: FakeService, open_page: Opener) -> None:
    partial = replace(EXPLORATION, frontier=EXPLORATION.frontier[:2])
    fake.add_exploration(state="running", result=partial)
    page = open_page("explorer")
    said = words(page)
    assert "is best throughout, so far" in said
    assert "0 of 2 layouts decided" in said and "searching: tp8" in said
    page.button(key="cancel_exploration").click().run()
    assert fake.cancelled == ["j-e1"]


def test_a_failed_one_says_why_and_can_be_resumed(fake: FakeService, open_page: Opener) -> None:
    fake.add_exploration(
        state="failed",
        error="the disk is full: free some space",
        result=Exploration(layouts=(), frontier=()),
    )
    page = open_page("explorer")
    said = words(page)
    assert "the disk is full" in said
    assert "This exploration is failed, and no layout was searched" in said
    page.button(key="resume_exploration").click().run()
    assert fake.resumed == ["j-e1"]


def test_another_exploration_is_a_button_away(fake: FakeService, open_page: Opener) -> None:
    fake.add_exploration()
    page = open_page("explorer")
    page.button(key="new_exploration").click().run()
    assert page.button(key="start_exploration")
    page.button(key="explore_back").click().run()
    assert "is fastest" in words(page)
