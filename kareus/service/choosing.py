"""Before a study: catalogues, uploaded models, and what a request would mean."""

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from kareus.core.measurement import SourceKind
from kareus.core.partition import Partition
from kareus.core.pipeline import PipelineOrder
from kareus.core.workload import Workload
from kareus.errors import ConfigError, KareusError
from kareus.profiling.machine import adapt_workload
from kareus.profiling.source import default_device
from kareus.search.budget import BudgetKind, minimum_measurements, parse_budget, partition_budget
from kareus.search.kind import SearchKind
from kareus.service.views import Assessment, Uncertainty
from kareus.store import DatasetRecord
from kareus.study.documents import WORKLOAD, pipeline_of
from kareus.study.request import StudyRequest
from kareus.study.sources import calibration_of, gpu_resources, make_simulator
from kareus.workload.build import Finding, Severity, check_workload
from kareus.workload.memory import estimate_memory
from kareus.workload.models import load_model_from_text
from kareus.workload.partitions import build_partitions

# Seconds per measurement: on a GPU settle, cool down, warm up and window (measuring one
# configuration takes about 13 s); simulated, the search's own time (medians of whole studies on
# two cores, see tests/benchmarks/bench_studies.py).
_MEASURED_S = 13.0
_SIMULATED_S = 0.02
_LONGEST_NAME = 120
# What the store keeps as a whole number, and what a frontier can be read with.
_MOST_SEED = 2**63 - 1
_MOST_PLANS = 10_000


def assess(request: StudyRequest, *, datasets: Sequence[DatasetRecord] | None = None) -> Assessment:
    """Return what a request would mean; never raises for anything a person can enter.

    Args:
        request: What was entered.
        datasets: The imported measurements there are; None where they are not looked at.
    """
    workload, findings = check_workload(request.settings)
    found = [*findings, *_check_request(request, workload)]
    if request.source is SourceKind.REPLAY and datasets is not None:
        found += _check_recorded(request.measurements, workload, datasets)
    if workload is None:
        return Assessment(workload=None, findings=in_order(found))
    if request.source is SourceKind.MEASURED:
        workload = _as_measured(workload, found)
    partitions = build_partitions(workload)
    searched, beside = count_measurements(partitions, request.budget)
    extrapolated, uncertainty = False, None
    if request.source is SourceKind.SIMULATOR:
        try:
            extrapolated, uncertainty = trust(request, workload)
            make_simulator(request, workload)
        except KareusError as error:
            field = "temperature_c" if "temperature" in str(error) else "calibration"
            found.append(_error(field, str(error)))
    each_s = _MEASURED_S if request.source is SourceKind.MEASURED else _SIMULATED_S
    return Assessment(
        workload=workload,
        findings=in_order(found),
        memory=estimate_memory(workload),
        num_partitions=len(partitions),
        num_measurements=searched,
        num_baseline_measurements=beside,
        estimated_s=None if searched is None else each_s * (searched + beside),
        extrapolated=extrapolated,
        uncertainty=uncertainty,
    )


def _as_measured(workload: Workload, found: list[Finding]) -> Workload:
    """The workload with the clocks this machine's GPUs can be locked to."""
    try:
        return adapt_workload(workload) if default_device().uses_gpus else workload
    except KareusError as error:
        # Which GPUs are missing is among the findings already.
        if not any(finding.field == "source" for finding in found):
            found.append(_error("source", str(error)))
        return workload


def count_measurements(
    partitions: dict[str, Partition], budget_text: str
) -> tuple[int | None, int]:
    """Return how many measurements the search would spend, and how many the baselines need.

    The first is None where the budget is none.
    """
    beside = sum(len(partition.baseline_configurations()) for partition in partitions.values())
    try:
        budget = parse_budget(budget_text)
    except ConfigError:
        return None, beside
    if budget.num_measurements is not None:
        return budget.num_measurements, beside
    return (
        sum(
            min(partition_budget(one, budget).total, len(one.space()))
            for one in partitions.values()
            if one.searched
        ),
        beside,
    )


def trust(request: StudyRequest, workload: Workload) -> tuple[bool, Uncertainty | None]:
    """Return whether the simulator extrapolates for a request, and its assumed uncertainty."""
    calibration = calibration_of(request, workload)
    if not calibration.extrapolated:
        return False, None
    assumed = calibration.uncertainty
    return True, Uncertainty(time=assumed.time, energy=assumed.energy)


