"""Planned against actual: its words, its frames, and what the chart draws."""

import json
from dataclasses import replace
from typing import Any

import pytest

from kareus.report.theme import DARK, LIGHT, Palette
from kareus.report.training import (
    deviation_words,
    energy_words,
    instructions_frame,
    stages_frame,
    steps_frame,
    training_answer,
    training_figure,
    typical,
    typical_energy,
)
from kareus.service import Cause
from tests.app.training_runs import ON_A_CPU, PLANNED_S, STRAGGLING, stage, step

STEPS = STRAGGLING.report.steps


def test_the_warm_up_does_not_count() -> None:
    assert typical(STEPS) == pytest.approx((5.28, 0.2))
    assert typical(STEPS[:1]) == pytest.approx((8.0, 8.0 / 4.4 - 1))
    assert typical_energy(STEPS) == pytest.approx((88_000.0, 0.1))
    assert typical_energy(ON_A_CPU.report.steps) is None


@pytest.mark.parametrize(
    ("deviation", "time", "energy"),
    [
        (0.031, "3.1\u2009% longer than planned", "3.1\u2009% more than planned"),
        (-0.02, "2.0\u2009% shorter than planned", "2.0\u2009% less than planned"),
        (0.0004, "as planned", "as planned"),
    ],
)
def test_deviations_in_words(deviation: float, time: str, energy: str) -> None:
    assert deviation_words(deviation) == time
    assert energy_words(deviation) == energy


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ((None, None), "Steps take 5.28\u2009s, 20.0\u2009% longer than planned"),
        ((None, Cause.STRAGGLING_STAGE, None), "; stage 1 straggles"),
        ((Cause.THROTTLED, Cause.THROTTLED, None), "; stages 0 and 1 are throttled"),
        ((Cause.PLAN, Cause.PLAN), "; all stages are slower than planned"),
        (
            (Cause.CLOCK_LATE, Cause.CLOCK_NOT_REACHED, None),
            "; stage 0 gets its clocks late; stage 1 does not reach its clocks",
        ),
    ],
)
def test_the_answer_names_the_causes(causes: tuple[Cause | None, ...], said: str) -> None:
    stages = [stage(number, cause) for number, cause in enumerate(causes)]
    assert training_answer(STEPS, stages, comparable=True, gpu="X").endswith(said)


def test_every_cause_has_words() -> None:
    for cause in Cause:
        answer = training_answer(STEPS, [stage(0, cause), stage(1)], comparable=True, gpu="X")
        assert "deviates (" not in answer


def test_what_was_not_measured_is_missing() -> None:
    frame = steps_frame((step(1, 5.0, None), step(2, 4.4, 80_000.0)), threshold=0.1)
    assert list(frame["energy_j"].isna()) == [True, False]
    assert list(frame["time_beyond"]) == [True, False]
    assert list(frame["energy_beyond"]) == [False, False]
    assert list(frame["warm_up"]) == [True, False]
    assert stages_frame(STRAGGLING.report.stages)["energy_pct"].isna().all()
    rows = instructions_frame(STRAGGLING.report.instructions)
    assert list(rows["time_pct"]) == pytest.approx([0.0, 0.0, 20.0, 20.0])


def points(spec: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The rows of steps in a chart, by step."""
    found = [rows for rows in spec["datasets"].values() if "kind" in rows[0]]
    return {row["step"]: row for row in found[0]}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=lambda palette: palette.name)
@pytest.mark.parametrize("quantity", ["time", "energy"])
def test_the_chart_tells_steps_beyond_the_band(palette: Palette, quantity: str) -> None:
    frame = steps_frame(STEPS, threshold=0.05)
    spec = training_figure(frame, quantity=quantity, threshold=0.05, palette=palette).to_dict()
    rows = points(spec)
    assert rows[1]["kind"].startswith("warm-up")
    assert {rows[n]["kind"] for n in range(2, 7)} == {"beyond it"}
    assert "\u00b15.0" in json.dumps(spec, ensure_ascii=False)
    marks = [layer["mark"]["type"] for layer in spec["layer"]]
    assert marks.count("rect") == 1


def test_a_warm_up_off_the_scale_is_drawn_at_its_edge() -> None:
    frame = steps_frame((step(1, 40.0, None), *STEPS[1:]), threshold=0.1)
    rows = points(training_figure(frame, threshold=0.1).to_dict())
    assert rows[1]["kind"] == "warm-up, off the scale"
    assert rows[1]["at"] < 6.0
    assert rows[1]["actual_words"] == "40.0\u2009s"


def test_a_run_that_cannot_be_compared_has_no_band() -> None:
    frame = steps_frame(ON_A_CPU.report.steps, threshold=0.1)
    spec = training_figure(frame, threshold=0.1, comparable=False).to_dict()
    assert "rect" not in [layer["mark"]["type"] for layer in spec["layer"]]
    assert {row["kind"] for row in points(spec).values()} == {"step", "warm-up"}
    assert "logarithmic" in json.dumps(spec)


def test_a_single_step_is_drawn() -> None:
    frame = steps_frame([replace(STEPS[1], step=1, pipeline_s=PLANNED_S)], threshold=0.1)
    rows = points(training_figure(frame, threshold=0.1).to_dict())
    assert rows[1]["kind"] == "within the threshold"
