"""Runs units one after the other, each beside the collective that the one before left behind.

Exactly one collective is pending at a time: it is launched inside the next unit, at that unit's
launch point, and forced at its end. Launch order is therefore the same on all ranks.
"""

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Direction, Execution
from kareus.execute.layout import sequential_unit_of, unit_of
from kareus.execute.parallel import CollectiveCall
from kareus.execute.settings import InstructionSettings
from kareus.execute.trace import EventKind, Recorder, Trace
from kareus.execute.units import Unit


class PartitionExecutor:
    """Executes the units of one instruction.

    Args:
        settings: How, and each partition's configuration; already checked.
        direction: Pass of the instruction.
        cp: Context-parallel degree.
        tp: Tensor-parallel degree.
        trace: Where to record; None for nowhere.
    """

    def __init__(
        self,
        settings: InstructionSettings,
        direction: Direction,
        *,
        cp: int,
        tp: int,
        trace: Trace | None,
    ) -> None:
        self._settings = settings
        self._direction = direction
        self._cp = cp
        self._has_lead = tp > 1
        self._trace = trace
        self._instruction = trace.next_instruction() if trace is not None else 0
        self._pending: CollectiveCall | None = None
        self._num_units = 0

    @property
    def pending(self) -> CollectiveCall | None:
        """The collective to run beside the next unit."""
        return self._pending

    def name_of(self, unit: Unit) -> str:
        """Return the name under which the next unit runs: a partition's, or the lead's."""
        if self._settings.execution is Execution.SEQUENTIAL:
            return sequential_unit_of(unit.layout).name
        assert unit.state.nanobatch is not None, "a nanobatch unit belongs to a nanobatch"
        if self._num_units == 0 and self._has_lead:
            return f"{_prefix(unit.layout.direction)}_lead"
        return unit_of(unit.layout, cp=self._cp, nanobatch=unit.state.nanobatch).name

    def run(self, unit: Unit) -> None:
        """Run a unit beside the pending collective; its own becomes pending, or is exposed."""
        name = self.name_of(unit)
        recorder = self.recorder(unit, name)
        configuration = self._settings.configurations.get(name)
        compute(unit, self._pending, configuration, recorder)
        self._pending = unit.finish()
        self._num_units += 1
        if self._settings.execution is Execution.SEQUENTIAL:
            expose(self._pending, configuration, recorder)
            self._pending = None

    def run_trail(self) -> None:
        """Run the last pending collective with nothing beside it."""
        name = f"{_prefix(self._direction)}_trail"
        recorder = self.instruction_recorder(unit=name)
        expose(self._pending, self._settings.configurations.get(name), recorder)
        self._pending = None

    def recorder(self, unit: Unit, name: str) -> Recorder:
        """Return the recorder of a unit's events."""
        return Recorder(
            trace=self._trace,
            instruction=self._instruction,
            direction=self._direction,
            unit=name,
            layer=unit.layer,
            nanobatch=unit.state.nanobatch,
            recompute=unit.recompute,
        )

    def instruction_recorder(self, *, unit: str = "") -> Recorder:
        """Return the recorder of events outside units."""
        return Recorder(
            trace=self._trace,
            instruction=self._instruction,
            direction=self._direction,
            unit=unit,
        )


def compute(
    unit: Unit,
    beside: CollectiveCall | None,
    configuration: Configuration | None,
    recorder: Recorder,
) -> None:
    """Run a unit's slots, launching the collective beside it at the launch point.

    The collective has ended, in stream order, when this returns.

    Args:
        unit: The unit.
        beside: The other nanobatch's collective; None if there is none.
        configuration: The partition's; needed where there is a collective.
        recorder: Writes the unit's events.
    """
    launch_point, sm_allocation = LaunchPoint.NONE.value, None
    if beside is not None:
        assert configuration is not None, "settings are checked before they are executed"
        launch_point = configuration.launch_point or LaunchPoint.NONE
        sm_allocation = configuration.sm_allocation
    recorder.write(EventKind.UNIT_STARTED)
    for name, slot in zip(unit.layout.slots, unit.slots, strict=True):
        if beside is not None and name == launch_point:
            beside.launch(sm_allocation, recorder)
        if recorder.trace is None:
            slot(None)
            continue
        witness = _Witness(recorder, name)
        slot(witness)
        assert witness.called, f"slot {name} did not say when it started"
        recorder.write(EventKind.SLOT_ENDED, slot=name)
    if beside is not None:
        if not beside.launched:
            beside.launch(sm_allocation, recorder)
        beside.wait(recorder)
    recorder.write(EventKind.UNIT_ENDED)


def expose(
    collective: CollectiveCall | None, configuration: Configuration | None, recorder: Recorder
) -> None:
    """Run a collective with nothing beside it."""
    if collective is None:
        return
    collective.launch(configuration.sm_allocation if configuration else None, recorder)
    collective.wait(recorder)


class _Witness:
    """Writes a slot's start, once."""

    def __init__(self, recorder: Recorder, slot: str) -> None:
        self._recorder = recorder
        self._slot = slot
        self.called = False

    def __call__(self) -> None:
        if not self.called:
            self.called = True
            self._recorder.write(EventKind.SLOT_STARTED, slot=self._slot)


def _prefix(direction: Direction) -> str:
    """How names of a pass begin."""
    return "fwd" if direction is Direction.FORWARD else "bwd"