def add_model(folder: Path, file_name: str, text: str) -> str:
    """Keep an uploaded Hugging Face configuration and return a name usable as `model`.

    Args:
        folder: Where uploaded configurations are kept.
        file_name: As the user calls it.
        text: Its content.

    Raises:
        ConfigError: It is no configuration of a model that can be planned for.
    """
    load_model_from_text(text, file_name)
    stem = Path(file_name).stem or "model"
    path = folder / f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}" / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def _check_request(request: StudyRequest, workload: Workload | None) -> list[Finding]:
    """What is wrong with the request beside its workload."""
    found: list[Finding] = []
    try:
        budget = parse_budget(request.budget)
    except ConfigError as error:
        found.append(_error("budget", str(error)))
    else:
        if budget.kind is BudgetKind.NUMBER and workload is not None:
            least = minimum_measurements(build_partitions(workload).values())
            assert budget.num_measurements is not None
            if budget.num_measurements < least:
                found.append(
                    _error(
                        "budget",
                        f"a budget of {budget.num_measurements} measurements is below the {least} "
                        f"of the initial designs: give at least {least}",
                    )
                )
    if request.search not in list(SearchKind):
        found.append(
            _error("search", f"search {request.search!r} is unknown: use {', '.join(SearchKind)}")
        )
    found += _check_numbers(request)
    found += _unused(request)
    if request.source is SourceKind.REPLAY and request.measurements is None:
        found.append(
            _error(
                "measurements",
                "source replay needs recorded measurements: give --measurements with a dataset id "
                "(kareus import makes one) or a path",
            )
        )
    if workload is not None:
        try:
            gpu_resources(request, workload)
        except KareusError as error:
            found.append(_error("source", str(error)))
    if request.transfer and request.search != SearchKind.KAREUS.value:
        found.append(_error("transfer", "starting from other studies needs search 'kareus'"))
    interleaved = request.order is PipelineOrder.INTERLEAVED and request.num_chunks > 1
    if interleaved and request.settings.stage_layers is not None:
        found.append(
            _error(
                "stage_layers",
                "layers are split evenly over the model chunks of an interleaved order: leave out "
                "--stage-layers, or give --chunks 1",
            )
        )
    if workload is not None:
        try:
            pipeline_of(request, workload)
        except ConfigError as error:
            found.append(_error("order", str(error)))
    return found


def _check_recorded(
    named: str | None, workload: Workload | None, datasets: Sequence[DatasetRecord]
) -> list[Finding]:
    """What is wrong with the recorded measurements a request names."""
    if named is None:
        return []  # said with the source already
    with contextlib.suppress(OSError, ValueError):  # too long for a path, for instance
        if Path(named).exists():
            return []  # its rows are checked one by one when they are read
    record = next((one for one in datasets if one.id == named), None)
    if record is None:
        return [
            _error(
                "measurements",
                f"there are no recorded measurements {named!r}: give the id of imported ones "
                "(kareus import makes one) or a path",
            )
        ]
    if workload is None:
        return []
    recorded = WORKLOAD.validate_python(record.workload)
    differing = [
        f"{name} {theirs}, not {ours}"
        for name, theirs, ours in _measured_under(recorded, workload)
        if theirs != ours
    ]
    if not differing:
        return []
    return [
        _error(
            "measurements",
            f"{named} was recorded with {', '.join(differing)}: choose measurements of this "
            "workload, or change the workload",
        )
    ]


def _measured_under(one: Workload, other: Workload) -> list[tuple[str, object, object]]:
    """What a partition's time and energy depend on, of two workloads."""
    return [
        ("model", one.model.name, other.model.name),
        ("GPU", one.gpu.name, other.gpu.name),
        ("tp", one.parallelism.tp, other.parallelism.tp),
        ("cp", one.parallelism.cp, other.parallelism.cp),
        ("microbatch size", one.microbatch_size, other.microbatch_size),
        ("sequence length", one.seq_len, other.seq_len),
    ]


def _check_numbers(request: StudyRequest) -> list[Finding]:
    """What is wrong with the seed, the number of plans and the length of the name."""
    found: list[Finding] = []
    if not isinstance(request.seed, int) or request.seed < 0:
        found.append(_error("seed", f"seed {request.seed} is not a whole number of at least 0"))
    elif request.seed > _MOST_SEED:
        found.append(_error("seed", f"seed {request.seed} is too large: at most {_MOST_SEED}"))
    if request.name is not None and not 0 < len(request.name) <= _LONGEST_NAME:
        found.append(
            _error("name", f"a name has 1 to {_LONGEST_NAME} characters, not {len(request.name)}")
        )
    if request.num_plans < 2:
        found.append(
            _error("num_plans", f"{request.num_plans} plans make no frontier: give 2 or more")
        )
    elif request.num_plans > _MOST_PLANS:
        found.append(
            _error("num_plans", f"{request.num_plans} plans are too many: at most {_MOST_PLANS}")
        )
    return found


def _unused(request: StudyRequest) -> list[Finding]:
    """What was given for another source than the request's: never ignored in silence."""
    found: list[Finding] = []
    if request.source is not SourceKind.REPLAY and request.measurements is not None:
        found.append(
            _error(
                "measurements",
                f"--measurements {request.measurements} is only read with --source replay, this is "
                f"{request.source.value}: change the source, or leave it out",
            )
        )
    if request.source is not SourceKind.SIMULATOR and request.calibration is not None:
        found.append(
            _error(
                "calibration",
                f"--calibration {request.calibration} is only used with --source simulator, this "
                f"is {request.source.value}: change the source, or leave it out",
            )
        )
    return found


def _error(field: str, message: str) -> Finding:
    return Finding(field=field, severity=Severity.ERROR, message=message)


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings with errors first, then warnings, then notes."""
    order = list(Severity)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))
