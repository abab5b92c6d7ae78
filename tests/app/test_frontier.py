import pytest

import app.components.downloads
from kareus.core.plan import Method
from kareus.report.data import Scope
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import PLANS, FakeService


@pytest.fixture
def study(fake: FakeService) -> str:
    fake.add_study("s1")
    return "s1"


def test_an_empty_store_leads_on(fake: FakeService, open_page: Opener) -> None:
    page = open_page("frontier")
    assert not page.exception
    assert page.button(key="example")


def test_the_first_plan_shown_is_no_slower_at_least_energy(study: str, open_page: Opener) -> None:
    page = open_page("frontier")
    limit_s = PLANS[Method.PERSEUS][0].iteration_time_s
    expected = [plan for plan in PLANS[Method.KAREUS] if plan.iteration_time_s <= limit_s][-1]
    assert f"Plan {expected.number} runs an iteration in" in words(page)
    assert parameter(page, "plan") == str(expected.number)
    assert parameter(page, "study") == "s1"


@pytest.mark.parametrize(
    ("objective", "number"), [("Fastest", 0), ("Most frugal", len(PLANS[Method.KAREUS]) - 1)]
)
def test_a_plan_is_chosen_by_an_objective(
    study: str, open_page: Opener, objective: str, number: int
) -> None:
    page = open_page("frontier")
    page.segmented_control(key="objective").set_value(objective).run()
    assert parameter(page, "plan") == str(number)
    assert f"Plan {number} runs" in words(page)


def test_a_deadline_chooses_or_says_what_can_be_had(study: str, open_page: Opener) -> None:
    page = open_page("frontier")
    page.segmented_control(key="objective").set_value("Deadline").run()
    page.number_input(key="bound").set_value(4.6).run()
    chosen = PLANS[Method.KAREUS][int(parameter(page, "plan") or -1)]
    assert 4.5 < chosen.iteration_time_s <= 4.6
    page.number_input(key="bound").set_value(1.0).run()
    assert "the fastest plan takes 4.41" in words(page)
    assert parameter(page, "plan") == str(chosen.number)


def test_an_energy_budget_follows_the_scope(study: str, open_page: Opener) -> None:
    page = open_page("frontier", scope="job")
    page.segmented_control(key="objective").set_value("Energy budget").run()
    page.number_input(key="bound").set_value(8 * 4200.0).run()
    chosen = PLANS[Method.KAREUS][int(parameter(page, "plan") or -1)]
    assert chosen.pipeline_energy_j <= 4200.0
    assert PLANS[Method.KAREUS][chosen.number - 1].pipeline_energy_j > 4200.0


def test_the_link_reproduces_the_view(study: str, open_page: Opener) -> None:
    page = open_page(
        "frontier",
        study="s1",
        method="perseus",
        plan="3",
        methods="kareus,perseus",
        scope="job",
        pins="kareus-2,megatron-0",
    )
    said = words(page)
    assert "Megatron-LM + Perseus plan 3" in said
    assert page.pills(key="methods_shown").value == [Method.KAREUS, Method.PERSEUS]
    assert page.segmented_control(key="scope_shown").value == Scope.JOB
    compared = page.dataframe[0].value
    assert list(compared.columns) == [
        "Megatron-LM + Perseus plan 3",
        "Kareus plan 2",
        "Megatron-LM plan 0",
    ]


@pytest.mark.parametrize(
    "parameters",
    [
        {"plan": "999"},
        {"plan": "-1"},
        {"plan": "x"},
        {"method": "none-such"},
        {"pins": "a,b-,,kareus-999"},
        {"methods": "x"},
        {"tokens": "nan", "price": "-1", "carbon": "inf"},
    ],
)
def test_nonsense_in_the_url_gives_the_default_view(
    study: str, open_page: Opener, parameters: dict[str, str]
) -> None:
    page = open_page("frontier", **parameters)
    assert not page.exception and not page.error
    assert "Plan 7 runs" in words(page)


def test_an_unknown_study_is_named(study: str, open_page: Opener) -> None:
    page = open_page("frontier", study="gone")
    assert "gone" in page.error[0].value
    assert "Plan 7 runs" in words(page.run())  # and the next drawing recovers


def test_a_study_without_plans_leads_to_its_job(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", state="running")
    page = open_page("frontier", study="s1")
    assert "This study is running" in words(page)
    assert not page.exception


def test_a_plan_is_chosen_from_the_list(study: str, open_page: Opener) -> None:
    page = open_page("frontier")
    page.selectbox(key="plan_choice").set_value("kareus-12").run()
    assert parameter(page, "plan") == "12"
    assert page.segmented_control(key="objective").value is None


def test_pinned_plans_stand_side_by_side(study: str, open_page: Opener) -> None:
    page = open_page("frontier")
    page.button(key="pin").click().run()
    page.segmented_control(key="objective").set_value("Fastest").run()
    assert list(page.dataframe[0].value.columns) == ["Kareus plan 0", "Kareus plan 7"]
    assert parameter(page, "pins") == "kareus-7"


def test_the_bundle_is_built_on_click_only(
    fake: FakeService, study: str, open_page: Opener
) -> None:
    page = open_page("frontier")
    assert page.download_button(key="download").label == "Download schedule"
    assert fake.bundles == 0
    summary = fake.plan_summaries("s1", Method.KAREUS)[3]
    assert app.components.downloads._builder("s1", summary)() == b"PK"
    assert fake.bundles == 1


def test_what_a_run_costs_follows_the_url(study: str, open_page: Opener) -> None:
    said = words(open_page("frontier", tokens="500", price="0", carbon="0"))
    assert "A run of 500 billion tokens" in said
    assert "0.00\u2009USD" in said


def test_the_studys_assumptions_are_at_hand(study: str, open_page: Opener) -> None:
    said = words(open_page("frontier"))
    assert "The head's weights are tied to the embedding's." in said
    assert "1\u2009296 measurements, budget published, seed 0" in said


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"plan": "99"}, "(99) is not in this study: this is Kareus plan"),
        ({"method": "bogus", "plan": "1"}, "(bogus 1) is not in this study"),
        ({"method": "perseus", "plan": "3"}, None),
        ({"plan": "3"}, None),
        ({}, None),
    ],
)
def test_a_link_to_a_plan_that_is_not_there_says_so_once(
    fake: FakeService, open_page: Opener, named: dict[str, str], said: str | None
) -> None:
    fake.add_study()
    page = open_page("frontier", **named)
    shown = words(page)
    assert (said in shown) if said else ("is not in this study" not in shown)
    assert "is not in this study" not in words(page.run())
