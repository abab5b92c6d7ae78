"""One setting of a partition: clock, SM allocation and launch point chosen together."""

from dataclasses import dataclass
from enum import StrEnum


class LaunchPoint(StrEnum):
    """The slot of a partition's computation at which the other nanobatch's collective is launched.

    `NONE` means nanobatched but not overlapped: the collective runs after the computation.
    """

    NORM_0 = "norm_0"
    LINEAR_0 = "linear_0"
    ROPE_0 = "rope_0"
    ATTN_0 = "attn_0"
    ACTIVATION_0 = "activation_0"
    NONE = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A point of a partition's search space.

    Attributes:
        clock_mhz: SM clock in MHz.
        sm_allocation: SMs given to the collective's kernel; None where there is no collective to
            place (tp = cp = 1, sequential execution, work outside partitions).
        launch_point: Where the collective is launched; None in the same cases.
    """

    clock_mhz: int
    sm_allocation: int | None = None
    launch_point: LaunchPoint | None = None

    def sort_key(self) -> tuple[int, str, int]:
        """Return a total order: clock, launch point by name, SM allocation (None first)."""
        return (
            self.clock_mhz,
            self.launch_point.value if self.launch_point is not None else "",
            self.sm_allocation if self.sm_allocation is not None else 0,
        )
