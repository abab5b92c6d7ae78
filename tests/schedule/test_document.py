import json
import math

import pytest

from kareus.core.measurement import SourceKind
from kareus.core.partition import Execution
from kareus.core.plan import Method
from kareus.core.workload import Recompute
from kareus.errors import ScheduleError
from kareus.schedule.document import build_schedule, checksum, parse_schedule
from tests.schedule.sample import make_pipeline, make_plan, make_schedule, make_workload


@pytest.mark.parametrize(
    "workload",
    [
        make_workload(),
        make_workload(pp=1, num_microbatches=1),
        make_workload(pp=4, num_microbatches=2, cp=2, tp=4, dp=2, recompute=Recompute.NONE),
        make_workload(tp=1),
    ],
    ids=["tp8", "one", "cp2-dp2", "tp1"],
)
def test_a_document_gives_its_plan_back(workload):
    plan = make_plan(workload, number=3, slow_first_mhz=900)
    schedule = make_schedule(workload, plan)
    read = parse_schedule(schedule.to_json())
    assert read == schedule
    assert read.to_plan() == plan
    assert read.pipeline == make_pipeline(workload)
    assert read.workload == workload


def test_both_scopes_of_energy():
    workload = make_workload(tp=4, cp=2, dp=3)
    plan = make_plan(workload)
    prediction = make_schedule(workload, plan).prediction
    assert prediction.pipeline.energy_j == plan.pipeline_energy_j
    assert prediction.job.energy_j == pytest.approx(24 * plan.pipeline_energy_j)
    assert prediction.job.average_power_w == pytest.approx(
        prediction.job.energy_j / plan.iteration_time_s
    )


def test_sequential_and_baseline_plans():
    workload = make_workload()
    plan = make_plan(workload, method=Method.MEGATRON, execution=Execution.SEQUENTIAL)
    data = json.loads(make_schedule(workload, plan).to_json())
    first = data["stages"][0]["instructions"][0]
    assert first["execution"] == "sequential"
    assert first["partitions"][0]["launch_point"] is None
    assert data["prediction"]["bound_j"] is None


def test_provenance_is_kept():
    workload = make_workload()
    schedule = build_schedule(
        make_plan(workload),
        make_pipeline(workload),
        workload,
        study="s1",
        source=SourceKind.SIMULATOR,
        seed=5,
        extrapolated=True,
        uncertainty=0.1,
        versions={"torch": "2.9"},
    )
    read = parse_schedule(schedule.to_json()).provenance
    assert (read.study, read.seed, read.extrapolated, read.uncertainty) == ("s1", 5, True, 0.1)
    assert read.static_power_w == workload.gpu.static_power_w
    assert {"kareus", "python", "torch"} <= set(read.versions)


def altered(change):
    data = json.loads(make_schedule().to_json())
    change(data)
    return data


def test_an_altered_document_is_refused():
    data = altered(lambda d: d["stages"][1]["instructions"][0].update(clock_mhz=1200))
    with pytest.raises(ScheduleError, match=r"checksum .* does not match"):
        parse_schedule(json.dumps(data))


def test_formatting_does_not_change_the_checksum():
    schedule = make_schedule()
    assert parse_schedule(json.dumps(json.loads(schedule.to_json()), indent=4)) == schedule


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["stages"].pop(), "1 stages for a pipeline of pp = 2"),
        (lambda d: d["stages"][0]["instructions"].reverse(), "does not follow the 1f1b order"),
        (lambda d: d["stages"][0]["instructions"].pop(), "does not follow the 1f1b order"),
        (lambda d: d["stages"][0].update(layers=5), "the workload has 4"),
        (lambda d: d["stages"][0]["instructions"][0].update(time_s=-1.0), "time_s"),
        (lambda d: d["stages"][0]["instructions"][0].update(surprise=1), "surprise"),
        (lambda d: d.pop("workload"), "workload"),
    ],
)
def test_inconsistent_documents_are_refused_in_one_line(change, words):
    data = altered(change)
    data["checksum"] = checksum(data)
    with pytest.raises(ScheduleError) as caught:
        parse_schedule(json.dumps(data))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a Kareus schedule"),
        ('{"format": "kareus-schedule", "version": 2}', "version 2 is not readable"),
        ('{"format": "kareus-schedule", "version": 1, "plan": NaN}', "NaN is not a JSON number"),
    ],
)
def test_what_is_no_document(text, words):
    with pytest.raises(ScheduleError, match=r"schedule\.json: ") as caught:
        parse_schedule(text)
    assert words in str(caught.value)


def test_no_number_that_json_lacks_is_written():
    workload = make_workload()
    plan = make_plan(workload)
    object.__setattr__(plan, "effective_energy_j", math.nan)
    with pytest.raises(ScheduleError, match="effective_energy_j"):
        make_schedule(workload, plan)
