"""Several studies in one picture: their Kareus frontiers on a scale on which they compare.

Studies of different workloads compare relative to their own Megatron-LM plan, or per token; only
those of one workload compare per iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import altair as alt
import pandas as pd

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.comparison import Frontiers
from kareus.report.data import source_mark
from kareus.report.drawing import VIEW, AnyChart, finish
from kareus.report.series import series_color, series_colors, series_shape
from kareus.report.theme import LIGHT, Palette

_PER_TOKENS = 1e6
_NAME_WIDTH = 0.25  # of the times' range
_NAME_SEPARATION = 0.05  # of the energies' range


class Scale(StrEnum):
    """What a study's plans are divided by."""

    MEGATRON = "megatron"
    TOKENS = "tokens"
    ITERATION = "iteration"


@dataclass(frozen=True, kw_only=True)
class StudyFrontiers:
    """A study as a comparison needs it.

    Attributes:
        study: Its id.
        name: Its name; unique within the comparison.
        frontiers: Plans by method, fastest first.
        gpus_per_stage: What turns pipeline energy into that of the job.
        tokens_per_iteration: Tokens one iteration trains on.
        source: Where its measurements come from.
        extrapolated: Whether the simulator is not calibrated for its GPU.
    """

    study: str
    name: str
    frontiers: Frontiers
    gpus_per_stage: int
    tokens_per_iteration: int
    source: SourceKind
    extrapolated: bool = False


_TITLES: Mapping[Scale, tuple[str, str]] = {
    Scale.MEGATRON: ("Iteration time (% of Megatron-LM)", "Energy (% of Megatron-LM)"),
    Scale.TOKENS: ("Time per million tokens (s)", "Energy per million tokens, all GPUs (kJ)"),
    Scale.ITERATION: ("Iteration time (s)", "Energy per iteration, all GPUs (kJ)"),
}


def side_by_side_frame(
    studies: Sequence[StudyFrontiers], scale: Scale, methods: Sequence[Method] = (Method.KAREUS,)
) -> pd.DataFrame:
    """Return one row per plan of each study, on one scale.

    A study without a Megatron-LM plan has no rows on that scale.

    Returns:
        Columns study, series (its name), method, line (study and method), plan, x, y (in the
        scale's units), iteration_time_s, job_energy_j, source, filled.
    """
    rows = []
    for one in studies:
        factors = _factors(one, scale)
        if factors is None:
            continue
        for method in methods:
            for plan in one.frontiers.get(method, ()):
                job_j = plan.pipeline_energy_j * one.gpus_per_stage
                rows.append(
                    {
                        "study": one.study,
                        "series": one.name,
                        "method": method.value,
                        "line": f"{one.study} {method.value}",
                        "plan": plan.number,
                        "x": plan.iteration_time_s * factors[0],
                        "y": job_j * factors[1],
                        "iteration_time_s": plan.iteration_time_s,
                        "job_energy_j": job_j,
                        "source": source_mark(one.source, extrapolated=one.extrapolated),
                        "filled": one.source is SourceKind.MEASURED,
                    }
                )
    return pd.DataFrame(
        rows,
        columns=[
            "study",
            "series",
            "method",
            "line",
            "plan",
            "x",
            "y",
            "iteration_time_s",
            "job_energy_j",
            "source",
            "filled",
        ],
    )


def per_million_tokens(one: StudyFrontiers) -> tuple[float, float]:
    """Return what turns iteration time and job energy into s and kJ per million tokens."""
    share = _PER_TOKENS / one.tokens_per_iteration
    return share, share / 1e3


def _factors(one: StudyFrontiers, scale: Scale) -> tuple[float, float] | None:
    """What iteration time and job energy are multiplied with; None where there is nothing."""
    if scale is Scale.ITERATION:
        return 1.0, 1e-3
    if scale is Scale.TOKENS:
        return per_million_tokens(one)
    baseline = one.frontiers.get(Method.MEGATRON, ())
    if not baseline:
        return None
    reference = baseline[0]
    return (
        100.0 / reference.iteration_time_s,
        100.0 / (reference.pipeline_energy_j * one.gpus_per_stage),
    )


