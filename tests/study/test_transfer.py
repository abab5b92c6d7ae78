"""Which studies a new one starts from, and that this stays so."""

from dataclasses import replace
from pathlib import Path

import pytest

from kareus.errors import ConfigError
from kareus.service import Constraints, Service, StudyRequest
from kareus.study.documents import request_of, workload_of
from kareus.study.transfer import find_donors, load_priors
from kareus.workload.build import build_workload
from kareus.workload.partitions import build_partitions
from tests.study.conftest import SETTINGS

_OTHER = replace(SETTINGS, seq_len=2048)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A service with four studies of other sequence lengths and a constrained one, newest last."""
    service = Service(Path(tmp_path_factory.mktemp("donors")) / "kareus.db")
    for length in (512, 1024, 3072, 4096):
        settings = replace(SETTINGS, seq_len=length)
        service.run(StudyRequest(settings=settings, budget="56", name=f"length {length}"))
    service.replan("length 4096", Constraints(max_clocks_per_stage=3), name="constrained")
    return service


def _donors(service: Service, request: StudyRequest) -> list[str]:
    found = find_donors(
        service.store.studies(archived=None), request, build_workload(request.settings)
    )
    return [service.store.study(one).name for one in found]


def test_the_three_newest_of_other_workloads_are_donors(service: Service) -> None:
    request = StudyRequest(settings=_OTHER, transfer=True)
    assert _donors(service, request) == ["length 4096", "length 3072", "length 1024"]
    same = replace(request, settings=replace(SETTINGS, seq_len=3072))
    assert _donors(service, same) == ["length 4096", "length 1024", "length 512"]


def test_another_gpu_has_no_donors_and_is_refused(service: Service) -> None:
    settings = replace(_OTHER, gpu="H100-SXM5-80GB")
    request = StudyRequest(settings=settings, transfer=True)
    assert _donors(service, request) == []
    errors = [one.message for one in service.assess(request).findings if one.field == "transfer"]
    assert "no finished simulator study on H100-SXM5-80GB" in errors[0]


def test_donors_are_settled_when_the_study_is_created(service: Service) -> None:
    request = StudyRequest(settings=_OTHER, budget="56", transfer=True, name="new")
    study = service.run(request).study
    record = service.store.study(study)
    kept = request_of(record)
    assert [service.store.study(one).name for one in kept.donors] == [
        "length 4096",
        "length 3072",
        "length 1024",
    ]
    assert sum(", ".join(kept.donors) in note for note in record.notes) == 1
    # A study that finishes later does not change what a resumed one starts from.
    later = StudyRequest(settings=replace(SETTINGS, seq_len=256), budget="56", name="later")
    service.run(later)
    partitions = build_partitions(workload_of(record))
    priors = load_priors(service.store, kept, partitions)
    assert {donor.study for prior in priors.values() for donor in prior.donors} == {*kept.donors}


def test_a_deleted_donor_is_named(service: Service) -> None:
    kept = StudyRequest(settings=_OTHER, transfer=True, donors=("gone-study",))
    with pytest.raises(ConfigError, match=r"gone-study.*was deleted"):
        load_priors(service.store, kept, build_partitions(build_workload(_OTHER)))


def test_convergence_of_a_finished_study(service: Service) -> None:
    found = service.convergence("length 4096", "fwd_attn")
    assert found is not None
    assert 0.0 < found.random[0][1] <= found.search[-1][1] <= 1.0 + 1e-12
    assert found.num_configurations < found.size
