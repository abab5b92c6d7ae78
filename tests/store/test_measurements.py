import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.configuration import Configuration
from kareus.core.measurement import FailedMeasurement, Measurement, SourceKind
from kareus.errors import MeasurementError, StoreError
from kareus.store import SearchRecord, Store
from tests.store import examples
from tests.store.examples import measurement


def test_results_come_back_in_the_order_they_came(store: Store, study: str) -> None:
    results = [measurement(1410), measurement(900), measurement(1200, partition="fwd_mlp")]
    failed = FailedMeasurement(
        partition="fwd_attn",
        configuration=Configuration(clock_mhz=930),
        reason="clock fell to 810 MHz",
        repeat=2,
    )
    for result in [*results, failed]:
        assert store.add_measurements(study, [result], seed=7) == 1
    assert store.measurements(study) == (*results, failed)
    assert store.measurements(study, "fwd_attn") == (*results[:2], failed)
    assert store.measurements(study, "bwd_mlp") == ()
    assert store.count_measurements(study) == {"fwd_attn": 3, "fwd_mlp": 1}
    rows = store.measurement_rows(study)
    assert [row["seed"] for row in rows] == [7] * 4
    assert [row["sequence"] for row in rows] == sorted(row["sequence"] for row in rows)
    assert rows[3]["failure"] == "clock fell to 810 MHz"


@pytest.mark.parametrize("sms", [3, None])
def test_a_repeat_is_new_but_a_duplicate_is_refused(
    store: Store, study: str, sms: int | None
) -> None:
    store.add_measurements(study, [measurement(sms=sms), measurement(sms=sms, repeat=1)])
    with pytest.raises(MeasurementError, match=r"fwd_attn at 900 MHz.*repeat 1 already"):
        store.add_measurements(study, [measurement(sms=sms, repeat=1)])
    failed = FailedMeasurement(
        partition="fwd_attn", configuration=measurement(sms=sms).configuration, reason="x"
    )
    with pytest.raises(MeasurementError, match="already"):
        store.add_measurements(study, [failed])
    assert len(store.measurements(study)) == 2


def test_a_refused_batch_leaves_nothing_behind(store: Store, study: str) -> None:
    store.add_measurements(study, [measurement(900)])
    with pytest.raises(MeasurementError):
        store.add_measurements(study, [measurement(930), measurement(900)])
    with pytest.raises(StoreError, match="JSON"):
        bad = Measurement(
            partition="p",
            configuration=Configuration(clock_mhz=960),
            time_s=1.0,
            energy_j=1.0,
            source=SourceKind.MEASURED,
            conditions={"x": float("inf")},
        )
        store.add_measurements(study, [measurement(930), bad])
    assert store.measurements(study) == (measurement(900),)


def test_known_results_are_skipped_where_asked(store: Store, study: str) -> None:
    store.add_measurements(study, [measurement(900)])
    batch = [measurement(900), measurement(930)]
    assert store.add_measurements(study, batch, skip_known=True) == 1
    assert store.measurements(study) == tuple(batch)


def test_equal_configurations_of_two_studies_do_not_meet(store: Store, study: str) -> None:
    other = store.create_study("other", request={}, source=SourceKind.SIMULATOR).id
    assert store.add_measurements(study, [measurement()]) == 1
    assert store.add_measurements(other, [measurement()]) == 1
    assert len(store.measurements(study)) == 1


def test_nothing_is_stored_as_zero_where_it_is_unknown(store: Store, study: str) -> None:
    unknown = Measurement(
        partition="p",
        configuration=Configuration(clock_mhz=900),
        time_s=0.5,
        energy_j=None,
        source=SourceKind.MEASURED,
    )
    store.add_measurements(study, [unknown])
    assert store.measurements(study) == (unknown,)
    assert store.measurement_rows(study)[0]["energy_j"] is None


@settings(max_examples=60, deadline=None)
@given(st.lists(examples.measurements | examples.failures, max_size=6))
def test_any_result_survives_unchanged(results: list[Measurement | FailedMeasurement]) -> None:
    with Store.in_memory() as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        distinct = {
            (r.partition, r.configuration.sort_key(), r.configuration, r.repeat): r for r in results
        }
        kept = list(distinct.values())
        store.add_measurements(study, kept)
        assert store.measurements(study) == tuple(kept)


def test_searches_and_options_replace_their_earlier_selves(store: Store, study: str) -> None:
    def search(partition: str, done: int, *trace: float) -> SearchRecord:
        return SearchRecord(
            partition=partition, state="running", planned=224, done=done, hypervolume=trace
        )

    store.save_search(study, search("fwd_attn", 96, 0.9))
    store.save_search(study, search("fwd_mlp", 1))
    store.save_search(study, search("fwd_attn", 128, 0.9, 0.95))
    found = {s.partition: s for s in store.searches(study)}
    assert found == {
        "fwd_attn": search("fwd_attn", 128, 0.9, 0.95),
        "fwd_mlp": search("fwd_mlp", 1),
    }


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(examples.names, st.lists(examples.partition_options).map(tuple)))
def test_options_survive_unchanged(options: dict) -> None:
    with Store.in_memory() as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        store.save_options(study, options)
        assert store.load_options(study) == options


def test_two_thousand_measurements_one_by_one_take_a_second_at_most(tmp_path) -> None:
    with Store(tmp_path / "kareus.db") as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        results = [measurement(clock) for clock in range(1000, 3000)]
        start = time.perf_counter()
        for result in results:
            store.add_measurements(study, [result])
        stored = time.perf_counter()
        assert store.measurements(study) == tuple(results)
        # Typically 0.1 s; the margin is for machines that do much else.
        assert stored - start < 1.5