def side_by_side_figure(
    frame: pd.DataFrame,
    scale: Scale,
    *,
    names: Sequence[str] = (),
    palette: Palette = LIGHT,
    height: int = 400,
) -> AnyChart:
    """Draw the frontiers of several studies, each named at its end.

    Kareus' lines are full; those of Megatron-LM + Perseus, if the frame has them, dashed and
    without marks. On the Megatron-LM scale its plan is where both are 100 %.

    Args:
        frame: A side-by-side frame with a row at least.
        scale: The scale it is on.
        names: All studies compared, drawn or not: what keeps a study's colour from one scale to
            another; none for those of the frame.
        palette: The mode's colours.
        height: Pixels.
    """
    x_title, y_title = _TITLES[scale]
    relative = scale is Scale.MEGATRON
    xs, ys = list(frame["x"]), list(frame["y"])
    if relative:
        xs, ys = [*xs, 100.0], [*ys, 100.0]
    span_x = max(max(xs) - min(xs), 0.05 * max(xs))
    span_y = max(max(ys) - min(ys), 0.05 * max(ys))
    x_scale = alt.Scale(
        domain=[min(xs) - 0.06 * span_x, max(xs) + 0.34 * span_x], nice=False, zero=False
    )
    y_scale = alt.Scale(
        domain=[min(ys) - 0.08 * span_y, max(ys) + 0.10 * span_y], nice=False, zero=False
    )
    x = alt.X("x:Q", title=x_title, scale=x_scale, axis=alt.Axis(tickCount=8, format=",.4~r"))
    y = alt.Y("y:Q", title=y_title, scale=y_scale, axis=alt.Axis(tickCount=7, format=",.4~r"))
    names = list(names) or list(frame["series"].drop_duplicates())
    color = series_color("series", names, palette)
    shown = frame.assign(
        x_words=[_words(value, relative) for value in frame["x"]],
        y_words=[_words(value, relative) for value in frame["y"]],
        time_words=[fmt.time(value) for value in frame["iteration_time_s"]],
        energy_words=[fmt.energy(value) for value in frame["job_energy_j"]],
    )
    kareus = shown[shown["method"] == Method.KAREUS.value]
    others = shown[shown["method"] != Method.KAREUS.value]
    base = alt.Chart(kareus)
    layers: list[alt.Chart] = []
    if relative:
        layers += _reference_layers(palette, x, y)
    if not others.empty:
        layers.append(
            alt.Chart(others)
            .mark_line(strokeWidth=1.5, strokeDash=[5, 4], clip=True, opacity=0.8)
            .encode(x=x, y=y, color=color, detail="line:N", order="x:Q", tooltip=alt.value(None))
        )
    layers += [
        base.mark_line(strokeWidth=1.75, clip=True, opacity=0.85).encode(
            x=x, y=y, color=color, detail="line:N", order="x:Q", tooltip=alt.value(None)
        ),
        base.mark_point(size=40, strokeWidth=1.5, opacity=1, clip=True).encode(
            x=x,
            y=y,
            stroke=color,
            fill=alt.condition(
                "datum.filled",
                color,
                alt.value(palette.background),
            ),
            shape=series_shape("series", names),
        ),
    ]
    ink = series_colors(names, palette)
    ends = _names(kareus, span_x, span_y)
    ends["ink"] = [ink[name] for name in ends["series"]]
    layers.append(
        alt.Chart(ends)
        .mark_text(align="left", baseline="middle", dx=12, fontSize=12, fontWeight=600, limit=230)
        .encode(
            x=alt.X("x:Q", scale=x_scale),
            y=alt.Y("y:Q", scale=y_scale),
            text="series:N",
            color=alt.Color("ink:N", scale=None),
            tooltip=alt.value(None),
        )
    )
    titles = (
        ("Time, Megatron-LM = 100", "Energy, Megatron-LM = 100") if relative else _TITLES[scale]
    )
    tooltip = [
        alt.Tooltip("series:N", title="Study"),
        alt.Tooltip("plan:Q", title="Plan"),
        alt.Tooltip("time_words:N", title="Iteration time"),
        alt.Tooltip("energy_words:N", title="Energy, whole job"),
        alt.Tooltip("source:N", title="Source"),
    ]
    if scale is not Scale.ITERATION:
        tooltip[2:2] = [
            alt.Tooltip("x_words:N", title=titles[0]),
            alt.Tooltip("y_words:N", title=titles[1]),
        ]
    layers.append(
        base.mark_point(size=220, filled=True, opacity=0.0, clip=True)
        .encode(x=x, y=y, tooltip=tooltip)
        .add_params(alt.selection_interval(name=VIEW, bind="scales"))
    )
    return finish(alt.layer(*layers).properties(width="container", height=height), palette)


def _reference_layers(palette: Palette, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Where every study's Megatron-LM plan is on its own scale, in its fixed mark."""
    ink = palette.methods[Method.MEGATRON]
    point = pd.DataFrame({"x": [100.0], "y": [100.0], "name": ["Megatron-LM"]})
    base = alt.Chart(point)
    nothing = alt.value(None)
    return [
        base.mark_rule(strokeDash=[4, 3], stroke=palette.rule, clip=True).encode(
            x=x, tooltip=nothing
        ),
        base.mark_rule(strokeDash=[4, 3], stroke=palette.rule, clip=True).encode(
            y=y, tooltip=nothing
        ),
        base.mark_point(shape="diamond", size=90, filled=True, opacity=1, color=ink).encode(
            x=x, y=y, tooltip=alt.Tooltip("name:N", title="Method")
        ),
        base.mark_text(
            align="left",
            baseline="bottom",
            dx=8,
            dy=-6,
            fontSize=12,
            fontWeight=600,
            color=palette.labels[Method.MEGATRON],
        ).encode(x=x, y=y, text="name:N", tooltip=nothing),
    ]


def _names(frame: pd.DataFrame, span_x: float, span_y: float) -> pd.DataFrame:
    """Return where the names stand: at their lines' ends, on no other line, none over another.

    Where another study's line passes behind its end, a name stands right of all lines.

    Args:
        frame: Rows of one method.
        span_x: Extent of the picture in the units of x.
        span_y: Extent of the picture in the units of y.
    """
    columns = ["series", "x", "y"]
    if frame.empty:
        return pd.DataFrame(columns=columns)
    width, step = _NAME_WIDTH * span_x, _NAME_SEPARATION * span_y
    ends = frame.loc[frame.groupby("series")["x"].idxmax(), columns]
    ends = ends.sort_values("y", ignore_index=True)
    placed: list[tuple[str, float, float]] = []
    for name, x, y in zip(ends["series"], ends["x"], ends["y"], strict=True):
        behind = frame[
            (frame["series"] != name)
            & frame["x"].between(x + 0.01 * span_x, x + width)
            & frame["y"].between(y - step, y + step)
        ]
        at = float(x) if behind.empty else float(frame["x"].max())
        height = float(y)
        for _, other_x, other_y in sorted(placed, key=lambda one: one[2]):
            if abs(other_x - at) < width and abs(height - other_y) < step:
                height = other_y + step
        placed.append((name, at, height))
    return pd.DataFrame(placed, columns=columns)


def _words(value: float, relative: bool) -> str:
    return fmt.percent(value) if relative else fmt.number(value)
