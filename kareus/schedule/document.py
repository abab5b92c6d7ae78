"""`schedule.json`: one plan with everything needed to run it and to know where it comes from.

Self-contained and versioned. Scopes of energy: `pipeline` is one GPU of each stage, summed over
stages; `job` is all GPUs of the job. Times in seconds, energies in joules, power in watts, clocks
in MHz. The checksum is the SHA-256 of the document as canonical JSON (keys sorted, no spaces,
UTF-8) without its `checksum` field.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

import kareus
from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.measurement import SourceKind
from kareus.core.partition import Direction, Execution
from kareus.core.pipeline import Instruction, Pipeline, PipelineOrder, one_f_one_b
from kareus.core.plan import InstructionOption, Method, Plan
from kareus.core.workload import Workload
from kareus.errors import ScheduleError

FORMAT: Final = "kareus-schedule"
VERSION: Final = 1

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Part(BaseModel):
    """A part of the document: immutable, and nothing unknown in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PartitionSetting(_Part):
    """Where one partition's collective is launched and on how many SMs.

    Both are null where there is no collective to place: sequential execution, or no tensor and
    context parallelism. Launch point `none` is nanobatched but not overlapped.
    """

    partition: str
    launch_point: LaunchPoint | None
    sm_allocation: Annotated[int, Field(ge=1)] | None


class InstructionSetting(_Part):
    """One instruction of one stage, in execution order.

    `execution` is `nanobatch`, or `sequential` for a microbatch that is not split. Time is in
    seconds; effective energy is the dynamic energy of one GPU in joules.
    """

    direction: Direction
    microbatch: Annotated[int, Field(ge=0)]
    chunk: Annotated[int, Field(ge=0)] = 0
    clock_mhz: Annotated[int, Field(gt=0)]
    execution: Literal[Execution.NANOBATCH, Execution.SEQUENTIAL]
    time_s: Positive
    effective_energy_j: Finite
    partitions: tuple[PartitionSetting, ...]


class StageSetting(_Part):
    """One pipeline stage: its transformer blocks and its instructions in execution order."""

    stage: Annotated[int, Field(ge=0)]
    layers: Annotated[int, Field(ge=0)]
    instructions: tuple[InstructionSetting, ...]


class ScopedPrediction(_Part):
    """Energy of one iteration and average power at one scope."""

    energy_j: Positive
    average_power_w: Positive


class Prediction(_Part):
    """What the plan is expected to need per iteration.

    `effective_energy_j` is the dynamic part at pipeline scope. `bound_j` is a lower bound on the
    pipeline energy of any plan of this method that is not slower, `gap` the relative distance
    above it; both null where there is nothing to choose.
    """

    iteration_time_s: Positive
    effective_energy_j: Finite
    pipeline: ScopedPrediction
    job: ScopedPrediction
    bound_j: Positive | None
    gap: Finite | None
    tokens: Annotated[int, Field(gt=0)]


class CollectiveBackend(_Part):
    """Who executes the collectives, and what an SM allocation means to it."""

    name: str = "nccl"
    sm_allocation: str = (
        "CTAs per communicator: min_ctas = max_ctas of the process group's NCCL options"
    )
    threads_per_block: int = 1024


class Provenance(_Part):
    """Where the plan's numbers come from.

    `source`: simulator, measured or replay. `extrapolated`: the simulator was not calibrated on
    measurements of this GPU; `uncertainty` is then the assumed relative error of times and
    energies. `static_power_measured`: false where the static power is an assumption.
    `versions`: of the software that made the document.
    """

    study: str
    source: SourceKind
    seed: int
    extrapolated: bool = False
    uncertainty: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    static_power_w: Positive
    static_power_measured: bool
    versions: dict[str, str]


