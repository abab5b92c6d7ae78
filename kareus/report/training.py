"""Planned against actual of a training run: its answer in a sentence, its tables, its chart."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import altair as alt
import pandas as pd

from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.drawing import VIEW, AnyChart, finish, prefixed
from kareus.report.theme import LIGHT, Palette

_FAR = 3.0
"""Plan and run so many times apart are drawn on a logarithmic axis."""
_STEP, _WITHIN, _BEYOND, _WARM_UP, _OFF = (
    "step",
    "within the threshold",
    "beyond it",
    "warm-up",
    "warm-up, off the scale",
)
_KINDS = {
    _STEP: "circle",
    _WITHIN: "circle",
    _BEYOND: "triangle-up",
    _WARM_UP: "circle",
    _OFF: "triangle-up",
}
_CAUSES: Mapping[str, tuple[str, str]] = {
    "throttled": ("is throttled", "are throttled"),
    "clock not reached": ("does not reach its clocks", "do not reach their clocks"),
    "clock set late": ("gets its clocks late", "get their clocks late"),
    "straggling stage": ("straggles", "straggle"),
    "plan does not hold here": ("is slower than planned", "are slower than planned"),
}


class Step(Protocol):
    """A step against the plan; energies of all GPUs of the job."""

    @property
    def step(self) -> int:
        """From 1."""

    @property
    def loss(self) -> float:
        """Of the global batch."""

    @property
    def time_s(self) -> float:
        """The whole step."""

    @property
    def pipeline_s(self) -> float:
        """What the plan's iteration time is held against."""

    @property
    def planned_time_s(self) -> float:
        """The plan's iteration time."""

    @property
    def energy_j(self) -> float | None:
        """None where it was not measured."""

    @property
    def planned_energy_j(self) -> float:
        """The plan's energy."""


class Part(Protocol):
    """What a stage and an instruction have in common."""

    @property
    def stage(self) -> int:
        """Which stage."""

    @property
    def deviation(self) -> float:
        """In time, actual / planned - 1."""

    @property
    def energy_j(self) -> float | None:
        """Of one GPU; None where it was not measured."""

    @property
    def planned_energy_j(self) -> float:
        """Likewise planned."""

    @property
    def energy_deviation(self) -> float | None:
        """In energy."""

    @property
    def cause(self) -> str | None:
        """The likely cause; None for none."""

    @property
    def detail(self) -> str | None:
        """What speaks for it."""


class Stage(Part, Protocol):
    """A stage against the plan."""

    @property
    def busy_s(self) -> float:
        """Seconds it works per step."""

    @property
    def planned_busy_s(self) -> float:
        """Likewise planned."""


class Instruction(Part, Protocol):
    """An instruction against the plan."""

    @property
    def direction(self) -> str:
        """`forward` or `backward`."""

    @property
    def microbatch(self) -> int:
        """Which microbatch."""

    @property
    def clock_mhz(self) -> int:
        """The clock asked for."""

    @property
    def achieved_clock_mhz(self) -> float | None:
        """What the GPU ran at; None where it was not read."""

    @property
    def time_s(self) -> float:
        """Median time."""

    @property
    def planned_time_s(self) -> float:
        """Planned time."""


def typical(steps: Sequence[Step]) -> tuple[float, float]:
    """Return the median step in seconds and its deviation from the plan; warm-up left out."""
    time_s = statistics.median(step.pipeline_s for step in (steps[1:] or steps))
    return time_s, time_s / steps[0].planned_time_s - 1.0


def typical_energy(steps: Sequence[Step]) -> tuple[float, float] | None:
    """Return the median energy of a step and its deviation; None where it was not measured."""
    known = [step.energy_j for step in (steps[1:] or steps) if step.energy_j is not None]
    if not known:
        return None
    energy_j = statistics.median(known)
    return energy_j, energy_j / steps[0].planned_energy_j - 1.0


def deviation_words(deviation: float) -> str:
    """Return a deviation in time in words: `3.1 % longer than planned`, `as planned`."""
    if fmt.is_nothing(100 * deviation):
        return "as planned"
    word = "longer" if deviation > 0 else "shorter"
    return f"{fmt.percent(100 * deviation)} {word} than planned"


def energy_words(deviation: float) -> str:
    """Return a deviation in energy in words: `3.1 % more than planned`."""
    if fmt.is_nothing(100 * deviation):
        return "as planned"
    return f"{fmt.percent(100 * deviation)} {'more' if deviation > 0 else 'less'} than planned"


