"""What an instruction is told: how to execute, and each partition's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.partition import Direction, Execution
from kareus.core.plan import InstructionOption
from kareus.core.workload import Recompute, Workload
from kareus.errors import ConfigError
from kareus.execute.layout import NANOBATCH_UNITS, SEQUENTIAL_UNITS, UnitName, unit_names
from kareus.workload.partitions import build_partitions

_EDGES_AND_OUTSIDE = frozenset(
    (
        "fwd_lead",
        "bwd_lead",
        "fwd_trail",
        "bwd_trail",
        "preprocess",
        "postprocess",
        "loss",
        "preprocess_backward",
        "postprocess_backward",
    )
)


@dataclass(frozen=True, kw_only=True)
class InstructionSettings:
    """How to execute one instruction.

    Attributes:
        execution: `NANOBATCH` or `SEQUENTIAL`.
        configurations: Configuration by partition name. A backward instruction under full recompute
            names the forward partitions too: those are the recompute's. Clocks are not the
            engine's business. Sequential parts need no entry; an SM allocation given for one (or
            for a trail) is used for its exposed collective.
    """

    execution: Execution
    configurations: Mapping[str, Configuration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.execution not in (Execution.NANOBATCH, Execution.SEQUENTIAL):
            raise ConfigError(
                f"an instruction cannot be executed as {self.execution}: "
                f"use {Execution.NANOBATCH} or {Execution.SEQUENTIAL}"
            )
        object.__setattr__(self, "configurations", dict(self.configurations))  # ours alone

    @staticmethod
    def sequential() -> "InstructionSettings":
        """Return the plain execution: whole microbatch, exposed collectives."""
        return InstructionSettings(execution=Execution.SEQUENTIAL)

    @staticmethod
    def from_option(option: InstructionOption) -> "InstructionSettings":
        """Return the settings of a planned instruction."""
        return InstructionSettings(
            execution=option.execution, configurations=dict(option.configurations)
        )

    @staticmethod
    def default(
        workload: Workload, direction: Direction, *, launch_point: LaunchPoint | None = None
    ) -> "InstructionSettings":
        """Return nanobatches with default configurations, at the top clock.

        Args:
            workload: The workload.
            direction: Forward or backward (then with the recompute's partitions, if there is one).
            launch_point: For every partition; None for each one's first.
        """
        configurations = {}
        for name, partition in build_partitions(workload).items():
            if partition.execution is not Execution.NANOBATCH:
                continue
            point = None
            if partition.searched:
                point = launch_point or partition.launch_points[0]
            configurations[name] = Configuration(
                clock_mhz=partition.clocks_mhz[-1],
                sm_allocation=partition.default_sm_allocation,
                launch_point=point,
            )
        recompute = workload.recompute is Recompute.FULL
        wanted = unit_names(cp=workload.parallelism.cp, direction=direction, recompute=recompute)
        return InstructionSettings(
            execution=Execution.NANOBATCH,
            configurations={unit.name: configurations[unit.name] for unit in wanted},
        )


def check_settings(settings: InstructionSettings, workload: Workload, direction: Direction) -> None:
    """Refuse settings that cannot be executed.

    Raises:
        ConfigError: Unknown partition, missing configuration, a launch point the partition does not
            have, an SM allocation the GPU does not have.
    """
    cp = workload.parallelism.cp
    known = {unit.name: unit for unit in (*NANOBATCH_UNITS, *SEQUENTIAL_UNITS)}
    for name, configuration in settings.configurations.items():
        if name not in known and name not in _EDGES_AND_OUTSIDE:
            raise ConfigError(f"there is no partition {name!r}: known are {', '.join(known)}")
        check_allocation(name, configuration, workload)
    if settings.execution is Execution.SEQUENTIAL:
        return
    recompute = workload.recompute is Recompute.FULL
    for unit in unit_names(cp=cp, direction=direction, recompute=recompute):
        found = settings.configurations.get(unit.name)
        if unit.group_size(workload.parallelism) == 1:
            _check_nothing_to_launch(unit, found)
            continue
        if found is None:
            raise ConfigError(
                f"the {direction} instruction has no configuration for partition {unit.name!r}: "
                f"give its launch point and SM allocation"
            )
        check_launch_point(unit, found)


def _check_nothing_to_launch(unit: UnitName, configuration: Configuration | None) -> None:
    """Refuse a launch point where no collective runs beside the partition."""
    point = configuration.launch_point if configuration is not None else None
    if point not in (None, LaunchPoint.NONE):
        raise ConfigError(
            f"partition {unit.name!r} has launch point {point.value!r}, but no collective to "
            f"launch, since its group is a single rank: leave the launch point out"
        )


def check_allocation(name: str, configuration: Configuration, workload: Workload) -> None:
    """Refuse an SM allocation that the GPU does not have.

    Raises:
        ConfigError: If it is below 1 or above the number of SMs.
    """
    sms, num_sms = configuration.sm_allocation, workload.gpu.num_sms
    if sms is not None and not 1 <= sms <= num_sms:
        raise ConfigError(
            f"partition {name!r} is given {sms} SMs, but {workload.gpu.name} has {num_sms}: "
            f"use 1 to {num_sms}"
        )


def check_launch_point(unit: UnitName, configuration: Configuration) -> None:
    """Refuse a launch point that the partition does not have.

    Raises:
        ConfigError: If it is missing, or is no slot of the partition's computation.
    """
    point = configuration.launch_point
    if point is None or (point is not LaunchPoint.NONE and point.value not in unit.slots):
        offered = [p.value for p in LaunchPoint if p.value in unit.slots]
        raise ConfigError(
            f"partition {unit.name!r} has no launch point {point.value if point else 'given'!r}: "
            f"use {', '.join(offered)} or none"
        )
