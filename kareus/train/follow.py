"""Whether a run did what its schedule says: order, clocks asked for, launch points seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kareus.core.partition import Execution
from kareus.core.plan import InstructionOption
from kareus.schedule.document import Schedule
from kareus.train.checks import schedule_checksum
from kareus.train.log import InstructionRecord, RankLog

_MOST = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A place where a rank did something else than the schedule.

    Attributes:
        rank: The rank.
        step: The step; None if it concerns the whole run.
        position: The instruction's place in its stage; None likewise.
        planned: What the schedule says.
        actual: What happened.
    """

    rank: int
    step: int | None
    position: int | None
    planned: str
    actual: str

    def __str__(self) -> str:
        place = f"rank {self.rank}"
        if self.step is not None:
            place += f", step {self.step}"
        if self.position is not None:
            place += f", position {self.position}"
        return f"{place}: planned {self.planned}, did {self.actual}"


def find_mismatches(schedule: Schedule, logs: Sequence[RankLog]) -> tuple[Mismatch, ...]:
    """Return where ranks did not follow the schedule; the first few of each rank.

    Launch points are seen in traced steps only, so a run without one cannot be said to follow.
    Clocks are those asked for: whether a GPU kept them is another question (`track`).
    """
    found: list[Mismatch] = []
    for log in logs:
        of_rank = []
        for mismatch in _of_rank(schedule, log):
            of_rank.append(mismatch)
            if len(of_rank) == _MOST:
                break
        found += of_rank
    return tuple(found)


def _of_rank(schedule: Schedule, log: RankLog) -> Iterator[Mismatch]:
    rank, stage = log.info.rank, log.info.stage
    if log.info.schedule != schedule_checksum(schedule):
        yield Mismatch(
            rank=rank, step=None, position=None,
            planned=f"schedule {schedule_checksum(schedule)[:12]}",
            actual=f"schedule {log.info.schedule[:12]}",
        )  # fmt: skip
        return
    instructions = schedule.stages[stage].instructions
    options = schedule.to_plan().choices[stage]
    traced = False
    for record in log.steps:
        if len(record.instructions) != len(instructions):
            yield Mismatch(
                rank=rank, step=record.step, position=None,
                planned=f"{len(instructions)} instructions",
                actual=f"{len(record.instructions)}",
            )  # fmt: skip
            continue
        for position, (planned, option, actual) in enumerate(
            zip(instructions, options, record.instructions, strict=True)
        ):
            wanted = (planned.direction.value, planned.microbatch, log.info.clocks_mhz[position])
            did = (actual.name, actual.microbatch, actual.clock_mhz)
            if wanted != did:
                yield Mismatch(
                    rank=rank, step=record.step, position=position,
                    planned="{} of microbatch {} at {} MHz".format(*wanted),
                    actual="{} of microbatch {} at {} MHz".format(*did),
                )  # fmt: skip
            if actual.units is not None:
                traced = True
                for plan, seen in _launches(option, actual):
                    yield Mismatch(
                        rank=rank, step=record.step, position=position, planned=plan, actual=seen
                    )
    if not traced:
        yield Mismatch(
            rank=rank, step=None, position=None,
            planned="launch points", actual="not recorded (train with --trace-every 1)",
        )  # fmt: skip


def _launches(option: InstructionOption, actual: InstructionRecord) -> Iterator[tuple[str, str]]:
    """Where an instruction launched otherwise than planned: (planned, seen)."""
    assert actual.units is not None
    configurations = dict(option.configurations)
    sequential = option.execution is Execution.SEQUENTIAL
    seen_units = set()
    for unit in actual.units:
        seen_units.add(unit.unit)
        is_sequential = unit.unit.startswith("seq_")
        if is_sequential is not sequential:
            yield f"{option.execution} execution", f"partition {unit.unit}"
            continue
        configuration = configurations.get(unit.unit)
        if configuration is None or configuration.launch_point is None:
            continue  # leads and trails, and where there is nothing to launch
        wanted = (configuration.launch_point.value, configuration.sm_allocation)
        for launch in unit.launches:
            if launch != wanted:
                yield (
                    f"{unit.unit} launched at {wanted[0]} on {wanted[1]} SMs",
                    f"at {launch[0]} on {launch[1]} SMs",
                )
    if sequential:
        return
    for name, configuration in option.configurations:
        if configuration.launch_point is not None and name not in seen_units:
            yield f"partition {name}", "no execution of it"
