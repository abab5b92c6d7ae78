"""Which parts a block is cut into, the order in which they run, and what they are called.

A part ends where a collective is due. With two nanobatches the collective beside a unit is the
other nanobatch's last one, so a unit's name follows from its part and its nanobatch: the `ao` part
of nanobatch 0 runs beside the gather of nanobatch 1 (`fwd_ao_ag`), that of nanobatch 1 beside the
all-reduce of nanobatch 0 (`fwd_ao_ar`).
"""

from dataclasses import dataclass

from kareus.core.partition import CollectiveKind, Direction
from kareus.core.workload import Parallelism
from kareus.workload.blocks import Part

_AR = CollectiveKind.ALL_REDUCE
_AG = CollectiveKind.ALL_GATHER
_RS = CollectiveKind.REDUCE_SCATTER

_SUFFIX = {_AR: "ar", _AG: "ag", _RS: "rs"}


@dataclass(frozen=True, kw_only=True)
class PartLayout:
    """A part of the block.

    Attributes:
        part: Its name.
        slots: The slots of its computation, in order.
        collective: The collective due after it: an all-reduce over TP, the others over CP.
    """

    part: Part
    slots: tuple[str, ...]
    collective: CollectiveKind

    @property
    def direction(self) -> Direction:
        """The pass it belongs to."""
        return Direction.FORWARD if self.part.startswith("fwd_") else Direction.BACKWARD


@dataclass(frozen=True, kw_only=True)
class UnitName:
    """A part with the collective beside it: a partition's name.

    Attributes:
        name: The name.
        slots: The slots of its computation, in order.
        collective: The collective beside it, or after it where it is executed sequentially.
    """

    name: str
    slots: tuple[str, ...]
    collective: CollectiveKind

    def group_size(self, parallelism: Parallelism) -> int:
        """Ranks the collective runs over; 1 if there is none."""
        return parallelism.tp if self.collective is _AR else parallelism.cp


def _part(part: Part, slots: str, collective: CollectiveKind) -> PartLayout:
    return PartLayout(part=part, slots=tuple(slots.split()), collective=collective)


_FWD_MLP = _part(Part.FWD_MLP, "norm_0 linear_0 activation_0 linear_1", _AR)
_BWD_MLP = _part(Part.BWD_MLP, "norm_0 linear_0 activation_0 linear_1", _AR)

_WITHOUT_CP = {
    Direction.FORWARD: (
        _part(Part.FWD_ATTN, "norm_0 linear_0 rope_0 attn_0 linear_1", _AR),
        _FWD_MLP,
    ),
    Direction.BACKWARD: (
        _BWD_MLP,
        _part(Part.BWD_ATTN, "norm_0 linear_0 attn_0 rope_0 linear_1", _AR),
    ),
}
_WITH_CP = {
    Direction.FORWARD: (
        _part(Part.FWD_QKV, "norm_0 linear_0 rope_0", _AG),
        _part(Part.FWD_AO, "attn_0 linear_0", _AR),
        _FWD_MLP,
    ),
    Direction.BACKWARD: (
        _BWD_MLP,
        _part(Part.BWD_O, "norm_0 linear_0", _AG),
        _part(Part.BWD_A, "attn_0", _RS),
        _part(Part.BWD_QKV, "rope_0 linear_0", _AR),
    ),
}


def block_parts(cp: int, direction: Direction) -> tuple[PartLayout, ...]:
    """Return the parts of a block in the order in which a pass runs them."""
    return (_WITH_CP if cp > 1 else _WITHOUT_CP)[direction]


def unit_of(layout: PartLayout, *, cp: int, nanobatch: int) -> UnitName:
    """Return the unit that a part of a nanobatch is: its name says what runs beside it."""
    parts = block_parts(cp, layout.direction)
    # Nanobatch 1 runs beside what nanobatch 0 has just left, nanobatch 0 beside what nanobatch 1
    # left after the part before (of the layer before, for the first part).
    beside = layout if nanobatch == 1 else parts[parts.index(layout) - 1]
    two_kinds = layout.collective is not parts[parts.index(layout) - 1].collective
    suffix = f"_{_SUFFIX[beside.collective]}" if two_kinds else ""
    return UnitName(name=f"{layout.part}{suffix}", slots=layout.slots, collective=beside.collective)


def sequential_unit_of(layout: PartLayout) -> UnitName:
    """Return the sequential unit of a part: its own collective follows it."""
    return UnitName(name=f"seq_{layout.part}", slots=layout.slots, collective=layout.collective)


def unit_names(*, cp: int, direction: Direction, recompute: bool) -> tuple[UnitName, ...]:
    """Return the nanobatch units of an instruction, each once, in order of first execution."""
    passes = [direction]
    if direction is Direction.BACKWARD and recompute:
        passes = [Direction.FORWARD, Direction.BACKWARD]
    units = {
        unit.name: unit
        for each in passes
        for layout in block_parts(cp, each)
        for nanobatch in (0, 1)
        for unit in [unit_of(layout, cp=cp, nanobatch=nanobatch)]
    }
    return tuple(units.values())


NANOBATCH_UNITS: tuple[UnitName, ...] = tuple(
    {
        unit.name: unit
        for cp in (1, 2)
        for direction in Direction
        for unit in unit_names(cp=cp, direction=direction, recompute=False)
    }.values()
)
SEQUENTIAL_UNITS: tuple[UnitName, ...] = tuple(
    {
        unit.name: unit
        for cp in (1, 2)
        for direction in Direction
        for layout in block_parts(cp, direction)
        for unit in [sequential_unit_of(layout)]
    }.values()
)
