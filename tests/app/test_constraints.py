import pytest

from app.components.constraint_form import Typed, read
from kareus.core.plan import Method
from kareus.service import Constraints, Straggler
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import CLOCKS, PLANS, FakeService, summary

SUMMARIES = [summary(plan) for plan in PLANS[Method.KAREUS]]


def test_fields_become_constraints() -> None:
    reading = read(
        Typed(
            deadline="4.8",
            budget="40000",
            cap=" 9e3 ",
            stages=(0, 1),
            floor=930,
            ceiling=1380,
            clocks="900-960, 1410",
            straggler=1,
            slowdown="10",
            max_clocks=2,
        ),
        clocks_mhz=CLOCKS,
    )
    assert reading.errors == ()
    assert reading.constraints == Constraints(
        deadline_s=4.8,
        energy_budget_j=40000.0,
        power_cap_w=9000.0,
        stage_clocks_mhz={0: (900, 930, 960, 1410), 1: (900, 930, 960, 1410)},
        clock_floor_mhz={0: 930, 1: 930},
        clock_ceiling_mhz={0: 1380, 1: 1380},
        straggler=Straggler(stage=1, slowdown_pct=10.0),
        max_clocks_per_stage=2,
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (Typed(deadline="soon"), "deadline 'soon' is no positive number"),
        (Typed(budget="-1"), "energy budget '-1' is no positive number"),
        (Typed(cap="inf"), "power cap 'inf' is no positive number"),
        (Typed(clocks="1-2-3", stages=(0,)), "cannot be read"),
        (Typed(clocks="100-200", stages=(0,)), "no clock of 100-200 was measured"),
        (Typed(floor=1410, ceiling=900, stages=(0,)), "is above the ceiling"),
        (Typed(floor=1200, clocks="900", stages=(0,)), "leave no clock"),
        (Typed(floor=1200), "for no stage"),
        (Typed(straggler=0), "stage 0 is slow by how much"),
    ],
)
def test_what_cannot_be_is_said_while_typing(typed: Typed, said: str) -> None:
    reading = read(typed, clocks_mhz=CLOCKS)
    assert reading.constraints is None
    assert any(said in error for error in reading.errors)


def test_nothing_typed_constrains_nothing() -> None:
    reading = read(Typed(), clocks_mhz=CLOCKS, plans=SUMMARIES)
    assert reading.empty and reading.constraints is None and not reading.errors


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (Typed(deadline="4"), "the fastest plan takes 4.41"),
        (Typed(budget="20000"), "the least any plan needs is 31.2"),
        (Typed(cap="100"), "the least any plan draws is"),
        (Typed(deadline="4.42", budget="32000"), "deadline 4.42\u2009s and energy budget"),
        (Typed(deadline="4.42", cap="6000"), "deadline 4.42\u2009s and power cap"),
    ],
)
def test_limits_that_clash_are_named(typed: Typed, said: str) -> None:
    reading = read(typed, clocks_mhz=CLOCKS, plans=SUMMARIES)
    assert reading.constraints is not None  # the solver has the last word
    assert any(said in clash for clash in reading.clashes)


def test_limits_that_can_be_met_clash_with_nothing() -> None:
    reading = read(Typed(deadline="5.5", budget="36000"), clocks_mhz=CLOCKS, plans=SUMMARIES)
    assert reading.clashes == ()


def test_a_constrained_study_opens_in_frontier(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("constraints", study="s1")
    assert not page.exception
    assert page.button(key="plan_again").disabled
    assert "Nothing is constrained yet" in words(page)
    page.text_input(key="constraint_cap").set_value("9000").run()
    page.button(key="plan_again").click().run()
    assert fake.replanned == [Constraints(power_cap_w=9000.0)]
    assert page.button(key="plan_again").disabled
    fake.add_study("s-again", job="j-again")
    fake.add_job("j-again", study="s-again", state="done", finished=True)
    page.run()
    assert not page.exception and not page.error
    assert parameter(page, "study") == "s-again"
    assert "runs an iteration in" in words(page)


def test_what_clashes_stands_beside_the_form(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1")
    page = open_page("constraints", study="s1")
    page.text_input(key="constraint_cap").set_value("7100").run()
    page.button(key="plan_again").click().run()
    fake.add_job(
        "j-again",
        study="s-again",
        state="failed",
        finished=True,
        error="power cap 7100 W cannot be met: raise it",
    )
    page.run()
    assert "power cap 7100 W cannot be met" in words(page)
    assert "s-again" not in fake.studies_by_id  # what could not be planned is no study
    assert not page.button(key="plan_again").disabled
    page.text_input(key="constraint_cap").set_value("9000").run()
    assert "cannot be met" not in words(page)


def test_a_study_without_plans_leads_to_its_job(fake: FakeService, open_page: Opener) -> None:
    fake.add_study("s1", state="running")
    page = open_page("constraints", study="s1")
    assert not page.exception
    assert "This study is running" in words(page)
