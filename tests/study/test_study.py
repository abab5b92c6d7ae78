from dataclasses import replace
from pathlib import Path

import pytest

from kareus.core.measurement import SourceKind
from kareus.core.pipeline import PipelineOrder
from kareus.core.plan import Method
from kareus.core.workload import Recompute
from kareus.errors import ConfigError, InfeasibleError, MeasurementError
from kareus.profiling.replay import write_recorded
from kareus.service import Constraints, Service, Severity, Straggler, StudyRequest
from kareus.study.documents import request_of, workload_of
from kareus.workload.build import build_workload
from tests.study.conftest import SETTINGS

Finished = tuple[Service, str]


def test_a_number_is_the_budget_of_the_whole_study(finished: Finished) -> None:
    service, study = finished
    partitions = service.partitions(study)
    baselines = 4 * 2 * 18
    assert len(partitions) == 4
    assert sum(one.done for one in partitions) == 96 + baselines
    assert all(one.hypervolume for one in partitions)


def test_what_is_stored_says_what_was_asked(finished: Finished) -> None:
    service, study = finished
    record = service.store.study(study)
    assert request_of(record).settings == SETTINGS
    assert workload_of(record) == build_workload(SETTINGS)
    assert record.versions["kareus"]


def test_the_same_seed_gives_the_same_study(finished: Finished, service: Service) -> None:
    whole, study = finished
    again = service.run(StudyRequest(settings=SETTINGS, budget="96", seed=3)).study
    for method in Method:
        assert service.store.load_frontier(again, method) == whole.store.load_frontier(
            study, method
        )


def test_another_seed_measures_something_else(finished: Finished, service: Service) -> None:
    whole, study = finished
    other = service.run(StudyRequest(settings=SETTINGS, budget="96", seed=4)).study
    assert service.measurements(other) != whole.measurements(study)


def test_recorded_measurements_replay_to_the_same_baselines(
    finished: Finished, service: Service, tmp_path: Path
) -> None:
    whole, study = finished
    workload = build_workload(SETTINGS)
    write_recorded(tmp_path / "recorded", whole.measurements(study), workload=workload)
    report = service.import_measurements(tmp_path / "recorded", SETTINGS)
    assert report.refused == 0
    assert report.taken + report.repeated == len(whole.measurements(study))
    replayed = service.run(
        StudyRequest(
            settings=SETTINGS,
            source=SourceKind.REPLAY,
            budget="exhaustive",
            measurements=report.dataset,
        )
    )
    assert service.study(replayed.study).summary.source is SourceKind.REPLAY
    # Posterior means see the same values, so the clock-only baselines agree to the noise.
    ours, theirs = (
        one.plan_summaries(two, Method.PERSEUS)[0]
        for one, two in ((service, replayed.study), (whole, study))
    )
    assert ours.iteration_time_s == pytest.approx(theirs.iteration_time_s, rel=1e-6)
    assert ours.pipeline_energy_j == pytest.approx(theirs.pipeline_energy_j, rel=1e-6)


@pytest.mark.parametrize("named", ["nonsense", "x" * 5000, "a\0b"])
def test_unknown_recorded_measurements_are_refused_beside_their_field(
    service: Service, named: str
) -> None:
    request = StudyRequest(settings=SETTINGS, source=SourceKind.REPLAY, measurements=named)
    assessment = service.assess(request)
    assert not assessment.ready
    assert [one.field for one in assessment.findings if one.severity is Severity.ERROR] == [
        "measurements"
    ]
    with pytest.raises(ConfigError, match="no recorded measurements"):
        service.submit(request)


@pytest.mark.parametrize(
    ("field", "values"), [("seed", (-1, 10**30, "x")), ("name", ("", "n" * 121))]
)
def test_seeds_and_names_have_limits(
    service: Service, field: str, values: tuple[object, ...]
) -> None:
    for value in values:
        request = replace(StudyRequest(settings=SETTINGS), **{field: value})
        assert next(one.field for one in service.assess(request).findings) == field
        with pytest.raises(ConfigError, match=field):
            service.submit(request)


def test_measurements_of_another_workload_are_refused(
    finished: Finished, service: Service, tmp_path: Path
) -> None:
    whole, study = finished
    write_recorded(
        tmp_path / "recorded", whole.measurements(study), workload=build_workload(SETTINGS)
    )
    dataset = service.import_measurements(tmp_path / "recorded", SETTINGS).dataset
    (view,) = service.datasets()
    assert (view.dataset, view.workload) == (dataset, build_workload(SETTINGS))
    assert view.rows == len(whole.measurements(study))
    same = StudyRequest(settings=SETTINGS, source=SourceKind.REPLAY, measurements=dataset)
    assert service.assess(same).ready
    other = replace(same, settings=replace(SETTINGS, microbatch_size=2 * SETTINGS.microbatch_size))
    error = service.assess(other).findings[0]
    assert error.field == "measurements"
    assert "was recorded with microbatch size" in error.message


