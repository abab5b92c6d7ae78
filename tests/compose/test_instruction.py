import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.compose.instruction import (
    TIME_GRID_S,
    compose_instruction,
    composition_notes,
)
from kareus.core.configuration import Configuration, LaunchPoint
from kareus.core.frontier import non_dominated
from kareus.core.measurement import PartitionOption
from kareus.core.partition import Execution
from kareus.core.pipeline import InstructionRecipe
from kareus.errors import MeasurementError

STATIC_W = 80.0
CLOCKS = (900, 1200)
RECIPE = InstructionRecipe(
    nanobatch=(("attn", 3), ("mlp", 4)),
    sequential=(("seq_attn", 2), ("seq_mlp", 2)),
    lead=("lead", "attn"),
    trail="trail",
    outside=(("head", 1),),
)


def measured(seed: int, *, per_clock: int = 3) -> dict[str, list[PartitionOption]]:
    rng = np.random.default_rng(seed)

    def some(number: int, searched: bool) -> list[PartitionOption]:
        return [
            PartitionOption(
                configuration=Configuration(
                    clock_mhz=clock,
                    sm_allocation=k + 1 if searched else None,
                    launch_point=LaunchPoint.NORM_0 if searched else None,
                ),
                time_s=float(rng.uniform(1, 2)),
                energy_j=float(rng.uniform(300, 600)),
            )
            for clock in CLOCKS
            for k in range(number)
        ]

    options = {name: some(per_clock, True) for name in ("attn", "mlp")}
    options |= {name: some(1, False) for name in ("seq_attn", "seq_mlp", "lead", "trail", "head")}
    return options


def brute_force(recipe, options, executions, *, allow=lambda name, configuration: True):
    """Every product of configurations at every clock: (time, energy, configurations)."""
    found = []
    for execution in executions:
        if execution is Execution.NANOBATCH:
            partitions = dict(recipe.nanobatch)
            others = dict(recipe.outside)
            if recipe.lead:
                if options.get(recipe.lead[0]):
                    others[recipe.lead[0]] = 1
                else:
                    partitions[recipe.lead[1]] += 1
            if recipe.trail and options.get(recipe.trail):
                others[recipe.trail] = 1
        else:
            partitions, others = dict(recipe.sequential), dict(recipe.outside)
        for clock in CLOCKS:
            choices = [
                [
                    (name, count, o)
                    for o in options.get(name, ())
                    if o.configuration.clock_mhz == clock
                    and (name in others or allow(name, o.configuration))
                ]
                for name, count in (*partitions.items(), *others.items())
            ]
            for chosen in itertools.product(*choices):
                time_s = math.fsum(n * o.time_s for _, n, o in chosen)
                energy = math.fsum(n * (o.energy_j - STATIC_W * o.time_s) for _, n, o in chosen)
                names = tuple(
                    (name, o.configuration) for name, _, o in chosen if name in partitions
                )
                found.append((time_s, energy, names))
    return [found[k] for k in non_dominated([(t, e) for t, e, _ in found])]


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 10_000),
    st.sampled_from(
        [
            (Execution.NANOBATCH,),
            (Execution.SEQUENTIAL,),
            (Execution.NANOBATCH, Execution.SEQUENTIAL),
        ]
    ),
    st.sets(st.sampled_from(["lead", "trail"])),
)
def test_options_agree_with_brute_force(seed, executions, missing) -> None:
    options = measured(seed)
    for name in missing:
        del options[name]
    composed = compose_instruction(RECIPE, options, static_power_w=STATIC_W, executions=executions)
    expected = brute_force(RECIPE, options, executions)
    assert len(composed) == len(expected)
    for option, (time_s, energy_j, configurations) in zip(composed, expected, strict=True):
        assert option.time_s == pytest.approx(time_s, rel=1e-11)
        assert option.effective_energy_j == pytest.approx(energy_j, rel=1e-11)
        assert option.configurations == configurations
        assert {c.clock_mhz for _, c in option.configurations} == {option.clock_mhz}


