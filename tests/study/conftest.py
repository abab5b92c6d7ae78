from pathlib import Path

import pytest

from kareus.service import Service, StudyRequest, WorkloadSettings

SETTINGS = WorkloadSettings(
    model="llama3.2-1b",
    gpu="A100-SXM4-40GB",
    tp=2,
    pp=2,
    microbatch_size=2,
    seq_len=1024,
    num_microbatches=4,
)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Service, str]:
    """A service with one finished small study, and the study's id."""
    service = Service(tmp_path_factory.mktemp("finished") / "kareus.db")
    result = service.run(StudyRequest(settings=SETTINGS, budget="96", seed=3))
    return service, result.study


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "kareus.db")