def training_answer(
    steps: Sequence[Step], stages: Sequence[Part], *, comparable: bool, gpu: str
) -> str:
    """Return what a run says about its plan, in a sentence.

    Args:
        steps: At least one.
        stages: The stages.
        comparable: Whether it trained on the GPU the plan is for.
        gpu: That GPU.
    """
    time_s, deviation = typical(steps)
    if not comparable:
        return (
            f"Steps take {fmt.time(time_s)} on a CPU; planned are "
            f"{fmt.time(steps[0].planned_time_s)} on {gpu}, so times cannot be compared"
        )
    parts = [f"Steps take {fmt.time(time_s)}, {deviation_words(deviation)}"]
    by_cause: dict[str, list[int]] = defaultdict(list)
    for stage in stages:
        if stage.cause is not None:
            by_cause[str(stage.cause)].append(stage.stage)
    for cause, numbers in by_cause.items():
        one, several = _CAUSES.get(cause, (f"deviates ({cause})", f"deviate ({cause})"))
        if len(numbers) == 1:
            parts.append(f"stage {numbers[0]} {one}")
        else:
            named = ", ".join(map(str, numbers[:-1]))
            all_of_them = len(numbers) == len(stages)
            who = "all stages" if all_of_them else f"stages {named} and {numbers[-1]}"
            parts.append(f"{who} {several}")
    return "; ".join(parts)


def steps_frame(steps: Sequence[Step], *, threshold: float) -> pd.DataFrame:
    """Return one row per step.

    Columns: step, loss, time_s (pipeline part), whole_s (optimizer included), planned_time_s,
    time_pct (deviation), energy_j, planned_energy_j, energy_pct, warm_up (the first of several),
    time_beyond and energy_beyond (whether the deviation is beyond the threshold).
    """
    first = steps[0].step if len(steps) > 1 else None
    frame = pd.DataFrame(
        [
            {
                "step": step.step,
                "loss": step.loss,
                "time_s": step.pipeline_s,
                "whole_s": step.time_s,
                "planned_time_s": step.planned_time_s,
                "energy_j": float("nan") if step.energy_j is None else step.energy_j,
                "planned_energy_j": step.planned_energy_j,
                "warm_up": step.step == first,
            }
            for step in steps
        ]
    )
    for name, unit in (("time", "s"), ("energy", "j")):
        frame[f"{name}_pct"] = 100 * (frame[f"{name}_{unit}"] / frame[f"planned_{name}_{unit}"] - 1)
        frame[f"{name}_beyond"] = frame[f"{name}_pct"].abs() > 100 * threshold
    return frame


def stages_frame(stages: Sequence[Stage]) -> pd.DataFrame:
    """Return one row per stage: busy time and energy of one GPU against the plan, and causes."""
    return pd.DataFrame(
        [
            {
                "stage": one.stage,
                "time_s": one.busy_s,
                "planned_time_s": one.planned_busy_s,
                **_deviations(one),
            }
            for one in stages
        ]
    )


def instructions_frame(instructions: Sequence[Instruction]) -> pd.DataFrame:
    """Return one row per instruction of every stage, in order of execution."""
    return pd.DataFrame(
        [
            {
                "stage": one.stage,
                "instruction": f"{one.direction} {one.microbatch}",
                "clock_mhz": one.clock_mhz,
                "achieved_clock_mhz": one.achieved_clock_mhz,
                "time_s": one.time_s,
                "planned_time_s": one.planned_time_s,
                **_deviations(one),
            }
            for one in instructions
        ]
    )


def _deviations(part: Part) -> dict[str, object]:
    nothing = float("nan")
    return {
        "time_pct": 100 * part.deviation,
        "energy_j": nothing if part.energy_j is None else part.energy_j,
        "planned_energy_j": part.planned_energy_j,
        "energy_pct": nothing if part.energy_deviation is None else 100 * part.energy_deviation,
        "cause": None if part.cause is None else str(part.cause),
        "detail": part.detail,
    }


def _kind(warm_up: bool, off: bool, beyond: bool | None) -> str:
    """What a step is drawn as; `beyond` is None where there is no band."""
    if warm_up:
        return _OFF if off else _WARM_UP
    if beyond is None:
        return _STEP
    return _BEYOND if beyond else _WITHIN