def test_records_without_energy_are_kept_but_make_no_study(
    finished: Finished, service: Service, tmp_path: Path
) -> None:
    whole, study = finished
    without = [replace(one, energy_j=None) for one in whole.measurements(study)]
    write_recorded(tmp_path / "recorded", without, workload=build_workload(SETTINGS))
    report = service.import_measurements(tmp_path / "recorded", SETTINGS)
    assert report.taken > 0
    with pytest.raises(MeasurementError, match="energy"):
        service.run(
            StudyRequest(settings=SETTINGS, source=SourceKind.REPLAY, measurements=report.dataset)
        )


def test_clock_limits_hold_in_every_plan(finished: Finished) -> None:
    service, study = finished
    result = service.replan(
        study,
        Constraints(stage_clocks_mhz={0: (900, 1200), 1: (1200, 1410)}, max_clocks_per_stage=1),
    )
    for plan in service.store.load_frontier(result.study, Method.KAREUS):
        for stage, allowed in enumerate(({900, 1200}, {1200, 1410})):
            clocks = {option.clock_mhz for option in plan.choices[stage]}
            assert clocks <= allowed
            assert len(clocks) == 1
    assert service.measurements(result.study) == service.measurements(study)


def test_a_power_cap_holds_for_the_whole_job(finished: Finished) -> None:
    service, study = finished
    fastest = service.choose(study, fastest=True)
    cap_w = 0.9 * fastest.average_power_w
    result = service.replan(study, Constraints(power_cap_w=cap_w))
    plans = service.plan_summaries(result.study, Method.KAREUS)
    assert plans
    assert all(plan.average_power_w <= cap_w for plan in plans)


def test_with_a_straggler_the_other_stage_saves_energy(finished: Finished) -> None:
    service, study = finished
    slowed = service.replan(study, Constraints(straggler=Straggler(stage=1, slowdown_pct=30.0)))
    before = service.choose(study, fastest=True)
    after = service.choose(slowed.study, fastest=True)
    assert after.iteration_time_s > 1.1 * before.iteration_time_s
    clocks = [
        sum(option.clock_mhz for option in service.plan(one, Method.KAREUS, number).choices[0])
        for one, number in ((study, before.plan), (slowed.study, after.plan))
    ]
    assert clocks[1] < clocks[0]


def test_constraints_that_clash_are_named_and_store_nothing(finished: Finished) -> None:
    service, study = finished
    before = [one.id for one in service.studies()]
    with pytest.raises(InfeasibleError, match="floor 1410 MHz and the clock ceiling 900 MHz"):
        service.replan(study, Constraints(clock_floor_mhz={0: 1410}, clock_ceiling_mhz={0: 900}))
    assert [one.id for one in service.studies()] == before


@pytest.mark.parametrize(
    ("order", "chunks"), [(PipelineOrder.GPIPE, 1), (PipelineOrder.INTERLEAVED, 2)]
)
def test_other_pipeline_orders(service: Service, order: PipelineOrder, chunks: int) -> None:
    result = service.run(
        StudyRequest(settings=SETTINGS, budget="64", order=order, num_chunks=chunks)
    )
    best = service.choose(result.study, fastest=True)
    plan = service.plan(result.study, Method.KAREUS, best.plan)
    assert sum(len(stage) for stage in plan.choices) == 2 * 2 * 4 * chunks
    _, content = service.bundle(result.study, best.plan, method=Method.KAREUS)
    assert content


def test_without_recompute_a_plan_keeps_to_one_execution(service: Service) -> None:
    settings = replace(SETTINGS, recompute=Recompute.NONE)
    study = service.run(StudyRequest(settings=settings, budget="64")).study
    plans = service.store.load_frontier(study, Method.KAREUS)
    for plan in plans:
        assert len({option.execution for stage in plan.choices for option in stage}) == 1
    limited = service.replan(study, Constraints(max_clocks_per_stage=2)).study
    for plan in service.store.load_frontier(limited, Method.KAREUS):
        assert len({option.execution for stage in plan.choices for option in stage}) == 1
    for method in (Method.PERSEUS, Method.NANOBATCHING_PERSEUS, Method.MEGATRON):
        for baseline in service.plan_summaries(study, method):
            assert any(
                plan.iteration_time_s <= baseline.iteration_time_s * (1 + 1e-9)
                and plan.pipeline_energy_j <= baseline.pipeline_energy_j * (1 + 1e-9)
                for plan in plans
            )


def test_a_warmer_gpu_draws_more(finished: Finished, service: Service) -> None:
    whole, study = finished
    warm = service.run(StudyRequest(settings=SETTINGS, budget="96", seed=3, temperature_c=80.0))
    cool, hot = (
        one.choose(two, method=Method.MEGATRON, fastest=True)
        for one, two in ((whole, study), (service, warm.study))
    )
    assert hot.pipeline_energy_j > 1.005 * cool.pipeline_energy_j
    assert hot.iteration_time_s == pytest.approx(cool.iteration_time_s, rel=1e-3)


def test_transfer_starts_from_a_finished_study_and_says_so(finished: Finished) -> None:
    service, study = finished
    request = StudyRequest(
        settings=replace(SETTINGS, seq_len=2048), budget="64", transfer=True, seed=1
    )
    result = service.run(request)
    assert any(study in note for note in service.study(result.study).notes)


def test_transfer_without_a_donor_is_refused(service: Service) -> None:
    with pytest.raises(ConfigError, match="to start from: finish one first"):
        service.run(StudyRequest(settings=SETTINGS, budget="64", transfer=True))
