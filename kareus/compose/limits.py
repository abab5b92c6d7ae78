"""What users ask of a plan: clocks, stragglers, deadlines, budgets, power; no solver."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from kareus.errors import ConfigError

# A stage this much slower is broken, not straggling; the time grid's whole numbers end far beyond.
_MOST_SLOWDOWN_PCT = 1000
_LONGEST_S = 1e5


@dataclass(frozen=True, kw_only=True, slots=True)
class Straggler:
    """A stage that runs slower than measured: throttled, shared, or waiting for its data.

    Attributes:
        stage: The stage.
        slowdown_pct: How much longer its instructions take, in per cent; dynamic energy stays.
    """

    stage: int
    slowdown_pct: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """What a plan has to keep to; None and empty mean free.

    Attributes:
        deadline_s: Iteration time not to exceed.
        energy_budget_j: Energy of the whole job per iteration not to exceed.
        power_cap_w: Average power of the whole job not to exceed.
        stage_clocks_mhz: Per stage, the clocks allowed.
        clock_floor_mhz: Per stage, the lowest clock allowed.
        clock_ceiling_mhz: Per stage, the highest clock allowed.
        straggler: A stage slowed down.
        max_clocks_per_stage: Distinct clocks one stage may use within a plan.
    """

    deadline_s: float | None = None
    energy_budget_j: float | None = None
    power_cap_w: float | None = None
    stage_clocks_mhz: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    clock_floor_mhz: Mapping[int, int] = field(default_factory=dict)
    clock_ceiling_mhz: Mapping[int, int] = field(default_factory=dict)
    straggler: Straggler | None = None
    max_clocks_per_stage: int | None = None

    @property
    def limited(self) -> bool:
        """Whether a deadline, budget or cap is given."""
        return any(
            limit is not None for limit in (self.deadline_s, self.energy_budget_j, self.power_cap_w)
        )


def check_constraints(constraints: Constraints, num_stages: int) -> None:
    """Refuse constraints that make no sense by themselves.

    Args:
        constraints: What plans have to keep to.
        num_stages: Stages of the pipeline.

    Raises:
        ConfigError: A constraint names a stage that does not exist, or is no sensible number.
    """
    stages = [
        *constraints.stage_clocks_mhz,
        *constraints.clock_floor_mhz,
        *constraints.clock_ceiling_mhz,
    ]
    straggler = constraints.straggler
    if straggler is not None:
        stages.append(straggler.stage)
        if not 0 <= straggler.slowdown_pct <= _MOST_SLOWDOWN_PCT:
            raise ConfigError(
                f"straggler slowdown {straggler.slowdown_pct:g} %: must be finite, 0 to "
                f"{_MOST_SLOWDOWN_PCT}"
            )
    for stage in stages:
        if not 0 <= stage < num_stages:
            raise ConfigError(f"stage {stage} does not exist: stages are 0 to {num_stages - 1}")
    most = constraints.max_clocks_per_stage
    if most is not None and most < 1:
        raise ConfigError(f"at most {most} clocks per stage: at least 1 is needed")
    for name, limit, unit in (
        ("deadline", constraints.deadline_s, "s"),
        ("energy budget", constraints.energy_budget_j, "J"),
        ("power cap", constraints.power_cap_w, "W"),
    ):
        if limit is not None and not (math.isfinite(limit) and limit > 0):
            raise ConfigError(f"{name} {limit} {unit}: must be a positive number")
    if constraints.deadline_s is not None and constraints.deadline_s > _LONGEST_S:
        raise ConfigError(
            f"deadline {constraints.deadline_s:g} s is longer than any iteration: give at most "
            f"{_LONGEST_S:g} s"
        )
