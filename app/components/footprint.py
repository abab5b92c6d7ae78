"""What a study needs, before it starts: GPUs, layers and memory per stage, measurements, time."""

import streamlit as st

from app.components.charts import draw, palette
from app.components.text import quiet, small
from app.wording import count, plural
from kareus.core.workload import Workload
from kareus.report.footprint import layers_figure, layers_frame, memory_figure, memory_frame
from kareus.report.format import DASH, THIN_SPACE, duration, number, percent
from kareus.service import Assessment

_UNKNOWN_HEIGHT_PX = 250


def draw_summary(assessment: Assessment) -> None:
    """Draw the live summary; unknown parts are dashes, so that nothing jumps."""
    workload = assessment.workload
    with st.container(border=True, gap="small"):
        st.markdown(f"**{_gpus(workload)}**")
        quiet(_degrees(workload))
        _draw_stages(assessment)
        left, right = st.columns(2)
        left.metric("Measurements", _measurements(assessment), help=_baseline_help(assessment))
        right.metric("Time, about", duration(assessment.estimated_s))
        _draw_trust(assessment)


def _draw_trust(assessment: Assessment) -> None:
    """Say it where the simulator knows this GPU only by extrapolation."""
    if not assessment.extrapolated:
        return
    error = ""
    if assessment.uncertainty is not None:
        error = (
            f": times to about {percent(100 * assessment.uncertainty.time)}, "
            f"energies to about {percent(100 * assessment.uncertainty.energy)}"
        )
    small(f":material/trending_up: **extrapolated**{error}", "orange")


def _draw_stages(assessment: Assessment) -> None:
    """Layers and memory of each stage; an empty place of the same size while unknown."""
    if assessment.workload is None or assessment.memory is None:
        st.container(height=_UNKNOWN_HEIGHT_PX, border=False)
        return
    colours = palette()
    quiet(f"{plural(sum(assessment.workload.stage_layers), 'layer')} over the stages")
    draw(
        layers_figure(layers_frame(assessment.workload.stage_layers), colours),
        key="layers",
        alt_text="Layers of each pipeline stage",
    )
    peak_gib = max(stage.total_bytes for stage in assessment.memory.stages) / 2**30
    limit_gib = assessment.memory.limit_bytes / 2**30
    quiet(f"Memory per GPU, estimated: {number(peak_gib)} of {number(limit_gib)}{THIN_SPACE}GiB")
    draw(
        memory_figure(memory_frame(assessment.memory), colours),
        key="memory",
        alt_text="Estimated memory of each stage by component, against the memory of the GPU",
    )


def _gpus(workload: Workload | None) -> str:
    if workload is None:
        return "GPUs: " + DASH
    return f"{plural(workload.parallelism.num_gpus, 'GPU')}, {workload.gpu.name}"


def _degrees(workload: Workload | None) -> str:
    if workload is None:
        return DASH
    p = workload.parallelism
    return (
        f"tp {p.tp} × cp {p.cp} × pp {p.pp} × dp {p.dp}, "
        f"{count(workload.tokens_per_iteration)} tokens per iteration"
    )


def _measurements(assessment: Assessment) -> str:
    if assessment.num_measurements is None:
        return DASH
    return count(assessment.num_measurements + (assessment.num_baseline_measurements or 0))


def _baseline_help(assessment: Assessment) -> str | None:
    if assessment.num_measurements is None:
        return None
    return (
        f"{count(assessment.num_measurements)} searched in "
        f"{plural(assessment.num_partitions or 0, 'partition')}, "
        f"{count(assessment.num_baseline_measurements)} for the baselines"
    )
