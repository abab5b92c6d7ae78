"""Times of the instructions of a step: by the host's clock, or on a GPU by events of its stream.

On a GPU the host runs ahead: when a hook is called says nothing about when the GPU gets there. So
events are recorded in the stream and read once the step is over.
"""

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class InstructionTimer(Protocol):
    """Takes the times of a step's instructions."""

    def prepare(self, num_instructions: int) -> None:
        """Make room."""

    def step_begins(self) -> None:
        """Note the beginning of a step."""

    def instruction_begins(self, position: int) -> None:
        """Note the beginning of an instruction."""

    def instruction_ends(self, position: int) -> None:
        """Note its end."""

    def step_ends(self) -> None:
        """Note the end of the step."""

    def times_s(self) -> tuple[float, list[tuple[float, float]]]:
        """Return the step's length and (begin, end) of its instructions, s from its beginning."""


class HostTimer:
    """By the monotonic clock of the host."""

    def prepare(self, num_instructions: int) -> None:
        """Make room."""
        self._begins_ns = [0] * num_instructions
        self._ends_ns = [0] * num_instructions
        self._start_ns = self._end_ns = 0

    def step_begins(self) -> None:
        """Note the beginning of a step."""
        self._start_ns = time.monotonic_ns()

    def instruction_begins(self, position: int) -> None:
        """Note the beginning of an instruction."""
        self._begins_ns[position] = time.monotonic_ns()

    def instruction_ends(self, position: int) -> None:
        """Note its end."""
        self._ends_ns[position] = time.monotonic_ns()

    def step_ends(self) -> None:
        """Note the end of the step."""
        self._end_ns = time.monotonic_ns()

    def times_s(self) -> tuple[float, list[tuple[float, float]]]:
        """Return the step's length and (begin, end) of its instructions, s from its beginning."""
        start = self._start_ns
        return (self._end_ns - start) / 1e9, [
            ((begin - start) / 1e9, (end - start) / 1e9)
            for begin, end in zip(self._begins_ns, self._ends_ns, strict=True)
        ]


class CudaTimer:
    """By events in the current stream of a GPU."""

    def prepare(self, num_instructions: int) -> None:
        """Make the events; they are used again in every step."""
        import torch

        def event() -> "torch.cuda.Event":
            return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]

        self._start, self._end = event(), event()
        self._begins = [event() for _ in range(num_instructions)]
        self._ends = [event() for _ in range(num_instructions)]

    def step_begins(self) -> None:
        """Note the beginning of a step."""
        self._start.record()

    def instruction_begins(self, position: int) -> None:
        """Note the beginning of an instruction."""
        self._begins[position].record()

    def instruction_ends(self, position: int) -> None:
        """Note its end."""
        self._ends[position].record()

    def step_ends(self) -> None:
        """Note the end of the step."""
        self._end.record()

    def times_s(self) -> tuple[float, list[tuple[float, float]]]:
        """Return the step's length and (begin, end) of its instructions, s from its beginning.

        Waits for the GPU to finish the step.
        """
        self._end.synchronize()
        start = self._start
        return start.elapsed_time(self._end) / 1e3, [
            (start.elapsed_time(begin) / 1e3, start.elapsed_time(end) / 1e3)
            for begin, end in zip(self._begins, self._ends, strict=True)
        ]
