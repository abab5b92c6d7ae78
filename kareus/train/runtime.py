"""Walks a stage's schedule beside a training loop: four hooks, the names Zeus uses.

    runtime.on_step_begin()
        runtime.on_instruction_begin("forward")    clock and configurations of what starts now
        ...                                        the loop runs a microbatch
        runtime.on_instruction_end("forward")
        ...                                        every instruction of the stage, in its order
    runtime.on_step_end()

The loop says what it does, the schedule says what comes next; where they differ training stops,
since every later instruction would run under another one's clock. Nothing here needs torch: it can
be given to any loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kareus.core.partition import Direction
from kareus.errors import ScheduleError
from kareus.execute.settings import InstructionSettings
from kareus.schedule.bundle import read_bundle
from kareus.schedule.document import Schedule
from kareus.train.timing import HostTimer, InstructionTimer

ConfigureEngine = Callable[[Direction, InstructionSettings], None]
RequestClock = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedInstruction:
    """One line of a stage's schedule.

    Attributes:
        name: `forward` or `backward`.
        direction: The same, as the engine knows it.
        microbatch: Which microbatch.
        clock_mhz: The clock to ask for.
        settings: What the partition engine is told.
    """

    name: str
    direction: Direction
    microbatch: int
    clock_mhz: int
    settings: InstructionSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class InstructionTiming:
    """When an instruction of the last step ran, seconds from the step's beginning."""

    begin_s: float
    duration_s: float


class ScheduleRuntime:
    """The hooks of one process.

    Args:
        schedule: The schedule.
        stage: The pipeline stage this process executes.
        configure: Hands an instruction's configurations to the partition engine, before it begins;
            None for a loop without one (clocks only).
        request_clock: Asks for a clock and returns at once; called only when the clock changes.
            None for nobody.
        clocks_mhz: Clocks of the stage's instructions where somebody else says them (a Zeus
            server); None for the schedule's.
        timer: Takes the times; None for the host's clock.

    Raises:
        ScheduleError: There is no such stage, or another number of clocks than instructions.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        stage: int,
        configure: ConfigureEngine | None = None,
        request_clock: RequestClock | None = None,
        clocks_mhz: Sequence[int] | None = None,
        timer: InstructionTimer | None = None,
    ) -> None:
        self._stage = stage
        self._plan = planned_instructions(schedule, stage, clocks_mhz=clocks_mhz)
        self._configure = configure
        self._request_clock = request_clock
        self._timer = timer or HostTimer()
        self._timer.prepare(len(self._plan))
        self._shape = _describe(schedule)
        self._position = 0
        self._running: str | None = None
        self._in_step = False
        self._step = 0
        self._clock_mhz: int | None = None

    @staticmethod
    def from_bundle(
        path: Path,
        *,
        stage: int,
        num_stages: int,
        num_microbatches: int,
        configure: ConfigureEngine | None = None,
        request_clock: RequestClock | None = None,
    ) -> "ScheduleRuntime":
        """Read a bundle and return the runtime of a stage, after checking that it fits the job.

        Raises:
            ScheduleError: The bundle is damaged, or was exported for another job.
        """
        schedule = read_bundle(path)
        workload = schedule.workload
        for what, has, wanted in (
            ("pipeline stages", num_stages, workload.parallelism.pp),
            ("microbatches", num_microbatches, workload.num_microbatches),
        ):
            if has != wanted:
                raise ScheduleError(
                    f"{path}: made for {wanted} {what}, this job has {has}: plan a workload with "
                    f"{has}, or run {wanted}"
                )
        return ScheduleRuntime(
            schedule, stage=stage, configure=configure, request_clock=request_clock
        )

    @property
    def plan(self) -> tuple[PlannedInstruction, ...]:
        """The stage's instructions in order."""
        return self._plan

    def on_step_begin(self) -> None:
        """Begin a training step at the schedule's first instruction.

        Raises:
            ScheduleError: The step before has not ended.
        """
        if self._in_step:
            raise self._mismatch("the training loop begins a step", "the one before has not ended")
        self._in_step = True
        self._step += 1
        self._position = 0
        self._timer.step_begins()

    def on_instruction_begin(self, name: str, microbatch: int | None = None) -> None:
        """Begin an instruction: ask for its clock, hand over its configurations.

        Args:
            name: `forward` or `backward`.
            microbatch: Which, where the loop knows; checked like the name.

        Raises:
            ScheduleError: The schedule has another instruction here, or none.
        """
        position = self._position
        if not self._in_step or self._running is not None or position >= len(self._plan):
            raise self._out_of_place(name)
        planned = self._plan[position]
        if planned.name != name or (microbatch is not None and planned.microbatch != microbatch):
            which = "" if microbatch is None else f" of microbatch {microbatch}"
            raise self._mismatch(
                f"the training loop begins the {name}{which}",
                f"the schedule has the {planned.name} of microbatch {planned.microbatch}",
            )
        if planned.clock_mhz != self._clock_mhz:
            self._clock_mhz = planned.clock_mhz
            if self._request_clock is not None:
                self._request_clock(planned.clock_mhz)
        if self._configure is not None:
            self._configure(planned.direction, planned.settings)
        self._running = name
        self._timer.instruction_begins(position)

    def on_instruction_end(self, name: str) -> None:
        """End the instruction that runs.

        Raises:
            ScheduleError: Another one runs, or none.
        """
        if self._running != name:
            running = f"the {self._running}" if self._running is not None else "nothing"
            raise self._mismatch(f"the training loop ends the {name}", f"{running} is running")
        self._timer.instruction_ends(self._position)
        self._running = None
        self._position += 1

    def on_step_end(self) -> None:
        """End the step; every instruction of the schedule must have run.

        Raises:
            ScheduleError: Some have not.
        """
        if not self._in_step or self._running is not None or self._position != len(self._plan):
            raise self._mismatch(
                f"the training loop ends its step after {self._position} instructions",
                f"the schedule has {len(self._plan)}",
            )
        self._in_step = False
        self._timer.step_ends()

    def timings(self) -> tuple[float, tuple[InstructionTiming, ...]]:
        """Return the length of the last step in seconds and the times of its instructions.

        On CUDA this waits for the GPU; call it where the step is over anyway.
        """
        length_s, pairs = self._timer.times_s()
        return length_s, tuple(
            InstructionTiming(begin_s=begin, duration_s=end - begin) for begin, end in pairs
        )

    def _mismatch(self, loop: str, schedule: str) -> ScheduleError:
        """The error of a loop that does not follow its schedule."""
        return ScheduleError(
            f"stage {self._stage}, step {self._step}, position {self._position}: {loop}, but "
            f"{schedule}; use a bundle exported for this loop ({self._shape})"
        )

    def _out_of_place(self, name: str) -> ScheduleError:
        """The error of an instruction where none may begin."""
        loop = f"the training loop begins the {name}"
        if not self._in_step:
            return self._mismatch(loop, "no step has begun")
        if self._running is not None:
            return self._mismatch(loop, f"the {self._running} before has not ended")
        return self._mismatch(loop, f"the schedule has {len(self._plan)} instructions")


