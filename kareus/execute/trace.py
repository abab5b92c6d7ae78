"""What was executed when: a record of slots, collectives and instructions, made on demand.

Who writes what, so that the record can be believed:

- A slot's start is written by the operation itself: forward on entry to the operator, backward by
  autograd when it runs the slot's graph (a pre-hook of the graph's last node).
- A collective's launch is written where it was handed to `torch.distributed`, after that returned,
  and its completion after the wait returned.
- Nobody writes at which launch point something was launched: that is read off the order of events
  (`launches`), so a configuration that was asked for and not followed shows.

On a GPU every event also holds a CUDA event on the stream it concerns; `gpu_time_s` has its time.
A launch's is the collective's start on its stream, a wait's is its end.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import torch

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import CollectiveGroup, CollectiveKind, Direction


class EventKind(StrEnum):
    """What happened."""

    INSTRUCTION_STARTED = "instruction-started"
    INSTRUCTION_ENDED = "instruction-ended"
    UNIT_STARTED = "unit-started"
    UNIT_ENDED = "unit-ended"
    SLOT_STARTED = "slot-started"
    SLOT_ENDED = "slot-ended"
    COLLECTIVE_LAUNCHED = "collective-launched"
    COLLECTIVE_WAITED = "collective-waited"


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveIssue:
    """A collective as it was handed to the backend.

    Attributes:
        kind: The operation.
        group: The group it runs over.
        layer: Layer of the stage whose result it carries.
        nanobatch: Nanobatch whose result it carries; None for a whole microbatch.
        num_bytes: Size of the full tensor.
        sm_allocation: SMs asked for; None for no limit.
        allocation_applied: Whether the backend keeps to it (NCCL does, gloo has no such thing).
    """

    kind: CollectiveKind
    group: CollectiveGroup
    layer: int
    nanobatch: int | None
    num_bytes: int
    sm_allocation: int | None
    allocation_applied: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvent:
    """One event.

    Attributes:
        kind: What happened.
        host_time_ns: Monotonic host clock.
        instruction: Number of the instruction in the trace.
        direction: Pass of the instruction it belongs to.
        unit: Partition being computed (`fwd_attn`, `seq_fwd_mlp`, `fwd_lead`, `bwd_trail`, ...).
        layer: Layer of the stage being computed; None outside units.
        nanobatch: Nanobatch being computed; None for a whole microbatch or outside units.
        recompute: Whether it recomputes a forward inside a backward instruction.
        slot: The slot; None but for slots.
        collective: The collective; None but for collectives.
        cuda_event: Recorded on the stream the event concerns; None on a CPU.
    """

    kind: EventKind
    host_time_ns: int
    instruction: int
    direction: Direction
    unit: str = ""
    layer: int | None = None
    nanobatch: int | None = None
    recompute: bool = False
    slot: str | None = None
    collective: CollectiveIssue | None = None
    cuda_event: torch.cuda.Event | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A collective and where it was seen to start, read off a trace.

    Attributes:
        instruction: Number of the instruction in the trace.
        direction: Pass of the instruction.
        unit: Partition beside which it was launched, or the trail.
        layer: Layer of the stage that partition belongs to; None for a trail.
        nanobatch: Nanobatch that partition computes; None for a whole microbatch or a trail.
        recompute: Whether that partition recomputes.
        launch_point: The slot that started next; `none` if no slot of the unit started after it.
        overlapped: Whether it was waited for only after a later slot of the unit.
        collective: The collective.
    """

    instruction: int
    direction: Direction
    unit: str
    layer: int | None
    nanobatch: int | None
    recompute: bool
    launch_point: str
    overlapped: bool
    collective: CollectiveIssue


@dataclass(kw_only=True)
class Trace:
    """Collects events of one process; hand it to a stage and read it when the step is over.

    Attributes:
        events: What happened, in host order.
    """

    events: list[TraceEvent] = field(default_factory=list)
    _num_instructions: int = 0

    def next_instruction(self) -> int:
        """Return the number of the instruction that starts now."""
        self._num_instructions += 1
        return self._num_instructions - 1

    def clear(self) -> None:
        """Forget the events; instructions are counted from 0 again."""
        self.events.clear()
        self._num_instructions = 0

    def launches(self) -> tuple[Launch, ...]:
        """Return every collective of the trace with its observed launch point, in order."""
        return tuple(_launches(self.events))

    def gpu_time_s(self, event: TraceEvent) -> float | None:
        """Return the GPU time of an event since the first one with a GPU time; None on a CPU.

        Waits for the GPU to get there.
        """
        first = next((e.cuda_event for e in self.events if e.cuda_event is not None), None)
        if first is None or event.cuda_event is None:
            return None
        event.cuda_event.synchronize()
        return float(first.elapsed_time(event.cuda_event)) / 1e3


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorder:
    """Writes events of one unit of one instruction; does nothing without a trace.

    Attributes:
        trace: Where to; None for nowhere.
        instruction: Number of the instruction.
        direction: Its pass.
        unit: The partition.
        layer: Its layer.
        nanobatch: Its nanobatch.
        recompute: Whether it recomputes.
    """

    trace: Trace | None
    instruction: int
    direction: Direction
    unit: str = ""
    layer: int | None = None
    nanobatch: int | None = None
    recompute: bool = False

    def mark(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.Event | None:
        """Record a CUDA event now, for an event to be written later; None on a CPU.

        Args:
            stream: Where; None for the current stream.
        """
        if self.trace is None or not torch.cuda.is_available():
            return None
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream or torch.cuda.current_stream())
        return event

    def write(
        self,
        kind: EventKind,
        *,
        slot: str | None = None,
        collective: CollectiveIssue | None = None,
        cuda_event: torch.cuda.Event | None = None,
    ) -> None:
        """Append an event.

        Args:
            kind: What happened.
            slot: The slot, for slots.
            collective: The collective, for collectives.
            cuda_event: When it happened on the GPU; None for now on the current stream.
        """
        if self.trace is None:
            return
        self.trace.events.append(
            TraceEvent(
                kind=kind,
                host_time_ns=time.monotonic_ns(),
                instruction=self.instruction,
                direction=self.direction,
                unit=self.unit,
                layer=self.layer,
                nanobatch=self.nanobatch,
                recompute=self.recompute,
                slot=slot,
                collective=collective,
                cuda_event=cuda_event or self.mark(),
            )
        )


def _launches(events: list[TraceEvent]) -> Iterator[Launch]:
    """Read launch points off the order of events."""
    for position, event in enumerate(events):
        if event.kind is not EventKind.COLLECTIVE_LAUNCHED or event.collective is None:
            continue
        launch_point = LaunchPoint.NONE.value
        overlapped = False
        for later in events[position + 1 :]:
            if later.kind in (EventKind.UNIT_ENDED, EventKind.INSTRUCTION_ENDED):
                break
            if later.kind is EventKind.COLLECTIVE_WAITED:
                break
            if later.kind is EventKind.SLOT_STARTED and later.slot is not None:
                if not overlapped:
                    launch_point = later.slot
                overlapped = True
        yield Launch(
            instruction=event.instruction,
            direction=event.direction,
            unit=event.unit,
            layer=event.layer,
            nanobatch=event.nanobatch,
            recompute=event.recompute,
            launch_point=launch_point,
            overlapped=overlapped,
            collective=event.collective,
        )
