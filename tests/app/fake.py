"""An in-memory stand-in for the service: the same calls, a few seconds of work in none of them."""

import math
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.partition import Direction, Execution
from kareus.core.pipeline import one_f_one_b
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.core.timeline import build_timeline
from kareus.core.workload import Gpu, Model, Parallelism, Workload
from kareus.errors import (
    ConfigError,
    InfeasibleError,
    JobError,
    NotFoundError,
)
from kareus.service import (
    Assessment,
    Constraints,
    Convergence,
    DoctorCheck,
    Finding,
    ImportRefusal,
    ImportReport,
    JobHandle,
    JobView,
    MemoryEstimate,
    PartitionProgress,
    PlanSummary,
    Severity,
    StageMemory,
    StudyDetail,
    StudyRequest,
    StudySummary,
    WorkloadSettings,
)
from kareus.service.views import DatasetView
from tests.app.fake_explorations import FakeExplorations
from tests.app.fake_training import FakeTraining
from tests.app.fake_trust import FakeTrust

STATIC_POWER_W = 85.0
NUM_STAGES = 2
NUM_MICROBATCHES = 8
CREATED = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)
CLOCKS = tuple(range(900, 1411, 30))

MODEL = Model(
    name="llama3.2-3b",
    family="llama",
    num_layers=28,
    hidden_size=3072,
    ffn_hidden_size=8192,
    num_heads=24,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
    tied_embeddings=True,
)
GPU = Gpu(
    name="A100-SXM4-40GB",
    num_sms=108,
    clocks_mhz=CLOCKS,
    static_power_w=STATIC_POWER_W,
    static_power_measured=True,
    power_limit_w=400.0,
    memory_bytes=40 << 30,
    peak_flops=312e12,
    memory_bandwidth_bytes_s=1.555e12,
    link_bandwidth_bytes_s=300e9,
    calibrated=True,
)
WORKLOAD = Workload(
    model=MODEL,
    gpu=GPU,
    parallelism=Parallelism(tp=8, pp=NUM_STAGES),
    microbatch_size=8,
    seq_len=4096,
    num_microbatches=NUM_MICROBATCHES,
    stage_layers=(14, 14),
)
SETTINGS = WorkloadSettings(model=MODEL.name, gpu=GPU.name, tp=8, pp=2)
MEMORY = MemoryEstimate(
    stages=tuple(
        StageMemory(
            stage=stage,
            num_layers=14,
            num_in_flight=2 - stage,
            num_parameters=2.2e8,
            weights_bytes=0.45e9,
            gradients_bytes=0.9e9,
            optimizer_bytes=2.7e9,
            activations_bytes=5.6e9,
            working_bytes=1.5e9,
            logits_bytes=0.0,
            tied_copy_bytes=0.0,
            reserve_bytes=2.1e9,
        )
        for stage in range(NUM_STAGES)
    ),
    limit_bytes=GPU.memory_bytes,
)
# Method -> (plans, least iteration time in s, energy there in J, energy of the most frugal in J).
CURVES = {
    Method.KAREUS: (24, 4.41, 4950.0, 3900.0),
    Method.NANOBATCHING_PERSEUS: (18, 4.62, 5150.0, 4250.0),
    Method.PERSEUS: (18, 4.86, 5230.0, 4470.0),
    Method.MEGATRON: (1, 4.86, 5610.0, 5610.0),
}


def option(method: Method, direction: Direction, clock: int, time_s: float) -> InstructionOption:
    """An instruction's option with configurations as that method has them."""
    names = ("fwd_attn", "fwd_mlp")
    if direction is Direction.BACKWARD:
        names += ("bwd_mlp", "bwd_attn")
    if method in (Method.PERSEUS, Method.MEGATRON):
        configurations = tuple((f"seq_{name}", Configuration(clock_mhz=clock)) for name in names)
        execution = Execution.SEQUENTIAL
    else:
        sms = 12 if method is Method.KAREUS else 20
        configurations = tuple(
            (
                name,
                Configuration(
                    clock_mhz=clock, sm_allocation=sms, launch_point=LaunchPoint.LINEAR_0
                ),
            )
            for name in names
        )
        execution = Execution.NANOBATCH
    energy = 60.0 * time_s * (clock / 1000.0) ** 2.4 * 9
    return InstructionOption(
        clock_mhz=clock,
        execution=execution,
        time_s=time_s,
        effective_energy_j=energy,
        configurations=configurations,
    )


