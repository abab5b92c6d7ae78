from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService


def test_both_timelines_share_one_scale(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("plan", study="s1", method="kareus", plan="20")
    assert not page.exception
    said = words(page)
    assert "Kareus plan 20: 5.64" in said
    assert "Megatron-LM plan 0: 4.86" in said
    assert "idle 11.1" in said
    assert len(page.get("vega_lite_chart")) == 2


def test_configurations_and_commands_name_the_plan(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("plan", study="s1", method="kareus", plan="2")
    table = page.dataframe[0].value
    assert set(table["instruction"]) == {"forward", "backward"}
    assert "linear_0, 12 SMs" in set(table["fwd_attn"])
    commands = "\n".join(code.value for code in page.code)
    assert "kareus export s1 --plan 2 --method kareus" in commands
    assert "launch.sh" in commands and "launch.sbatch" in commands


def test_the_baseline_is_a_choice_that_stays_in_the_url(
    fake: FakeService, open_page: Opener
) -> None:
    fake.add_study("s1")
    page = open_page("plan", study="s1", method="kareus", plan="20")
    page.selectbox(key="baseline_choice").set_value("perseus").run()
    assert parameter(page, "baseline") == "perseus"
    assert "Megatron-LM + Perseus plan" in words(page)


def test_a_baselines_own_plan_is_shown_too(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("plan", study="s1", method="megatron", plan="0")
    assert not page.exception and not page.error
    assert "Megatron-LM plan 0: 4.86" in words(page)
    assert set(page.dataframe[0].value["execution"]) == {"sequential"}


def test_the_plan_follows_from_the_frontier(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("frontier")
    page.segmented_control(key="objective").set_value("Fastest").run()
    page.switch_page("app_pages/plan.py").run()
    assert "Kareus plan 0: 4.41" in words(page)


def test_an_empty_store_leads_on(fake: FakeService, open_page: Opener) -> None:
    assert open_page("plan").button(key="example")
