import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kareus.cli import main

WORKLOAD = (
    "--model", "llama3.2-3b", "--gpu", "A100-SXM4-40GB", "--tp", "8", "--pp", "2",
    "--stage-layers", "15,13",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process."""

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code=int(exit_.value.code or 0), out=captured.out, err=captured.err)

    return call


@pytest.fixture(scope="session")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A database with one finished study of the reference workload, and its id."""
    from kareus.service import Service, StudyRequest, WorkloadSettings

    database = tmp_path_factory.mktemp("studied") / "kareus.db"
    settings = WorkloadSettings(
        model="llama3.2-3b", gpu="A100-SXM4-40GB", tp=8, pp=2, stage_layers=(15, 13)
    )
    result = Service(database).run(StudyRequest(settings=settings, budget="fast", name="reference"))
    return database, result.study