def plans_of(method: Method) -> tuple[Plan, ...]:
    """A plausible frontier of that method, fastest first."""
    count, fastest_s, most_j, least_j = CURVES[method]
    plans = []
    for number in range(count):
        share = number / max(1, count - 1)
        time_s = fastest_s * (1 + 0.32 * share)
        energy_j = least_j + (most_j - least_j) * (1 - share) ** 2.2
        clock = CLOCKS[-1 - round(share * 12)]
        forward_s = time_s / 9 / 3
        pipeline = one_f_one_b(NUM_STAGES, NUM_MICROBATCHES)
        choices = tuple(
            tuple(
                option(
                    method,
                    instruction.direction,
                    clock,
                    forward_s * (1 if instruction.direction is Direction.FORWARD else 2),
                )
                for instruction in stage
            )
            for stage in pipeline.stages
        )
        plans.append(
            Plan(
                number=number,
                method=method,
                iteration_time_s=time_s,
                effective_energy_j=energy_j - NUM_STAGES * STATIC_POWER_W * time_s,
                pipeline_energy_j=energy_j,
                bound_j=None if method is Method.MEGATRON else energy_j * 0.998,
                choices=choices,
            )
        )
    return tuple(plans)


PLANS = {method: plans_of(method) for method in Method}


def summary(plan: Plan) -> PlanSummary:
    """The figures of a plan."""
    per_stage = WORKLOAD.parallelism.gpus_per_stage
    return PlanSummary(
        method=plan.method,
        plan=plan.number,
        iteration_time_s=plan.iteration_time_s,
        effective_energy_j=plan.effective_energy_j,
        pipeline_energy_j=plan.pipeline_energy_j,
        job_energy_j=plan.pipeline_energy_j * per_stage,
        average_power_w=plan.average_power_w * per_stage,
        static_energy_j=plan.pipeline_energy_j - plan.effective_energy_j,
        bound_j=plan.bound_j,
        gap=plan.gap,
    )


COMPARE = {
    "max_throughput": {
        "kareus": {"time_reduction_pct": 9.26, "energy_reduction_pct": 11.8},
        "nanobatching-perseus": {"time_reduction_pct": 4.9, "energy_reduction_pct": 8.2},
        "perseus": {"time_reduction_pct": 0.0, "energy_reduction_pct": 6.8},
    },
    "iso_time_energy_reduction_pct": {"kareus": 17.4, "nanobatching-perseus": 7.1},
    "iso_energy_time_reduction_pct": {"kareus": 12.3, "nanobatching-perseus": 4.0},
    "hypervolume": {"kareus": 1.0, "nanobatching-perseus": 0.8, "perseus": 0.7},
}


