import itertools
from dataclasses import replace

import pytest

from kareus.core.plan import Method
from kareus.errors import ConfigError
from kareus.service import ExplorationRequest, LayoutState, Service, StudyRequest
from tests.study.conftest import SETTINGS

REQUEST = ExplorationRequest(
    base=StudyRequest(settings=SETTINGS, budget="64"),
    num_gpus=4,
    global_batch_size=8,
    cps=(1,),
    microbatch_sizes=(2,),
)


@pytest.mark.slow
def test_joint_frontier_of_all_layouts(service: Service) -> None:
    view = service.explore(REQUEST)
    result = view.result
    assert view.state == "done"
    assert {one.tp * one.cp * one.pp * one.dp for one in result.layouts} == {4}
    assert all(one.state is not LayoutState.WAITING for one in result.layouts)
    for state in (LayoutState.BEATEN, LayoutState.IMPOSSIBLE):
        assert all(one.reason for one in result.layouts if one.state is state)
    assert result.frontier
    for faster, slower in itertools.pairwise(result.frontier):
        assert faster.iteration_time_s < slower.iteration_time_s
        assert faster.job_energy_j > slower.job_energy_j
    for point in result.frontier:
        study = result.layouts[point.layout].study
        assert study is not None
        plan = service.choose(study, method=Method.KAREUS, number=point.plan)
        assert plan.job_energy_j == pytest.approx(point.job_energy_j)
    # No baseline plan of any layout lies beyond the joint frontier, but for the distance between
    # two neighbouring plans.
    for layout in result.layouts:
        for time_s, energy_j in layout.baseline:
            assert any(
                point.iteration_time_s <= time_s * (1 + 1e-2)
                and point.job_energy_j <= energy_j * (1 + 1e-2)
                for point in result.frontier
            )
    assert service.studies() == []


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_gpus": 0}, "GPUs = 0"),
        ({"global_batch_size": 7}, "no layout of 7"),
        ({"margin": 1.5}, "margin 1.5"),
        ({"base": StudyRequest(settings=SETTINGS, budget="none")}, "none"),
        ({"base": StudyRequest(settings=SETTINGS, budget="20")}, "budget of 20"),
        (
            {"base": StudyRequest(settings=replace(SETTINGS, model="gpt3-175b")), "num_gpus": 1},
            "layouts on 1 GPUs",
        ),
    ],
)
def test_bad_requests_are_refused_and_store_nothing(
    service: Service, change: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        service.explore(replace(REQUEST, **change))  # type: ignore[arg-type]
    assert service.explorations() == []
