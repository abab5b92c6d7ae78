import pytest

from kareus.errors import MeasurementError, NotFoundError
from kareus.store import Store
from tests.store.examples import measurement


def test_a_data_set_is_kept_whole(store: Store) -> None:
    rows = [measurement(900), measurement(930), measurement(900, repeat=1)]
    created = store.add_dataset(
        "A100 logs",
        origin="/logs",
        workload={"tp": 8},
        report={"taken": 2, "repeated": 1},
        measurements=rows,
    )
    assert created.id.startswith("a100-logs-")
    assert (created.num_rows, created.origin) == (3, "/logs")
    assert created.workload == {"tp": 8}
    assert created.report == {"taken": 2, "repeated": 1}
    assert store.dataset_measurements(created.id) == tuple(rows)
    assert store.datasets() == (created,)


@pytest.mark.parametrize("rows", [[], [measurement(), measurement()]])
def test_nothing_is_stored_by_halves(store: Store, rows: list) -> None:
    with pytest.raises(MeasurementError):
        store.add_dataset("x", origin="o", workload={}, report={}, measurements=rows)
    assert store.datasets() == ()


def test_an_unknown_data_set_is_refused(store: Store) -> None:
    for action in (store.dataset, store.dataset_measurements):
        with pytest.raises(NotFoundError, match="there is no data set 'x'"):
            action("x")