@dataclass
class FakeService(FakeExplorations, FakeTraining, FakeTrust):
    """Holds studies and jobs in memory; `Service()` in the dashboard returns the same one."""

    studies_by_id: dict[str, StudySummary] = field(default_factory=dict)
    jobs_by_id: dict[str, JobView] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    doctor_checks: list[DoctorCheck] = field(default_factory=list)
    submitted: list[StudyRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    bundles: int = 0
    kept_datasets: list[DatasetView] = field(default_factory=list)
    request: StudyRequest = field(default_factory=lambda: StudyRequest(settings=SETTINGS))
    imported: list[list[str]] = field(default_factory=list)
    archived: dict[str, StudySummary] = field(default_factory=dict)
    replanned: list[Constraints] = field(default_factory=list)

    def add_study(self, study: str = "s1", **changes: Any) -> StudySummary:
        """Add a study, finished unless told otherwise."""
        finished = changes.get("state", "done") == "done"
        values: dict[str, Any] = {
            "id": study,
            "name": f"llama3.2-3b-tp8-pp2 ({study})",
            "workload_line": "llama3.2-3b, 16 x A100-SXM4-40GB, tp8 cp1 pp2 dp1, 8 microbatches",
            "source": SourceKind.SIMULATOR,
            "extrapolated": False,
            "state": "done",
            "created": CREATED + timedelta(hours=len(self.studies_by_id)),
            "iso_time_energy_reduction_pct": 17.4 if finished else None,
            "iso_energy_time_reduction_pct": 12.3 if finished else None,
            "job": f"j-{study}",
            "error": None,
        }
        self.studies_by_id[study] = StudySummary(**(values | changes))
        return self.studies_by_id[study]

    def add_job(self, job: str = "j-s1", **changes: Any) -> JobView:
        """Add a job, running unless told otherwise."""
        values: dict[str, Any] = {
            "job": job,
            "study": "s1",
            "state": "running",
            "pid": 4242,
            "phase": "measuring",
            "partitions": tuple(
                PartitionProgress(
                    name=name,
                    done=120,
                    planned=224,
                    hypervolume=(0.7, 0.85, 0.93, 0.98),
                    seconds_left=12.0,
                )
                for name in ("fwd_attn", "fwd_mlp")
            ),
            "measurements": 240,
            "planned": 448,
            "seconds_left": 12.0,
            "started": datetime.now(UTC) - timedelta(seconds=14),
            "error": None,
            "finished": False,
            "resumable": changes.get("state") in ("failed", "cancelled", "interrupted"),
            "message": "",
            "name": "llama3.2-3b-tp8-pp2",
        }
        self.jobs_by_id[job] = JobView(**(values | changes))
        return self.jobs_by_id[job]

    def model_names(self) -> tuple[str, ...]:
        return ("llama3.2-3b", "qwen3-1.7b")

    def gpu_names(self) -> tuple[str, ...]:
        return ("A100-SXM4-40GB", "H100-SXM5-80GB")

    def model(self, name: str) -> Model:
        return replace(MODEL, name=name)

    def gpu(self, name: str) -> Gpu:
        return replace(GPU, name=name, calibrated=name.startswith("A100"))

    def add_model(self, file_name: str, text: str) -> str:
        if not text.startswith("{"):
            raise ConfigError(f"{file_name} is not a config.json: it does not start with '{{'")
        return "uploaded-model"

    def assess(self, request: StudyRequest) -> Assessment:
        if any(finding.severity is Severity.ERROR for finding in self.findings):
            return Assessment(workload=None, findings=self.findings)
        return Assessment(
            workload=WORKLOAD,
            findings=self.findings,
            memory=MEMORY,
            num_partitions=4,
            num_measurements=896,
            num_baseline_measurements=400,
            estimated_s=22.0,
        )

    def submit(self, request: StudyRequest) -> JobHandle:
        self.submitted.append(request)
        self.add_study("s-new", state="running", job="j-new")
        self.add_job("j-new", study="s-new")
        return JobHandle(job="j-new", study="s-new")

    def studies(self) -> list[StudySummary]:
        return sorted(self.studies_by_id.values(), key=lambda study: study.created, reverse=True)

    def study(self, ref: str) -> StudyDetail:
        for study in (*self.studies_by_id.values(), *self.archived.values()):
            if ref in (study.id, study.name):
                return StudyDetail(
                    summary=study,
                    request=self.request,
                    workload=WORKLOAD,
                    notes=("The head's weights are tied to the embedding's.",),
                    measurements=1296,
                    versions={"kareus": "0.1"},
                    uncertainty=None,
                    compare=COMPARE if study.state == "done" else None,
                )
        raise NotFoundError(f"no study '{ref}': see kareus studies")

    def plan_summaries(self, study: str, method: Method | None = None) -> list[PlanSummary]:
        if self.study(study).state != "done":
            return []
        methods = Method if method is None else (method,)
        return [summary(plan) for each in methods for plan in PLANS[each]]

    def plan(self, study: str, method: Method, number: int) -> Plan:
        if number >= len(PLANS[method]):
            raise NotFoundError(f"no plan {number} of {method.value}: there are 0 to 23")
        return PLANS[method][number]

    def timeline(self, study: str, method: Method, number: int) -> tuple[Any, ...]:
        return build_timeline(
            self.plan(study, method, number),
            one_f_one_b(NUM_STAGES, NUM_MICROBATCHES),
            static_power_w=STATIC_POWER_W,
        )

    def compare(self, study: str) -> dict[str, Any]:
        return COMPARE

    def choose(
        self,
        study: str,
        *,
        method: Method = Method.KAREUS,
        number: int | None = None,
        deadline_s: float | None = None,
        energy_budget_j: float | None = None,
        fastest: bool = False,
        most_frugal: bool = False,
        knee: bool = False,
    ) -> PlanSummary:
        plans = PLANS[method]
        if number is not None:
            return summary(self.plan(study, method, number))
        if fastest:
            return summary(plans[0])
        if most_frugal:
            return summary(plans[-1])
        if knee:
            return summary(plans[len(plans) // 2])
        if deadline_s is not None:
            allowed = [plan for plan in plans if plan.iteration_time_s <= deadline_s]
            if not allowed:
                raise InfeasibleError(
                    f"no plan is as fast as {deadline_s:g} s: the fastest takes "
                    f"{plans[0].iteration_time_s:.3f} s"
                )
            return summary(allowed[-1])
        allowed = [plan for plan in plans if plan.pipeline_energy_j <= energy_budget_j]
        if not allowed:
            raise InfeasibleError(
                f"no plan needs as little as {energy_budget_j:g} J: the most frugal needs "
                f"{plans[-1].pipeline_energy_j:.0f} J"
            )
        return summary(allowed[0])

    def bundle(self, study: str, number: int, *, method: Method) -> tuple[str, bytes]:
        self.bundles += 1
        return f"{study}-{method.value}-{number}.zip", b"PK"

    def partitions(self, study: str) -> list[PartitionProgress]:
        return [
            PartitionProgress(
                name=name, planned=224, done=224, hypervolume=(0.7, 0.85, 0.93, 0.98, 1.0)
            )
            for name in ("fwd_attn", "fwd_mlp", "bwd_mlp", "bwd_attn")
        ]

    def convergence(self, study: str, partition: str) -> Convergence | None:
        return Convergence(
            search=((36, 0.8), (120, 0.991), (224, 0.999)),
            random=((36, 0.8), (120, 0.9), (224, 0.95)),
            num_configurations=220,
            size=720,
        )

    def measurements(self, study: str, partition: str | None = None) -> list[Measurement]:
        return [
            Measurement(
                partition=partition or "fwd_attn",
                configuration=Configuration(
                    clock_mhz=clock, sm_allocation=sms, launch_point=LaunchPoint.LINEAR_0
                ),
                time_s=0.004 * 1410 / clock * (1 + 0.2 * math.cos(sms)),
                energy_j=1.1 * (clock / 1410) ** 1.6 + 0.1 * math.sin(sms),
                source=SourceKind.SIMULATOR,
            )
            for clock in CLOCKS[::3]
            for sms in (3, 12, 21)
        ]

    def delete_study(self, study: str) -> None:
        del self.studies_by_id[study]

    def jobs(self) -> list[JobView]:
        return list(self.jobs_by_id.values())

    def job(self, job: str) -> JobView:
        if job not in self.jobs_by_id:
            raise NotFoundError(f"no job '{job}': see kareus jobs")
        return self.jobs_by_id[job]

    def cancel_job(self, job: str) -> None:
        if self.job(job).finished:
            raise JobError(f"job {job} has already ended: nothing to cancel")
        self.cancelled.append(job)
        self.add_job(job, state="cancelled", finished=True)

    def resume_job(self, job: str) -> None:
        self.resumed.append(job)
        self.add_job(job)

    def job_log(self, job: str, last: int = 200) -> str:
        return "measuring fwd_attn\nmeasuring fwd_mlp"

    def datasets(self) -> list[DatasetView]:
        return list(self.kept_datasets)

    def import_measurements(self, path: Path, settings: WorkloadSettings) -> ImportReport:
        self.imported.append(sorted(str(p.relative_to(path)) for p in path.rglob("*.jsonl")))
        return ImportReport(
            dataset="d1",
            taken=10,
            repeated=1,
            refused=1,
            refusals=(ImportRefusal(file="a.jsonl", line=3, reason="time is NaN"),),
        )

    def submit_replan(
        self, study: str, constraints: Constraints, *, name: str | None = None
    ) -> JobHandle:
        self.replanned.append(constraints)
        self.add_study("s-again", state="running", job="j-again")
        self.add_job("j-again", study="s-again", phase="solving")
        return JobHandle(job="j-again", study="s-again")

    def preflight(self, settings: WorkloadSettings) -> list[DoctorCheck]:
        return self.doctor()

    def doctor(self) -> list[DoctorCheck]:
        return self.doctor_checks or [
            DoctorCheck(
                name="GPU",
                state="missing",
                found="no NVIDIA driver",
                remedy="Use a machine with one",
            ),
            DoctorCheck(name="Database", state="ok", found="writable"),
        ]
