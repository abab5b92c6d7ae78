"""The strings of a `scheds_` file: one partition's launch point, SM allocation and threads.

Two notations of the launch point are read: slot names (`norm_0-none-12-1024`), and the operator
indices of an earlier release (`2-5-11-1024`), which `_OPERATOR_SLOTS` translates. Names are
written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import Direction
from kareus.core.workload import Recompute
from kareus.errors import ScheduleError

THREADS_PER_BLOCK = 1024

_FORWARD = ("fwd_attn", "fwd_mlp")
FORWARD_CP = ("fwd_qkv_ar", "fwd_qkv_ag", "fwd_ao_ag", "fwd_ao_ar", "fwd_mlp")
_BACKWARD = ("bwd_attn", "bwd_mlp")
_BACKWARD_CP = (
    "bwd_qkv_ar",
    "bwd_qkv_rs",
    "bwd_a_rs",
    "bwd_a_ag",
    "bwd_o_ag",
    "bwd_o_ar",
    "bwd_mlp",
)

_BIAS_NORM_LINEAR = (LaunchPoint.NORM_0, LaunchPoint.NORM_0, LaunchPoint.LINEAR_0)

_OPERATOR_SLOTS: Mapping[str, tuple[LaunchPoint, ...]] = {
    # Forward attention: bias-dropout-add, norm, qkv, split, rotary, attention (the sweep's list).
    "fwd_attn": (*_BIAS_NORM_LINEAR, *[LaunchPoint.ROPE_0] * 2, LaunchPoint.ATTN_0),
    "fwd_mlp": (*_BIAS_NORM_LINEAR, *[LaunchPoint.ACTIVATION_0] * 3),
    "bwd_mlp": (*_BIAS_NORM_LINEAR, *[LaunchPoint.ACTIVATION_0] * 3),
    "fwd_qkv_ar": (*_BIAS_NORM_LINEAR, *[LaunchPoint.ROPE_0] * 3),
    "fwd_qkv_ag": (*_BIAS_NORM_LINEAR, *[LaunchPoint.ROPE_0] * 3),
    "fwd_ao_ag": (LaunchPoint.ATTN_0, LaunchPoint.LINEAR_0, LaunchPoint.LINEAR_0),
    "fwd_ao_ar": (LaunchPoint.ATTN_0, LaunchPoint.LINEAR_0, LaunchPoint.LINEAR_0),
    # Backward of qkv: the rotary of queries and of keys, then the split and the linear's gradients.
    "bwd_qkv_ar": (*[LaunchPoint.ROPE_0] * 2, *[LaunchPoint.LINEAR_0] * 4),
    "bwd_qkv_rs": (*[LaunchPoint.ROPE_0] * 2, *[LaunchPoint.LINEAR_0] * 4),
    "bwd_a_rs": (LaunchPoint.ATTN_0,),
    "bwd_a_ag": (LaunchPoint.ATTN_0,),
    "bwd_o_ag": (LaunchPoint.NORM_0, LaunchPoint.LINEAR_0),
    "bwd_o_ar": (LaunchPoint.NORM_0, LaunchPoint.LINEAR_0),
}
"""Which slot an operator index of the earlier notation stands for, per partition.

The order of the forward attention is documented with the published sweep. The others follow from
the block's operators and the indices that published files contain; the position of the split in the
backward of qkv is an assumption.
"""

_ENTRY = re.compile(
    r"(?P<launch>[a-z]+_0|none|\d{1,2})-(?P<end>none|\d{1,2})-(?P<sms>\d+)-(?P<threads>\d+)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionLayout:
    """Which partitions an instruction's tuple lists, in the documented order.

    Attributes:
        forward: Partitions of a forward instruction.
        backward: Partitions of a backward instruction; under recompute the forward ones first.
        recompute: Under full recompute instructions stand in pipeline order; without, each stage
            lists one (forward, backward) pair per microbatch.
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    recompute: Recompute

    def names(self, direction: Direction) -> tuple[str, ...]:
        """Return the partitions of an instruction of that direction."""
        return self.forward if direction is Direction.FORWARD else self.backward


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchEntry:
    """One partition's string.

    Attributes:
        launch_point: Where the collective is launched; `NONE` is not overlapped.
        sm_allocation: SMs given to the collective's kernel.
        num_threads: Threads per block.
    """

    launch_point: LaunchPoint
    sm_allocation: int
    num_threads: int = THREADS_PER_BLOCK

    def __str__(self) -> str:
        """Return the string of the file."""
        return f"{self.launch_point.value}-none-{self.sm_allocation}-{self.num_threads}"


NOT_OVERLAPPED = LaunchEntry(launch_point=LaunchPoint.NONE, sm_allocation=20)
"""Stands for every partition of a sequential instruction and where there is no collective."""


def partition_layout(recompute: Recompute, *, cp: int) -> PartitionLayout:
    """Return the partitions each instruction's tuple lists, with or without context parallelism."""
    forward: tuple[str, ...] = FORWARD_CP if cp > 1 else _FORWARD
    backward: tuple[str, ...] = _BACKWARD_CP if cp > 1 else _BACKWARD
    if recompute is Recompute.FULL:
        backward = forward + backward
    return PartitionLayout(forward=forward, backward=backward, recompute=recompute)


def parse_entry(text: object, partition: str, place: str) -> LaunchEntry:
    """Parse one partition's string, in either notation.

    Args:
        text: Such as `norm_0-none-12-1024` or `2-5-11-1024`.
        partition: Whose string it is: indices mean different operators in different partitions.
        place: What an error message begins with.

    Raises:
        ScheduleError: It is not such a string.
    """
    match = _ENTRY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ScheduleError(
            f"{place}: {shorten(text)} of {partition} is not 'launch-end-SMs-threads', "
            "such as 'norm_0-none-12-1024'"
        )
    launch, sms, threads = match["launch"], int(match["sms"]), int(match["threads"])
    if launch.isdecimal():
        slots = _OPERATOR_SLOTS.get(partition)
        if slots is None:
            raise ScheduleError(
                f"{place}: the operator indices of {partition} are not documented; "
                f"write {shorten(text)} with a slot name, such as 'norm_0-none-12-1024'"
            )
        if int(launch) >= len(slots):
            raise ScheduleError(
                f"{place}: {shorten(text)} launches at operator {launch}, "
                f"but {partition} offers operators 0 to {len(slots) - 1}"
            )
        if match["end"] != "none" and int(match["end"]) < int(launch):
            raise ScheduleError(f"{place}: {shorten(text)} of {partition} ends before its launch")
        point = slots[int(launch)]
    else:
        try:
            point = LaunchPoint(launch)
        except ValueError:
            raise ScheduleError(
                f"{place}: launch point {launch!r} of {partition} is unknown; "
                f"known are {', '.join(LaunchPoint)}"
            ) from None
    if not (0 < sms <= 1024 and 0 < threads <= 1024):
        raise ScheduleError(
            f"{place}: {shorten(text)} of {partition} must name 1 to 1024 SMs and threads"
        )
    return LaunchEntry(launch_point=point, sm_allocation=sms, num_threads=threads)


def shorten(value: object) -> str:
    """Return a short form of a value for a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
