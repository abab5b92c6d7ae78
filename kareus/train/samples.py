"""Which reading of a GPU belongs to which instruction: the clock file laid over the steps.

Both are on the host's monotonic clock. A reading early in an instruction says little about it,
since clocks take a while to change: the first fifth is left out.
"""

import bisect
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kareus.train.log import ClockEvent, RankLog

_SKIPPED_SHARE = 0.2
_MIN_SAMPLES = 3


@dataclass(kw_only=True)
class Readings:
    """What GPUs read during one instruction of a stage, over steps and ranks.

    Attributes:
        clocks_mhz: SM clocks.
        powers_w: Powers.
        num_samples: Readings in all.
        num_throttled: Those with a reason to throttle.
        throttle_reasons: The reasons, each once.
        late_s: How long after the instruction's beginning its clock was set, where it changed.
    """

    clocks_mhz: list[float] = field(default_factory=list)
    powers_w: list[float] = field(default_factory=list)
    num_samples: int = 0
    num_throttled: int = 0
    throttle_reasons: list[str] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)

    @property
    def clock_mhz(self) -> float | None:
        """Median SM clock; None with too few readings."""
        return statistics.median(self.clocks_mhz) if len(self.clocks_mhz) >= _MIN_SAMPLES else None

    @property
    def power_w(self) -> float | None:
        """Mean power; None with too few readings."""
        return statistics.fmean(self.powers_w) if len(self.powers_w) >= _MIN_SAMPLES else None

    @property
    def throttled_share(self) -> float:
        """Share of the readings with a reason to throttle; 0 with too few."""
        if self.num_samples < _MIN_SAMPLES:
            return 0.0
        return self.num_throttled / self.num_samples

    @property
    def median_late_s(self) -> float | None:
        """Median delay of the clock; None where it does not change here."""
        return statistics.median(self.late_s) if self.late_s else None


def logs_by_stage(logs: Sequence[RankLog]) -> dict[int, list[RankLog]]:
    """Return the ranks' logs by pipeline stage."""
    stages: dict[int, list[RankLog]] = defaultdict(list)
    for log in logs:
        stages[log.info.stage].append(log)
    return dict(sorted(stages.items()))


def readings_by_position(logs: Sequence[RankLog]) -> dict[int, Readings]:
    """Return the readings of a stage's ranks by position of the instruction.

    Args:
        logs: Ranks of one stage.
    """
    readings: dict[int, Readings] = defaultdict(Readings)
    for log in logs:
        intervals = list(_intervals(log))
        begins = [begin for begin, _, _ in intervals]
        for event in log.clock_events:
            index = bisect.bisect_right(begins, event.time_ns) - 1
            if index < 0:
                continue
            begin_ns, end_ns, position = intervals[index]
            if event.event == "set":
                readings[position].late_s.append((event.time_ns - begin_ns) / 1e9)
            elif event.event == "sample":
                settled_ns = begin_ns + _SKIPPED_SHARE * (end_ns - begin_ns)
                if settled_ns <= event.time_ns < end_ns:
                    _add(readings[position], event)
    return readings


def _add(readings: Readings, event: ClockEvent) -> None:
    readings.num_samples += 1
    if event.clock_mhz is not None:
        readings.clocks_mhz.append(event.clock_mhz)
    if event.power_w is not None:
        readings.powers_w.append(event.power_w)
    if event.throttle_reasons:
        readings.num_throttled += 1
        for reason in event.throttle_reasons:
            if reason not in readings.throttle_reasons:
                readings.throttle_reasons.append(reason)


def _intervals(log: RankLog) -> Iterator[tuple[int, int, int]]:
    """(begin, end, position) of every instruction of a rank in ns, in order of time."""
    for record in log.steps:
        for position, instruction in enumerate(record.instructions):
            begin_ns = record.begin_ns + round(instruction.begin_s * 1e9)
            yield begin_ns, begin_ns + round(instruction.duration_s * 1e9), position