def training_figure(
    frame: pd.DataFrame,
    *,
    quantity: str = "time",
    threshold: float,
    comparable: bool = True,
    palette: Palette = LIGHT,
    height: int = 360,
) -> AnyChart:
    """Draw time or energy per step against the plan with its band.

    Filled circles are within the band, triangles beyond it, hollow ones warm-up. Where the run
    cannot be compared there is no band and no step is beyond it.

    Args:
        frame: A frame of steps.
        quantity: `time` or `energy`; of energy, steps that were not measured are left out.
        threshold: Half the band's height, as a share of the plan.
        comparable: Whether it trained on the GPU the plan is for.
        palette: The mode's colours.
        height: Pixels.
    """
    field = "time_s" if quantity == "time" else "energy_j"
    planned = float(frame[f"planned_{field}"].iloc[0])
    known = frame[frame[field].notna()]
    counted = known[~known["warm_up"]] if (~known["warm_up"]).any() else known
    low, high = float(counted[field].min()), float(counted[field].max())
    far = max(high / planned, planned / low) > _FAR
    band = (planned * (1 - threshold), planned * (1 + threshold))
    if far:
        domain = (min(low, band[0]) / 1.3, max(high, band[1]) * 1.3)
    else:
        low, high = (
            (min(low, band[0]), max(high, band[1]))
            if comparable
            else (min(low, planned), max(high, planned))
        )
        margin = 0.12 * (high - low or high)
        domain = (max(0.0, low - margin), high + margin)
    unit, factor = prefixed(pd.Series([planned, high]), "s" if quantity == "time" else "J")
    words = fmt.time if quantity == "time" else fmt.energy
    plan_words = f"planned {words(planned)}"
    shown = known.assign(
        at=known[field].clip(domain[0], domain[1] - 0.02 * (domain[1] - domain[0])),
        kind=[
            _kind(warm, value > domain[1], beyond if comparable else None)
            for warm, value, beyond in zip(
                known["warm_up"], known[field], known[f"{quantity}_beyond"], strict=True
            )
        ],
        actual_words=[words(value) for value in known[field]],
        planned_words=[words(planned)] * len(known),
        deviation_words=[
            (deviation_words if quantity == "time" else energy_words)(value / 100)
            for value in known[f"{quantity}_pct"]
        ],
        whole_words=[fmt.time(value) for value in known["whole_s"]],
        loss_words=[fmt.number(value, digits=4) for value in known["loss"]],
    )
    first, last = int(frame["step"].min()), int(frame["step"].max())
    x = alt.X(
        "step:Q",
        title="Step",
        scale=alt.Scale(domain=[first - 0.4, max(last, first + 1) + 0.4], nice=False),
        axis=alt.Axis(tickCount=min(12, last - first + 1), tickMinStep=1, format="d", grid=False),
    )
    scale = alt.Scale(domain=list(domain), nice=False, type="log" if far else "linear")
    title = "Time of a step" if quantity == "time" else "Energy of a step, all GPUs"
    label = alt.Axis(tickCount=6, labelExpr=f"format(datum.value / {factor:g}, ',.4~r')")
    y = alt.Y(
        "at:Q", title=f"{title} ({unit}{', logarithmic' if far else ''})", scale=scale, axis=label
    )
    ends = pd.DataFrame(
        [{"low": band[0], "high": band[1], "planned": planned, "words": plan_words}]
    )
    plan = alt.Chart(ends)
    layers: list[alt.Chart] = []
    if comparable:
        layers.append(
            plan.mark_rect(color=palette.static, opacity=0.35).encode(
                y=alt.Y("low:Q", scale=scale), y2="high:Q", tooltip=alt.value(None)
            )
        )
        layers.append(
            plan.transform_calculate(band=f"'\u00b1{fmt.percent(100 * threshold)}'")
            .mark_text(
                align="right", baseline="bottom", dx=-6, dy=-3, fontSize=12, color=palette.muted
            )
            .encode(x=alt.value("width"), y=alt.Y("high:Q", scale=scale), text="band:N")
        )
    layers.append(
        plan.mark_rule(strokeDash=[6, 4], strokeWidth=1.5, color=palette.text).encode(
            y=alt.Y("planned:Q", scale=scale), tooltip=alt.value(None)
        )
    )
    layers.append(
        plan.mark_text(
            align="right", baseline="bottom", dx=-6, dy=-3, fontSize=12, color=palette.text
        ).encode(x=alt.value("width"), y=alt.Y("planned:Q", scale=scale), text="words:N")
    )
    base = alt.Chart(shown)
    layers.append(base.mark_line(strokeWidth=1, color=palette.rule, clip=True).encode(x=x, y=y))
    kinds = [kind for kind in _KINDS if kind in set(shown["kind"])]
    ink = dict.fromkeys(_KINDS, palette.dynamic) | {_BEYOND: palette.methods[Method.PERSEUS]}
    inside = ink | dict.fromkeys((_WARM_UP, _OFF), palette.background)

    def scaled(of_kind: Mapping[str, str]) -> alt.Scale:
        return alt.Scale(domain=kinds, range=[of_kind[kind] for kind in kinds])

    legend = (
        alt.Legend(title=None, orient="top", symbolSize=60, offset=4) if len(kinds) > 1 else None
    )
    layers.append(
        base.mark_point(size=54, strokeWidth=1.5, opacity=1)
        .encode(
            x=x,
            y=y,
            shape=alt.Shape("kind:N", scale=scaled(_KINDS), legend=legend),
            stroke=alt.Stroke("kind:N", scale=scaled(ink), legend=legend),
            fill=alt.Fill("kind:N", scale=scaled(inside), legend=legend),
            tooltip=[
                alt.Tooltip("step:Q", title="Step"),
                alt.Tooltip("actual_words:N", title="Actual"),
                alt.Tooltip("planned_words:N", title="Planned"),
                *([alt.Tooltip("deviation_words:N", title="That is")] if comparable else []),
                alt.Tooltip("whole_words:N", title="Optimizer included"),
                alt.Tooltip("loss_words:N", title="Loss"),
            ],
        )
        .add_params(alt.selection_interval(name=VIEW, bind="scales", encodings=["x"]))
    )
    return finish(
        alt.layer(*layers)
        .resolve_scale(shape="independent", stroke="independent", fill="independent")
        .properties(width="container", height=height),
        palette,
    )
