import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method, Plan
from kareus.errors import NotFoundError, StoreError
from kareus.store import Store
from tests.store import examples
from tests.store.examples import plan


def test_plans_come_back_equal_and_in_order(store: Store, study: str) -> None:
    plans = [plan(number) for number in range(4)]
    store.save_frontier(study, Method.KAREUS, plans[::-1])
    assert store.load_frontier(study, Method.KAREUS) == tuple(plans)
    assert store.load_plan(study, Method.KAREUS, 2) == plans[2]
    assert store.load_frontier(study, Method.PERSEUS) == ()


def test_summaries_give_the_figures_of_each_method(store: Store, study: str) -> None:
    store.save_frontier(study, Method.KAREUS, [plan(0), plan(1)])
    store.save_frontier(study, Method.MEGATRON, [plan(0, Method.MEGATRON)])
    everything = store.plan_summaries(study)
    assert [(s.method, s.number) for s in everything] == [
        (Method.KAREUS, 0),
        (Method.KAREUS, 1),
        (Method.MEGATRON, 0),
    ]
    (only,) = store.plan_summaries(study, Method.MEGATRON)
    assert only.pipeline_energy_j == 200.0
    assert only.bound_j is None
    assert everything[1].iteration_time_s == plan(1).iteration_time_s


def test_saving_again_replaces_all_of_the_method(store: Store, study: str) -> None:
    store.save_frontier(study, Method.KAREUS, [plan(0), plan(1), plan(2)])
    store.save_frontier(study, Method.PERSEUS, [plan(0, Method.PERSEUS)])
    store.save_frontier(study, Method.KAREUS, [plan(1)])
    assert store.load_frontier(study, Method.KAREUS) == (plan(1),)
    assert len(store.load_frontier(study, Method.PERSEUS)) == 1


def test_wrong_plans_are_refused_and_the_old_ones_kept(store: Store, study: str) -> None:
    store.save_frontier(study, Method.KAREUS, [plan(0)])
    for plans in ([plan(1), plan(1)], [plan(1, Method.PERSEUS)]):
        with pytest.raises(StoreError, match="number them per method"):
            store.save_frontier(study, Method.KAREUS, plans)
    assert store.load_frontier(study, Method.KAREUS) == (plan(0),)


def test_an_unknown_plan_is_refused_naming_those_there_are(store: Store, study: str) -> None:
    with pytest.raises(NotFoundError, match="no kareus plan 3: it has none"):
        store.load_plan(study, Method.KAREUS, 3)
    store.save_frontier(study, Method.KAREUS, [plan(0), plan(1)])
    with pytest.raises(NotFoundError, match="no kareus plan 3: it has 0 to 1"):
        store.load_plan(study, Method.KAREUS, 3)


def test_options_are_stored_once_however_often_they_are_chosen(store: Store, study: str) -> None:
    store.save_frontier(study, Method.KAREUS, [plan(n, num_instructions=256) for n in range(50)])
    with store._connections.reading() as db:
        (text,) = db.execute("SELECT options FROM frontiers").fetchone()
        (size,) = db.execute("SELECT sum(length(choices)) FROM plans").fetchone()
    assert len(json.loads(text)) == 50
    assert size < 50 * 2 * 256 * 4
    assert (
        store.load_frontier(study, Method.KAREUS)[49].choices
        == plan(49, num_instructions=256).choices
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(examples.choices, examples.positive, examples.positive), max_size=4))
def test_any_plan_survives_unchanged(parts: list) -> None:
    plans = tuple(
        Plan(
            number=number,
            method=Method.KAREUS,
            iteration_time_s=time_s,
            effective_energy_j=energy_j / 3,
            pipeline_energy_j=energy_j,
            bound_j=None,
            choices=choices,
        )
        for number, (choices, time_s, energy_j) in enumerate(parts)
    )
    with Store.in_memory() as store:
        study = store.create_study("n", request={}, source=SourceKind.SIMULATOR).id
        store.save_frontier(study, Method.KAREUS, plans)
        assert store.load_frontier(study, Method.KAREUS) == plans
