from pathlib import Path

import pytest

from kareus.core.plan import Method
from kareus.service import Service, StudyRequest
from tests.benchmarks.bench_studies import REFERENCE, excess_energy_pct


@pytest.mark.slow
def test_the_fast_budget_is_close_to_the_exhaustive_search(tmp_path: Path) -> None:
    service = Service(tmp_path / "kareus.db")
    settings = REFERENCE["llama3.2-3b tp8"]
    fast, exhaustive = (
        service.plan_summaries(
            service.run(StudyRequest(settings=settings, budget=budget)).study, Method.KAREUS
        )
        for budget in ("fast", "exhaustive")
    )
    assert excess_energy_pct(fast, exhaustive) <= 0.3