class Schedule(_Part):
    """The whole document. Made by `build_schedule`, read by `parse_schedule`."""

    format: Literal["kareus-schedule"] = FORMAT
    version: Literal[1] = VERSION
    plan: Annotated[int, Field(ge=0, le=99999)]
    method: Method
    order: PipelineOrder
    workload: Workload
    prediction: Prediction
    stages: tuple[StageSetting, ...]
    collective_backend: CollectiveBackend
    provenance: Provenance

    @model_validator(mode="after")
    def _fits_workload(self) -> Self:
        """Check stages and instructions against the workload and the pipeline order."""
        workload = self.workload
        pp, num_microbatches = workload.parallelism.pp, workload.num_microbatches
        if not len(self.stages) == len(workload.stage_layers) == pp:
            raise ValueError(f"{len(self.stages)} stages for a pipeline of pp = {pp}")
        for index, (stage, layers) in enumerate(
            zip(self.stages, workload.stage_layers, strict=True)
        ):
            if stage.stage != index or stage.layers != layers:
                raise ValueError(
                    f"stage {index} is given as stage {stage.stage} with {stage.layers} layers, "
                    f"the workload has {layers}"
                )
        pipeline = self.pipeline
        if self.order is PipelineOrder.ONE_F_ONE_B:
            expected = one_f_one_b(pp, num_microbatches)
            for index, (found, wanted) in enumerate(
                zip(pipeline.stages, expected.stages, strict=True)
            ):
                if found != wanted:
                    position = next(
                        (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
                        min(len(found), len(wanted)),
                    )
                    raise ValueError(
                        f"stage {index}, position {position} does not follow the 1f1b order of "
                        f"{num_microbatches} microbatches"
                    )
        for index, instructions in enumerate(pipeline.stages):
            chunks = {instruction.chunk for instruction in instructions}
            if len(set(instructions)) != len(instructions) or len(instructions) != (
                2 * num_microbatches * len(chunks)
            ):
                raise ValueError(
                    f"stage {index} does not hold every forward and backward of "
                    f"{num_microbatches} microbatches exactly once"
                )
        return self

    @property
    def pipeline(self) -> Pipeline:
        """The precedence graph the instructions run in."""
        return Pipeline(
            stages=tuple(
                tuple(
                    Instruction(
                        stage=stage.stage,
                        direction=instruction.direction,
                        microbatch=instruction.microbatch,
                        chunk=instruction.chunk,
                    )
                    for instruction in stage.instructions
                )
                for stage in self.stages
            ),
            order=self.order,
        )

    def to_plan(self) -> Plan:
        """Return the plan the schedule was made from."""
        return Plan(
            number=self.plan,
            method=self.method,
            iteration_time_s=self.prediction.iteration_time_s,
            effective_energy_j=self.prediction.effective_energy_j,
            pipeline_energy_j=self.prediction.pipeline.energy_j,
            bound_j=self.prediction.bound_j,
            choices=tuple(
                tuple(_option(instruction) for instruction in stage.instructions)
                for stage in self.stages
            ),
        )

    def to_json(self) -> str:
        """Return the text of `schedule.json`, checksum included, ending in a newline."""
        data = self.model_dump(mode="json")
        data["checksum"] = checksum(data)
        return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def build_schedule(
    plan: Plan,
    pipeline: Pipeline,
    workload: Workload,
    *,
    study: str,
    source: SourceKind,
    seed: int,
    extrapolated: bool = False,
    uncertainty: float | None = None,
    versions: Mapping[str, str] | None = None,
) -> Schedule:
    """Make the document of a plan.

    Args:
        plan: The plan.
        pipeline: The pipeline its choices belong to.
        workload: What it runs; its GPU's static power is the one the plan was made with.
        study: Id of the study.
        source: Where its measurements come from.
        seed: The study's seed.
        extrapolated: Whether the simulator was not calibrated on this GPU.
        uncertainty: Assumed relative error of times and energies, where extrapolated.
        versions: Versions of more software than Kareus and Python.

    Raises:
        ScheduleError: The plan does not fit the workload.
    """
    job_energy_j = plan.pipeline_energy_j * workload.parallelism.gpus_per_stage
    stages = tuple(
        StageSetting(
            stage=stage,
            layers=layers,
            instructions=tuple(
                _setting(instruction, option)
                for instruction, option in zip(instructions, options, strict=True)
            ),
        )
        for stage, (layers, instructions, options) in enumerate(
            zip(workload.stage_layers, pipeline.stages, plan.choices, strict=True)
        )
    )
    try:
        return Schedule(
            plan=plan.number,
            method=plan.method,
            order=pipeline.order,
            workload=workload,
            prediction=Prediction(
                iteration_time_s=plan.iteration_time_s,
                effective_energy_j=plan.effective_energy_j,
                pipeline=ScopedPrediction(
                    energy_j=plan.pipeline_energy_j, average_power_w=plan.average_power_w
                ),
                job=ScopedPrediction(
                    energy_j=job_energy_j, average_power_w=job_energy_j / plan.iteration_time_s
                ),
                bound_j=plan.bound_j,
                gap=plan.gap,
                tokens=workload.tokens_per_iteration,
            ),
            stages=stages,
            collective_backend=CollectiveBackend(),
            provenance=Provenance(
                study=study,
                source=source,
                seed=seed,
                extrapolated=extrapolated,
                uncertainty=uncertainty,
                static_power_w=workload.gpu.static_power_w,
                static_power_measured=workload.gpu.static_power_measured,
                versions={
                    "kareus": kareus.__version__,
                    "python": platform.python_version(),
                    **(versions or {}),
                },
            ),
        )
    except ValidationError as error:
        raise ScheduleError(f"plan {plan.number}: {_first_line(error)}") from error


def parse_schedule(text: str, name: str = "schedule.json") -> Schedule:
    """Read a document, checksum first.

    Args:
        text: The JSON text.
        name: What messages call it.

    Raises:
        ScheduleError: It is not such a document, of another version, altered, or inconsistent.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ScheduleError(f"{name}: not JSON ({error})") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ScheduleError(f"{name}: not a Kareus schedule (its 'format' must be {FORMAT!r})")
    if data.get("version") != VERSION:
        raise ScheduleError(
            f"{name}: version {data.get('version')!r} is not readable here, only {VERSION}; "
            "use the release that wrote it, or export the plan again"
        )
    stated = data.pop("checksum", None)
    actual = checksum(data)
    if stated != actual:
        raise ScheduleError(
            f"{name}: checksum {str(stated)[:12]} does not match the contents "
            f"({actual[:12]}): the file was altered; export the plan again"
        )
    try:
        return Schedule.model_validate(data)
    except ValidationError as error:
        raise ScheduleError(f"{name}: {_first_line(error)}") from error


def checksum(data: Mapping[str, object]) -> str:
    """Return the SHA-256 over canonical JSON without the `checksum` field, in hexadecimal."""
    canonical = json.dumps(
        {key: value for key, value in data.items() if key != "checksum"},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def _setting(instruction: Instruction, option: InstructionOption) -> InstructionSetting:
    """Return an instruction's part of the document."""
    return InstructionSetting.model_validate(
        {
            "direction": instruction.direction,
            "microbatch": instruction.microbatch,
            "chunk": instruction.chunk,
            "clock_mhz": option.clock_mhz,
            "execution": option.execution,
            "time_s": option.time_s,
            "effective_energy_j": option.effective_energy_j,
            "partitions": [
                {
                    "partition": partition,
                    "launch_point": configuration.launch_point,
                    "sm_allocation": configuration.sm_allocation,
                }
                for partition, configuration in option.configurations
            ],
        }
    )


def _option(instruction: InstructionSetting) -> InstructionOption:
    """Return the option an instruction's part of the document stands for."""
    return InstructionOption(
        clock_mhz=instruction.clock_mhz,
        execution=instruction.execution,
        time_s=instruction.time_s,
        effective_energy_j=instruction.effective_energy_j,
        configurations=tuple(
            (
                setting.partition,
                Configuration(
                    clock_mhz=instruction.clock_mhz,
                    sm_allocation=setting.sm_allocation,
                    launch_point=setting.launch_point,
                ),
            )
            for setting in instruction.partitions
        ),
    )


def _refuse_constant(constant: str) -> float:
    """Refuse NaN and infinities, which JSON does not have."""
    raise ValueError(f"{constant} is not a JSON number")


def _first_line(error: ValidationError) -> str:
    """Return the first problem of a validation in one line, with its place."""
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