def test_configurations_can_be_restricted() -> None:
    options = measured(1)

    def default(name: str, configuration: Configuration) -> bool:
        return configuration.sm_allocation == 2

    composed = compose_instruction(
        RECIPE,
        options,
        static_power_w=STATIC_W,
        executions=(Execution.NANOBATCH,),
        configurations=default,
    )
    expected = brute_force(RECIPE, options, (Execution.NANOBATCH,), allow=default)
    assert [o.configurations for o in composed] == [c for _, _, c in expected]
    assert all(c.sm_allocation == 2 for o in composed for _, c in o.configurations)


def test_times_lie_on_the_grid() -> None:
    for option in compose_instruction(RECIPE, measured(2), static_power_w=STATIC_W):
        assert (option.time_s / TIME_GRID_S).is_integer()


def test_a_clock_without_a_unit_has_no_options() -> None:
    options = measured(3)
    options["head"] = [o for o in options["head"] if o.configuration.clock_mhz == 900]
    composed = compose_instruction(RECIPE, options, static_power_w=STATIC_W)
    assert {option.clock_mhz for option in composed} == {900}
    notes = composition_notes([RECIPE], options)
    assert (Execution.NANOBATCH, 1200, "head") in notes.clocks_left_out
    assert any("head was not measured at 1200 MHz" in s for s in notes.sentences())


def test_missing_lead_and_trail_are_told() -> None:
    options = measured(4)
    assert composition_notes([RECIPE], options).sentences() == ()
    del options["lead"], options["trail"]
    notes = composition_notes([RECIPE, RECIPE], options)
    assert notes.leads_replaced == (("lead", "attn"),)
    assert notes.trails_left_out == ("trail",)
    assert len(notes.sentences()) == 2


def test_allowed_clocks() -> None:
    composed = compose_instruction(RECIPE, measured(5), static_power_w=STATIC_W, clocks_mhz=(1200,))
    assert {option.clock_mhz for option in composed} == {1200}


def test_nothing_to_compose_names_the_unit() -> None:
    options = measured(6)
    del options["seq_mlp"]
    with pytest.raises(MeasurementError, match="seq_mlp"):
        compose_instruction(
            RECIPE, options, static_power_w=STATIC_W, executions=(Execution.SEQUENTIAL,)
        )


@pytest.mark.parametrize(("time_s", "energy_j"), [(math.nan, 1.0), (0.0, 1.0), (1.0, math.inf)])
def test_unusable_figures_are_refused(time_s, energy_j) -> None:
    options = measured(7)
    options["mlp"].append(
        PartitionOption(
            configuration=Configuration(clock_mhz=900), time_s=time_s, energy_j=energy_j
        )
    )
    with pytest.raises(MeasurementError, match="mlp at 900 MHz"):
        compose_instruction(RECIPE, options, static_power_w=STATIC_W)


def test_twelve_long_partitions_stay_quick_and_close_to_exact() -> None:
    rng = np.random.default_rng(0)
    options = {}
    for p in range(12):
        x = np.linspace(0, 1, 60)
        options[f"p{p}"] = [
            PartitionOption(
                configuration=Configuration(clock_mhz=900, sm_allocation=k + 1),
                time_s=float(1 + 0.2 * (1 - x[k]) ** 2 + 0.002 * rng.standard_normal()),
                energy_j=float(500 + 80 * x[k] + rng.standard_normal()),
            )
            for k in range(60)
        ]
    recipe = InstructionRecipe(nanobatch=tuple((name, 2) for name in options), sequential=())
    composed = compose_instruction(recipe, options, static_power_w=STATIC_W)
    # The fastest and the most frugal are exact, whatever is thinned in between.
    assert composed[0].time_s == pytest.approx(
        sum(2 * min(o.time_s for o in own) for own in options.values()), rel=1e-11
    )
    assert composed[-1].effective_energy_j == pytest.approx(
        sum(2 * min(o.effective_energy_j(STATIC_W) for o in own) for own in options.values()),
        rel=1e-11,
    )
