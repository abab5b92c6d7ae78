"""A database with finished studies, written directly: no study is run."""

from pathlib import Path

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.plan import Method
from kareus.report.comparison import compare_frontiers
from kareus.store import SearchRecord, Store, StudyState
from kareus.study.documents import study_document
from kareus.study.request import StudyRequest
from tests.app.fake import CLOCKS, PLANS, SETTINGS, WORKLOAD


def fill(database: Path, *, num_studies: int) -> list[str]:
    """Add finished studies and return their ids, oldest first."""
    store = Store(database)
    studies = []
    for number in range(num_studies):
        record = store.create_study(
            f"study {number}",
            request=study_document(StudyRequest(settings=SETTINGS), WORKLOAD),
            source=SourceKind.SIMULATOR,
            words="llama3.2-3b-tp8-pp2",
        )
        for method in Method:
            store.save_frontier(record.id, method, PLANS[method])
        for partition in ("fwd_attn", "fwd_mlp", "bwd_mlp", "bwd_attn"):
            store.add_measurements(
                record.id,
                [
                    Measurement(
                        partition=partition,
                        configuration=Configuration(clock_mhz=clock),
                        time_s=4.0 / clock,
                        energy_j=clock / 1410.0,
                        source=SourceKind.SIMULATOR,
                    )
                    for clock in CLOCKS
                ],
            )
            store.save_search(
                record.id,
                SearchRecord(
                    partition=partition,
                    state="done",
                    done=len(CLOCKS),
                    planned=len(CLOCKS),
                    hypervolume=(0.8, 0.9, 1.0),
                ),
            )
        store.describe_study(record.id, summary=compare_frontiers(PLANS))
        store.set_study_state(record.id, StudyState.DONE)
        studies.append(record.id)
    store.close()
    return studies
