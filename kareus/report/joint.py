"""The joint frontier of many layouts: which parallelism for which trade-off.

All layouts train on the same tokens per iteration, so their iteration times and the energies of
the whole job compare.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from kareus.core.measurement import SourceKind
from kareus.report import format as fmt
from kareus.report.data import source_mark
from kareus.report.drawing import VIEW, AnyChart, finish, prefixed
from kareus.report.series import series_color, series_legend, series_shape
from kareus.report.theme import LIGHT, Palette

JOINT_SELECTION = "joint"
"""Name of the joint frontier's selection; its field is `point_id`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JointPoint:
    """A plan on the joint frontier.

    Attributes:
        layout: Number of its layout.
        words: The layout in words.
        plan: The plan's number in the layout's study.
        iteration_time_s: Seconds.
        job_energy_j: All GPUs of the job.
    """

    layout: int
    words: str
    plan: int
    iteration_time_s: float
    job_energy_j: float


def joint_id(layout: int, plan: int) -> str:
    """Return a point's stable name, such as `12-3`: layout, plan."""
    return f"{layout}-{plan}"


def joint_frame(
    points: Iterable[JointPoint], *, source: SourceKind, extrapolated: bool = False
) -> pd.DataFrame:
    """Return one row per plan of the joint frontier, fastest first.

    Columns: point_id, layout, words, plan, iteration_time_s, job_energy_j, average_power_w (of the
    job), source, filled (measured values only).
    """
    rows = [
        {
            "point_id": joint_id(point.layout, point.plan),
            "layout": point.layout,
            "words": point.words,
            "plan": point.plan,
            "iteration_time_s": point.iteration_time_s,
            "job_energy_j": point.job_energy_j,
            "average_power_w": point.job_energy_j / point.iteration_time_s,
            "source": source_mark(source, extrapolated=extrapolated),
            "filled": source is SourceKind.MEASURED,
        }
        for point in sorted(points, key=lambda point: point.iteration_time_s)
    ]
    return pd.DataFrame(
        rows,
        columns=[
            "point_id",
            "layout",
            "words",
            "plan",
            "iteration_time_s",
            "job_energy_j",
            "average_power_w",
            "source",
            "filled",
        ],
    )


def baseline_frame(
    layouts: Iterable[tuple[str, str, Sequence[tuple[float, float]]]],
) -> pd.DataFrame:
    """Return the baselines' plans of layouts, what each was judged by.

    Args:
        layouts: Per layout its words, what became of it, and (seconds, joules of the job).

    Returns:
        Columns words, state, iteration_time_s, job_energy_j.
    """
    return pd.DataFrame(
        [
            (words, state, time_s, energy_j)
            for words, state, plans in layouts
            for time_s, energy_j in plans
        ],
        columns=["words", "state", "iteration_time_s", "job_energy_j"],
    )


def joint_figure(
    frame: pd.DataFrame,
    *,
    baselines: pd.DataFrame | None = None,
    selected: str | None = None,
    palette: Palette = LIGHT,
    height: int = 400,
) -> AnyChart:
    """Draw job energy over iteration time, coloured and shaped by layout.

    Args:
        frame: A joint frame with a row at least.
        baselines: A baseline frame; drawn faintly as far as it lies near the frontier.
        selected: `point_id` to ring.
        palette: The mode's colours.
        height: Pixels.
    """
    times, energies = frame["iteration_time_s"], frame["job_energy_j"]
    span_s = max(float(times.max() - times.min()), 0.05 * float(times.max()))
    span_j = max(float(energies.max() - energies.min()), 0.05 * float(energies.max()))
    unit, factor = prefixed(energies, "J")
    x = alt.X(
        "iteration_time_s:Q",
        title="Iteration time (s)",
        scale=alt.Scale(
            domain=[float(times.min()) - 0.06 * span_s, float(times.max()) + 0.25 * span_s],
            nice=False,
            zero=False,
        ),
        axis=alt.Axis(tickCount=8, format="~r"),
    )
    y_title = f"Energy per iteration, all GPUs ({unit})"
    y = alt.Y(
        "job_energy_j:Q",
        title=y_title,
        scale=alt.Scale(
            domain=[float(energies.min()) - 0.08 * span_j, float(energies.max()) + 0.25 * span_j],
            nice=False,
            zero=False,
        ),
        axis=alt.Axis(tickCount=7, labelExpr=f"format(datum.value / {factor:g}, ',.4~r')"),
    )
    names = list(frame.sort_values("iteration_time_s")["words"].drop_duplicates())
    shown = frame.assign(
        time_words=[fmt.time(value) for value in times],
        energy_words=[fmt.energy(value) for value in energies],
        power_words=[fmt.power(value) for value in frame["average_power_w"]],
    )
    base = alt.Chart(shown)
    layers: list[alt.Chart] = []
    if baselines is not None and not baselines.empty:
        layers.append(
            alt.Chart(
                baselines.assign(
                    time_words=[fmt.time(value) for value in baselines["iteration_time_s"]],
                    energy_words=[fmt.energy(value) for value in baselines["job_energy_j"]],
                )
            )
            .mark_point(shape="stroke", size=36, strokeWidth=1.5, opacity=0.65, clip=True)
            .encode(
                x=x,
                y=y,
                color=alt.value(palette.rule),
                tooltip=[
                    alt.Tooltip("words:N", title="Layout, baseline"),
                    alt.Tooltip("state:N", title="Layout"),
                    alt.Tooltip("time_words:N", title="Iteration time"),
                    alt.Tooltip("energy_words:N", title="Energy, whole job"),
                ],
            )
        )
    layers.append(
        base.mark_line(strokeWidth=1.25, color=palette.rule, clip=True).encode(
            x=x, y=y, order="iteration_time_s:Q", tooltip=alt.value(None)
        )
    )
    pick = alt.selection_point(
        name=JOINT_SELECTION, fields=["point_id"], on="click", clear=False, empty=False
    )
    legend = series_legend()
    color = series_color("words", names, palette, legend=legend)
    layers.append(
        base.mark_point(size=64, strokeWidth=1.75, opacity=1, clip=True).encode(
            x=x,
            y=y,
            stroke=color,
            fill=alt.condition(
                "datum.filled",
                color,
                alt.value(palette.background),
            ),
            shape=series_shape("words", names, legend=legend),
        )
    )
    if selected is not None:
        layers.append(
            base.transform_filter(alt.FieldEqualPredicate(field="point_id", equal=selected))
            .mark_point(
                shape="circle", filled=False, size=260, stroke=palette.text, strokeWidth=2.25
            )
            .encode(x=x, y=y, tooltip=alt.value(None))
        )
    # A wide invisible mark above all, so that hovering and clicking need no steady hand.
    layers.append(
        base.mark_point(size=280, filled=True, opacity=0.0, cursor="pointer", clip=True)
        .encode(
            x=x,
            y=y,
            tooltip=[
                alt.Tooltip("words:N", title="Layout"),
                alt.Tooltip("plan:Q", title="Plan"),
                alt.Tooltip("time_words:N", title="Iteration time"),
                alt.Tooltip("energy_words:N", title="Energy, whole job"),
                alt.Tooltip("power_words:N", title="Power, whole job"),
                alt.Tooltip("source:N", title="Source"),
            ],
        )
        .add_params(pick, alt.selection_interval(name=VIEW, bind="scales"))
    )
    return finish(alt.layer(*layers).properties(width="container", height=height), palette)
