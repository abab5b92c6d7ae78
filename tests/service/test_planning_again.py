"""Planning again under constraints as a background job, and what an exploration would mean."""

from dataclasses import replace

import pytest

from kareus.core.plan import Method
from kareus.service import (
    Constraints,
    ExplorationRequest,
    Service,
    Straggler,
    StudyRequest,
)
from kareus.service.views import constraint_words
from tests.study.conftest import SETTINGS

REQUEST = ExplorationRequest(
    base=StudyRequest(settings=SETTINGS, budget="64"),
    num_gpus=4,
    global_batch_size=8,
    cps=(1,),
    microbatch_sizes=(2,),
)


def test_constraints_in_words() -> None:
    assert constraint_words(
        Constraints(
            deadline_s=4.5,
            power_cap_w=3000.0,
            clock_ceiling_mhz={0: 1200},
            stage_clocks_mhz={1: (900, 1410)},
            straggler=Straggler(stage=1, slowdown_pct=10.0),
            max_clocks_per_stage=2,
        )
    ) == (
        "deadline 4.5 s; power cap of the job 3000 W; no clock above 1200 MHz on stage 0; "
        "clocks 900, 1410 MHz on stage 1; stage 1 slower by 10 %; at most 2 clocks per stage"
    )


def test_an_exploration_is_counted_before_it_starts(service: Service) -> None:
    found = service.assess_exploration(REQUEST)
    assert found.error is None
    assert found.num_layouts is not None and found.num_possible is not None
    assert 0 < found.num_possible <= found.num_layouts
    assert (found.num_measurements or 0) > 64 * found.num_possible
    assert service.explorations() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_gpus": "x"}, "GPUs = 'x'"),
        ({"global_batch_size": 7}, "no layout of 7"),
        ({"cps": ()}, "no layout"),
        ({"base": StudyRequest(settings=SETTINGS, budget="none")}, "none"),
        ({"base": StudyRequest(settings=replace(SETTINGS, seq_len="x"))}, "seq"),
    ],
)
def test_what_cannot_be_explored_says_why(
    service: Service, change: dict[str, object], said: str
) -> None:
    found = service.assess_exploration(replace(REQUEST, **change))  # type: ignore[arg-type]
    assert found.error is not None and said in found.error
    assert found.num_measurements is None


@pytest.mark.slow
def test_a_finished_study_is_planned_again_in_the_background(
    finished: tuple[Service, str],
) -> None:
    service, study = finished
    plans = service.plan_summaries(study, Method.KAREUS)
    cap_w = 0.5 * (plans[0].average_power_w + min(plan.average_power_w for plan in plans))
    handle = service.submit_replan(study, Constraints(power_cap_w=cap_w), name="capped")
    assert service.wait_for_job(handle.job, timeout_s=120).state == "done"
    again = service.study(handle.study)
    assert again.name == "capped"
    assert again.measurements == service.study(study).measurements
    assert any(f"power cap of the job {cap_w:g} W" in note for note in again.notes)
    capped = service.plan_summaries(handle.study, Method.KAREUS)
    assert all(plan.average_power_w <= cap_w * (1 + 1e-9) for plan in capped)
    service.delete_study(handle.study)


@pytest.mark.slow
def test_constraints_that_clash_fail_the_job_with_their_names(
    finished: tuple[Service, str],
) -> None:
    service, study = finished
    handle = service.submit_replan(study, Constraints(power_cap_w=1.0))
    job = service.wait_for_job(handle.job, timeout_s=120)
    assert job.state == "failed"
    assert "power cap 1.0 W" in (job.error or "")
    service.delete_study(handle.study)