def planned_instructions(
    schedule: Schedule, stage: int, *, clocks_mhz: Sequence[int] | None = None
) -> tuple[PlannedInstruction, ...]:
    """Return a stage's instructions in order.

    Equal settings are one object, so that the engine checks them once.

    Args:
        schedule: The schedule.
        stage: The stage.
        clocks_mhz: Other clocks than the schedule's; None for those.

    Raises:
        ScheduleError: There is no such stage, or another number of clocks than instructions.
    """
    if not 0 <= stage < len(schedule.stages):
        raise ScheduleError(
            f"the schedule has {len(schedule.stages)} stages, this process is stage {stage}: "
            "use a bundle exported for this job"
        )
    instructions = schedule.pipeline.stages[stage]
    options = schedule.to_plan().choices[stage]
    if clocks_mhz is None:
        clocks_mhz = [option.clock_mhz for option in options]
    if len(clocks_mhz) != len(options):
        raise ScheduleError(
            f"stage {stage}: {len(clocks_mhz)} clocks are given for the {len(options)} "
            "instructions of the schedule: serve the frequency file of this bundle"
        )
    shared: dict[object, InstructionSettings] = {}
    plan = []
    for instruction, option, clock_mhz in zip(instructions, options, clocks_mhz, strict=True):
        settings = shared.setdefault(
            (option.execution, option.configurations), InstructionSettings.from_option(option)
        )
        plan.append(
            PlannedInstruction(
                name=instruction.direction.value,
                direction=instruction.direction,
                microbatch=instruction.microbatch,
                clock_mhz=clock_mhz,
                settings=settings,
            )
        )
    return tuple(plan)


def configure_stage(stage: object) -> ConfigureEngine:
    """Return what hands configurations to a `kareus.execute` stage or block stack."""
    configure: Callable[..., None] = stage.configure  # type: ignore[attr-defined]
    by_direction: Mapping[Direction, str] = {d: d.value for d in Direction}

    def hand_over(direction: Direction, settings: InstructionSettings) -> None:
        configure(**{by_direction[direction]: settings})

    return hand_over


def _describe(schedule: Schedule) -> str:
    workload = schedule.workload
    return (
        f"pp {workload.parallelism.pp}, {workload.num_microbatches} microbatches, "
        f"order {schedule.order}"
    )
