"""Training runs through the service: found, uploaded, compared, and planned again with."""

import json
from pathlib import Path

import pytest

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.errors import ConfigError, NotFoundError, ScheduleError
from kareus.schedule.bundle import read_bundle, write_bundle
from kareus.schedule.document import parse_schedule
from kareus.service import Cause, Service
from tests.service.training_log import write_log
from tests.train.sample import make_schedule, make_workload

Exported = tuple[Service, str, Path]


@pytest.fixture(scope="module")
def exported(finished: tuple[Service, str], tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A finished study and the bundle of its fastest plan."""
    service, study = finished
    bundle = tmp_path_factory.mktemp("exported") / "bundle.zip"
    service.export(study, 0, method=Method.KAREUS, out=bundle)
    return service, study, bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "own.zip", make_schedule(make_workload(pp=2, tp=2)))


def test_logs_are_found_newest_first_with_their_bundle(
    service: Service, bundle: Path, tmp_path: Path
) -> None:
    schedule = read_bundle(bundle)
    folder = tmp_path / "kareus-logs"
    write_log(folder / "first", schedule, bundle=bundle)
    write_log(folder / "second", schedule, bundle=tmp_path / "gone.zip")
    (folder / "second" / "rank-00000.jsonl").touch()
    (folder / "broken").mkdir()
    (folder / "broken" / "rank-00000.jsonl").write_text("[1]\n")
    found = {log.name: log for log in service.training_logs()}
    assert set(found) == {"first", "second", "broken"}
    assert found["first"].bundle == str(bundle)
    assert found["second"].bundle is None
    assert (found["first"].num_ranks, found["first"].device) == (4, "cuda")
    assert found["broken"].device is None
    times = [log.updated for log in service.training_logs()]
    assert times == sorted(times, reverse=True)
    with pytest.raises(NotFoundError, match="holds no training log"):
        service.training_log(tmp_path / "nowhere")


def test_a_throttled_stage_raises_the_alarm(service: Service, bundle: Path, tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "log",
        read_bundle(bundle),
        slower=1.3,
        slow_stages={1},
        throttle=("sw_power_cap",),
    )
    run = service.training_run(bundle, log)
    assert run.report.drift.raised is True
    assert [stage.cause for stage in run.report.stages] == [None, Cause.THROTTLED]
    assert run.ended and run.failure is None
    assert run.obstacle is not None and "study 'sample' is not in this database" in run.obstacle
    name, trace = service.training_trace(bundle, log)
    assert name == "log-timeline.json"
    assert {event["pid"] for event in json.loads(trace)["traceEvents"]} == {0, 1}


def test_uploads_are_kept_once_and_checked(service: Service, bundle: Path, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", read_bundle(bundle))
    files = [(path.name, path.read_bytes()) for path in sorted(log.iterdir())]
    kept = service.add_training_log(files)
    assert service.add_training_log(files[::-1]).path == kept.path
    assert [one.path for one in service.training_logs()] == [kept.path]
    path = service.add_bundle("../own.zip", bundle.read_bytes())
    assert Path(path).parent == tmp_path / "bundles"
    assert service.training_run(path, kept.path) == service.training_run(bundle, log)


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        ([("../rank-00000.jsonl", b"{}")], ConfigError, r"^\.\./rank-00000\.jsonl is none of"),
        ([("notes.txt", b"")], ConfigError, "notes.txt is none of a training log"),
        ([("rank-00000.jsonl", b"{}")] * 2, ConfigError, "given twice"),
        ([("rank-00000.jsonl", b"\xff{")], NotFoundError, "says whose it is"),
        ([("clocks-00000.jsonl", b"{}")], NotFoundError, "says whose it is"),
        ([], NotFoundError, "among nothing"),
    ],
)
def test_what_is_no_log_is_not_kept(
    service: Service,
    files: list[tuple[str, bytes]],
    error: type[Exception],
    said: str,
) -> None:
    with pytest.raises(error, match=said):
        service.add_training_log(files)
    assert service.training_logs() == []


def test_what_is_no_bundle_is_not_kept(service: Service, tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"^mine\.zip: not a readable"):
        service.add_bundle("mine.zip", b"PK")
    assert not (tmp_path / "bundles").exists()


def test_a_cpu_run_says_why_it_cannot_be_planned_with(
    service: Service, bundle: Path, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "log", read_bundle(bundle), device="cpu")
    run = service.training_run(bundle, log)
    assert run.obstacle is not None and "trained on a CPU" in run.obstacle
    with pytest.raises(ConfigError, match="trained on a CPU"):
        service.replan_with_measurements(bundle, log)


def test_without_a_traced_step_there_is_nothing_to_plan_with(
    service: Service, bundle: Path, tmp_path: Path
) -> None:
    log = write_log(tmp_path / "log", read_bundle(bundle), num_steps=1)
    obstacle = service.training_run(bundle, log).obstacle
    assert obstacle is not None and "traced no step" in obstacle


def test_another_study_of_that_name_is_not_planned_with(exported: Exported, tmp_path: Path) -> None:
    service, study, bundle = exported
    schedule = read_bundle(bundle)
    workload = make_workload(pp=2, tp=2)
    foreign = make_schedule(workload)
    foreign = foreign.model_copy(
        update={"provenance": foreign.provenance.model_copy(update={"study": study})}
    )
    assert foreign.workload != schedule.workload
    path = write_bundle(tmp_path / "b.zip", parse_schedule(foreign.to_json()))
    log = write_log(tmp_path / "log", read_bundle(path))
    with pytest.raises(NotFoundError, match="not in this database"):
        service.replan_with_measurements(path, log)


@pytest.mark.slow
def test_a_run_is_planned_again_with_what_it_measured(exported: Exported, tmp_path: Path) -> None:
    service, study, bundle = exported
    schedule = read_bundle(bundle)
    log = write_log(tmp_path / "log", schedule, slower=1.2)
    before = {(one.partition, one.configuration): one for one in service.measurements(study)}
    assert service.training_run(bundle, log).obstacle is None
    handle = service.replan_with_measurements(bundle, log, name="after the run")
    assert service.wait_for_job(handle.job, timeout_s=240).state == "done"
    detail = service.study(handle.study)
    assert detail.name == "after the run"
    assert detail.request.source is SourceKind.REPLAY
    assert "carried over from study" in detail.notes[-1]
    assert service.plan_summaries(handle.study, Method.KAREUS)
    replayed = service.measurements(handle.study)
    ran = [one for one in replayed if one.conditions.get("origin") == "training"]
    others = [one for one in replayed if one.conditions.get("origin") == "study"]
    assert ran and others and len(ran) + len(others) == len(replayed)
    assert [one.time_s for one in ran] == pytest.approx([0.002] * len(ran))
    for one in others[:50]:
        ratio = one.conditions["time_ratio"]
        assert isinstance(ratio, float)
        own = before[one.partition, one.configuration]
        assert one.time_s == pytest.approx(ratio * own.time_s)
    service.delete_study(handle.study)
