import re

import pytest

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.errors import JobError, NotFoundError, StoreError
from kareus.store import JobState, SearchRecord, Store, StudyState
from tests.store.examples import measurement, plan


def test_a_study_is_kept_as_given(store: Store) -> None:
    created = store.create_study(
        "Llama on eight GPUs",
        request={"model": "llama3.2-3b", "tp": 8, "stage_layers": None},
        source=SourceKind.REPLAY,
        words="Llama3.2-3B tp8 pp2",
        extrapolated=True,
        notes=["static power is assumed"],
        versions={"kareus": "1.0"},
    )
    found = store.study(created.id)
    assert found == created
    assert re.fullmatch(r"llama3\.2-3b-tp8-pp2-[a-z0-9]{4}", found.id)
    assert found.name == "Llama on eight GPUs"
    assert found.request == {"model": "llama3.2-3b", "tp": 8, "stage_layers": None}
    assert (found.source, found.extrapolated) == (SourceKind.REPLAY, True)
    assert found.notes == ("static power is assumed",)
    assert found.versions == {"kareus": "1.0"}
    assert (found.state, found.summary, found.finished_at) == (StudyState.QUEUED, None, None)
    assert found.created_at.utcoffset() is not None


@pytest.mark.parametrize("words", ["", "  ", "Ä/ö?#", "a b\tc", "x" * 300, "..", "-v"])
def test_ids_fit_urls_files_and_shells(store: Store, words: str) -> None:
    study = store.create_study("n", request={}, source=SourceKind.SIMULATOR, words=words).id
    assert re.fullmatch(r"[a-z0-9][a-z0-9.-]*", study)
    assert len(study) < 60


def test_ids_of_equal_words_differ(store: Store) -> None:
    ids = {store.create_study("n", request={}, source=SourceKind.SIMULATOR).id for _ in range(200)}
    assert len(ids) == 200


def test_a_study_is_found_by_id_name_and_beginning(store: Store) -> None:
    one = store.create_study("alpha", request={}, source=SourceKind.SIMULATOR, words="one").id
    two = store.create_study("beta", request={}, source=SourceKind.SIMULATOR, words="two").id
    assert store.find_study(one).id == one
    assert store.find_study("beta").id == two
    assert store.find_study(two[:4]).id == two


def test_an_ambiguous_or_unknown_study_is_refused_with_a_hint(store: Store, study: str) -> None:
    for _ in range(2):
        store.create_study("twin", request={}, source=SourceKind.SIMULATOR, words="w")
    with pytest.raises(NotFoundError, match="means 2 studies"):
        store.find_study("twin")
    with pytest.raises(NotFoundError, match=f"did you mean {study}"):
        store.find_study(study[:-1] + "X")
    for text in ("", "%", "zzzzzz"):
        with pytest.raises(NotFoundError, match="there is no study"):
            store.find_study(text)


def test_states_carry_their_time_and_error(store: Store, study: str) -> None:
    store.set_study_state(study, StudyState.FAILED, error="out of memory")
    failed = store.study(study)
    assert (failed.state, failed.error) == (StudyState.FAILED, "out of memory")
    assert failed.finished_at is not None
    store.set_study_state(study, StudyState.RUNNING)
    running = store.study(study)
    assert (running.state, running.error, running.finished_at) == (StudyState.RUNNING, None, None)


def test_a_description_changes_only_what_is_given(store: Store, study: str) -> None:
    before = store.study(study)
    store.describe_study(study, summary={"iso_time": 12.5}, notes=["x"])
    after = store.study(study)
    assert (after.summary, after.notes) == ({"iso_time": 12.5}, ("x",))
    assert (after.name, after.request) == (before.name, before.request)
    store.describe_study(study)
    assert store.study(study) == after


def test_the_list_is_newest_first_and_hides_archived_ones(store: Store) -> None:
    ids = [store.create_study(str(i), request={}, source=SourceKind.SIMULATOR).id for i in range(3)]
    store.describe_study(ids[1], archived=True)
    assert [s.id for s in store.studies()] == [ids[2], ids[0]]
    assert [s.id for s in store.studies(archived=True)] == [ids[1]]
    assert [s.id for s in store.studies(archived=None)] == ids[::-1]


def test_unknown_studies_are_refused_everywhere(store: Store) -> None:
    search = SearchRecord(partition="p", state="running", planned=1, done=0, hypervolume=())
    for action in (
        lambda: store.study("none"),
        lambda: store.set_study_state("none", StudyState.DONE),
        lambda: store.describe_study("none", name="x"),
        lambda: store.delete_study("none"),
        lambda: store.add_measurements("none", [measurement()]),
        lambda: store.save_search("none", search),
        lambda: store.save_options("none", {"p": ()}),
        lambda: store.save_frontier("none", Method.KAREUS, [plan(0)]),
        lambda: store.create_job("study", study="none"),
    ):
        with pytest.raises(NotFoundError, match="there is no study 'none'"):
            action()


def test_a_request_that_is_no_json_is_refused_and_nothing_stored(store: Store) -> None:
    for request in ({"x": float("nan")}, {"x": object()}):
        with pytest.raises(StoreError, match="cannot be stored as JSON"):
            store.create_study("n", request=request, source=SourceKind.SIMULATOR)
    assert store.studies(archived=None) == ()


def test_deleting_takes_everything_of_the_study_and_nothing_else(store: Store, study: str) -> None:
    other = store.create_study("other", request={}, source=SourceKind.SIMULATOR).id
    for owner in (study, other):
        store.add_measurements(owner, [measurement()])
        store.save_frontier(owner, Method.KAREUS, [plan(0)])
    job = store.create_job("study", study=study).id
    with pytest.raises(JobError, match=f"job {job}: cancel it first"):
        store.delete_study(study)
    store.change_job(job, expected=[JobState.QUEUED], state=JobState.CANCELLED)
    store.delete_study(study)
    assert store.measurements(study) == ()
    assert store.load_frontier(study, Method.KAREUS) == ()
    with pytest.raises(NotFoundError):
        store.job(job)
    assert len(store.measurements(other)) == 1
    assert store.load_frontier(other, Method.KAREUS) == (plan(0),)
