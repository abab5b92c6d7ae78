import pytest

from kareus.report.side_by_side import Scale
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService


def test_nothing_to_compare_leads_on(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", state="running")
    page = open_page("compare")
    assert not page.exception
    assert "no study has finished" in words(page)
    assert page.button(key="example")


def test_the_newest_studies_stand_side_by_side(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", name="one", iso_time_energy_reduction_pct=9.0)
    fake.add_study("s2", name="two", extrapolated=True)
    fake.add_study("s3", name="three", state="running")
    page = open_page("compare")
    assert not page.exception and not page.error
    assert "two saves the most: 17.4\u2009% less energy" in words(page)
    table = page.dataframe[0].value
    assert list(table.columns) == ["two", "one"]
    assert list(table.loc["Source"]) == ["simulated, extrapolated", "simulated"]
    assert table.loc["Equal time, against Perseus", "one"] == "17.4\u2009% less energy"
    assert table.loc["Fastest plan against Megatron-LM", "one"] == "9.3\u2009% faster"
    assert parameter(page, "studies") == "s2,s1"


def test_the_link_reproduces_the_view(fake: FakeService, open_page: Opener) -> None:
    for study in ("s1", "s2", "s3", "s4"):
        fake.add_study(study, name="same")
    page = open_page("compare", studies="s4,gone,s1", scale="tokens", baseline="perseus")
    assert page.segmented_control(key="compare_scale").value == Scale.TOKENS
    assert page.toggle(key="compare_baseline").value
    assert page.multiselect(key="compared_studies").value == ["s4", "s1"]
    assert list(page.dataframe[0].value.columns) == ["same (s4)", "same (s1)"]


def test_choices_go_to_the_url(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    fake.add_study("s2")
    page = open_page("compare")
    page.segmented_control(key="compare_scale").set_value(Scale.ITERATION).run()
    page.toggle(key="compare_baseline").set_value(True).run()
    page.multiselect(key="compared_studies").set_value(["s1"]).run()
    assert parameter(page, "scale") == "iteration"
    assert parameter(page, "baseline") == "perseus"
    assert parameter(page, "studies") == "s1"
    assert not page.exception


@pytest.mark.parametrize("parameters", [{"scale": "x"}, {"studies": ",,"}, {"baseline": "y"}])
def test_nonsense_in_the_url_gives_the_default_view(
    fake: FakeService, open_page: Opener, parameters: dict[str, str]
) -> None:
    fake.add_study("s1")
    page = open_page("compare", **parameters)
    assert not page.exception and not page.error
    assert page.segmented_control(key="compare_scale").value == Scale.MEGATRON
