"""What a workload occupies: layers and memory of each stage's GPU, against the GPU's memory."""

from collections.abc import Sequence
from typing import Protocol

import altair as alt
import pandas as pd

from kareus.report import format as fmt
from kareus.report.figures import AnyChart
from kareus.report.theme import Palette, config

COMPONENTS = (
    ("Weights", ("weights_bytes", "tied_copy_bytes")),
    ("Gradients", ("gradients_bytes",)),
    ("Optimizer", ("optimizer_bytes",)),
    ("Activations", ("activations_bytes", "working_bytes", "logits_bytes")),
    ("Reserve", ("reserve_bytes",)),
)
_GIB = 2.0**30
_MAX_STAGES = 8  # more lanes than this are unreadable beside a form
_LANE_PX = 20
_AROUND_PX = 96  # axis, legend and padding; charts are sized as a whole


class StageFootprint(Protocol):
    """Memory of one GPU of a stage; `kareus.workload.memory.StageMemory` is one."""

    @property
    def stage(self) -> int:
        """Index of the stage."""

    @property
    def num_layers(self) -> int:
        """Its transformer blocks."""

    @property
    def total_bytes(self) -> float:
        """Everything together."""


class Footprint(Protocol):
    """Memory of a workload; `kareus.workload.memory.MemoryEstimate` is one."""

    @property
    def stages(self) -> Sequence[StageFootprint]:
        """One entry per stage."""

    @property
    def limit_bytes(self) -> int:
        """Memory of the GPU."""


def memory_frame(footprint: Footprint) -> pd.DataFrame:
    """Return one row per stage and component, largest stages only where there are many.

    Columns: stage (0-based), lane (`Stage 0`), layers (`14 layers`), order (of the component),
    component, memory_gib, total_gib, limit_gib, shown (words for the tooltip).
    """
    stages = sorted(footprint.stages, key=lambda stage: (-stage.total_bytes, stage.stage))
    shown = sorted(stages[:_MAX_STAGES], key=lambda stage: stage.stage)
    rows = []
    for stage in shown:
        layers = "layer" if stage.num_layers == 1 else "layers"
        for order, (component, parts) in enumerate(COMPONENTS):
            memory_bytes = sum(float(getattr(stage, part)) for part in parts)
            rows.append(
                {
                    "stage": stage.stage,
                    "lane": f"Stage {stage.stage}",
                    "layers": f"{stage.num_layers} {layers}",
                    "order": order,
                    "component": component,
                    "memory_gib": memory_bytes / _GIB,
                    "total_gib": stage.total_bytes / _GIB,
                    "limit_gib": footprint.limit_bytes / _GIB,
                    "shown": f"{fmt.number(memory_bytes / _GIB)}{fmt.THIN_SPACE}GiB",
                }
            )
    return pd.DataFrame(rows)


def layers_frame(stage_layers: Sequence[int]) -> pd.DataFrame:
    """Return one row per stage: stage, start and end of its layers, and their number."""
    ends = pd.Series(stage_layers, dtype="int64").cumsum()
    return pd.DataFrame(
        {
            "stage": range(len(stage_layers)),
            "start": ends - pd.Series(stage_layers, dtype="int64"),
            "end": ends,
            "num_layers": list(stage_layers),
        }
    )


def layers_figure(frame: pd.DataFrame, palette: Palette, *, height: int = 40) -> AnyChart:
    """Return one bar divided into stages, each with its number of layers.

    Args:
        frame: A layers frame.
        palette: The mode's colours.
        height: Pixels of the whole, padding included.
    """
    bar = alt.Chart(frame).encode(
        x=alt.X("start:Q", axis=None, scale=alt.Scale(nice=False, domainMin=0)), x2="end:Q"
    )
    blocks = bar.mark_rect(cornerRadius=3, stroke=palette.background, strokeWidth=2).encode(
        color=alt.condition(
            "datum.stage % 2 == 0", alt.value(palette.dynamic), alt.value(palette.static)
        ),
        tooltip=[
            alt.Tooltip("stage:Q", title="Stage"),
            alt.Tooltip("num_layers:Q", title="Layers"),
        ],
    )
    words = (
        alt.Chart(frame)
        .transform_calculate(middle="(datum.start + datum.end) / 2")
        .mark_text(fontSize=12, fontWeight=600)
        .encode(
            x="middle:Q",
            text=alt.condition(f"{len(frame)} <= 16", alt.Text("num_layers:Q"), alt.value("")),
            color=alt.condition(
                "datum.stage % 2 == 0",
                alt.value(palette.background),
                alt.value(palette.text),
            ),
        )
    )
    chart: AnyChart = alt.layer(blocks, words).properties(height=height, width="container")
    figure: AnyChart = chart.configure(**config(palette))
    return figure


def memory_figure(frame: pd.DataFrame, palette: Palette) -> AnyChart:
    """Return one bar per stage by component, with the GPU's memory as a line.

    Args:
        frame: A memory frame.
        palette: The mode's colours.
    """
    limit_gib = float(frame["limit_gib"].iloc[0])
    names = [component for component, _ in COMPONENTS]
    dark_first = palette.sequential[::-1] if palette.name == "light" else palette.sequential
    colours = [*dark_first[:3], palette.static, palette.rule]
    bars = (
        alt.Chart(frame)
        .mark_bar(height=13)
        .encode(
            y=alt.Y(
                "lane:N",
                sort=alt.SortField("stage"),
                title=None,
                axis=alt.Axis(labelLimit=130, grid=False),
            ),
            x=alt.X(
                "memory_gib:Q",
                stack="zero",
                title="GiB per GPU",
                scale=alt.Scale(
                    domain=[0, 1.08 * max(limit_gib, float(frame["total_gib"].max()))], nice=False
                ),
                axis=alt.Axis(tickCount=4),
            ),
            color=alt.Color(
                "component:N",
                sort=names,
                scale=alt.Scale(domain=names, range=colours),
                legend=alt.Legend(
                    orient="bottom", title=None, columns=3, symbolType="square", rowPadding=2
                ),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("lane:N", title="Stage"),
                alt.Tooltip("layers:N", title="Layers"),
                alt.Tooltip("component:N", title="Part"),
                alt.Tooltip("shown:N", title="Memory"),
            ],
        )
    )
    line = pd.DataFrame(
        {"limit_gib": [limit_gib], "words": [f"{fmt.number(limit_gib)}{fmt.THIN_SPACE}GiB"]}
    )
    limit = (
        alt.Chart(line)
        .mark_rule(color=palette.critical, strokeWidth=1.5, strokeDash=[4, 3])
        .encode(x="limit_gib:Q", tooltip=[alt.Tooltip("words:N", title="Memory of the GPU")])
    )
    height = _AROUND_PX + _LANE_PX * int(frame["stage"].nunique())
    chart: AnyChart = alt.layer(bars, limit).properties(height=height, width="container")
    figure: AnyChart = chart.configure(**config(palette))
    return figure
