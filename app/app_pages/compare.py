"""Compare: several studies in one picture, on a scale on which they compare."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from app import url
from app.backend import plan_summaries, study_detail, study_summaries
from app.components.charts import draw, palette
from app.components.example import offer_first_study
from app.components.frame import escape, guarded
from app.components.marks import source_mark
from app.components.tables import table_height
from app.components.text import quiet
from app.wording import age, count, source_words
from kareus.core.plan import Method
from kareus.report import format as fmt
from kareus.report.series import MAX_SERIES
from kareus.report.side_by_side import (
    Scale,
    StudyFrontiers,
    per_million_tokens,
    side_by_side_figure,
    side_by_side_frame,
)
from kareus.service import StudyDetail, StudySummary

_CHOICE = "compared_studies"
_SCALE = "compare_scale"
_BASELINE = "compare_baseline"
_CHART_HEIGHT = 404
_DEFAULT_STUDIES = 3
_SCALES = {
    Scale.MEGATRON: "Relative to Megatron-LM",
    Scale.TOKENS: "Per million tokens",
    Scale.ITERATION: "Per iteration",
}


def show() -> None:
    """Draw the page."""
    url.enter(url.STUDIES, url.SCALE, url.BASELINE)
    finished = [study for study in study_summaries() if study.state == "done"]
    if not finished:
        st.subheader("Nothing to compare yet: no study has finished")
        offer_first_study()
        return
    st.fragment(guarded(_draw))(finished)


def _draw(finished: Sequence[StudySummary]) -> None:
    """Draw everything that a choice changes."""
    chosen = _chosen(finished)
    scale = _scale()
    studies = [_frontiers(study, chosen) for study in chosen]
    st.subheader(escape(_answer(chosen)))
    _draw_choice(finished, chosen, scale)
    methods = (Method.KAREUS, Method.PERSEUS) if _with_baseline() else (Method.KAREUS,)
    frame = side_by_side_frame(studies, scale, methods)
    left_out = [one.name for one in studies if one.study not in set(frame["study"])]
    if frame.empty:
        st.info(
            "None of these studies has a Megatron-LM plan to be relative to: choose another scale.",
            icon=":material/info:",
        )
    else:
        draw(
            side_by_side_figure(
                frame,
                scale,
                names=[one.name for one in studies],
                palette=palette(),
                height=_CHART_HEIGHT,
            ),
            key="compare_chart",
            alt_text="Energy over time of the Kareus plans of each study, on one scale",
        )
        if left_out:
            quiet(escape(f"Without a Megatron-LM plan, so not drawn: {', '.join(left_out)}"))
    _draw_figures(chosen, studies)


def _chosen(finished: Sequence[StudySummary]) -> list[StudySummary]:
    """The studies the URL names, in its order; the newest where it names none."""
    by_id = {study.id: study for study in finished}
    named = dict.fromkeys((url.get(url.STUDIES) or "").split(","))
    chosen = [by_id[study] for study in named if study in by_id][:MAX_SERIES]
    if not chosen:
        chosen = list(finished[:_DEFAULT_STUDIES])
    url.put(url.STUDIES, ",".join(study.id for study in chosen))
    return chosen


def _scale() -> Scale:
    value = url.get(url.SCALE)
    return Scale(value) if value in set(Scale) else Scale.MEGATRON


def _with_baseline() -> bool:
    return url.get(url.BASELINE) == Method.PERSEUS


def _detail(study: StudySummary) -> StudyDetail:
    return study_detail(study.id, study.state)


def _frontiers(study: StudySummary, chosen: Sequence[StudySummary]) -> StudyFrontiers:
    workload = _detail(study).workload
    return StudyFrontiers(
        study=study.id,
        name=_name(study, chosen),
        frontiers=plan_summaries(study.id, study.state),
        gpus_per_stage=workload.parallelism.gpus_per_stage,
        tokens_per_iteration=workload.tokens_per_iteration,
        source=study.source,
        extrapolated=study.extrapolated,
    )


def _name(study: StudySummary, among: Sequence[StudySummary]) -> str:
    """The study's name; with the end of its id where another has the same name."""
    if sum(other.name == study.name for other in among) == 1:
        return study.name
    return f"{study.name} ({study.id.rpartition('-')[2]})"


def _answer(chosen: Sequence[StudySummary]) -> str:
    """The page's answer: which of them saves the most."""
    known = [one for one in chosen if one.iso_time_energy_reduction_pct is not None]
    if not known:
        return f"{len(chosen)} studies side by side"
    best = max(known, key=lambda one: one.iso_time_energy_reduction_pct or 0.0)
    words = fmt.reduction(best.iso_time_energy_reduction_pct, "energy")
    if len(chosen) == 1:
        return f"{_name(best, chosen)}: {words} than Megatron-LM + Perseus at equal time"
    return f"{_name(best, chosen)} saves the most: {words} than Megatron-LM + Perseus at equal time"


def _draw_choice(
    finished: Sequence[StudySummary], chosen: Sequence[StudySummary], scale: Scale
) -> None:
    """Which studies, on which scale, with which baseline."""
    by_id = {study.id: study for study in finished}
    st.session_state[_CHOICE] = [study.id for study in chosen]
    st.session_state[_SCALE] = scale
    st.session_state[_BASELINE] = _with_baseline()
    st.multiselect(
        "Studies",
        list(by_id),
        key=_CHOICE,
        format_func=lambda study: f"{by_id[study].name}, {age(by_id[study].created)}",
        max_selections=MAX_SERIES,
        placeholder="Choose the studies to compare",
        label_visibility="collapsed",
        on_change=_apply_choice,
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.segmented_control(
            "Scale",
            list(_SCALES),
            key=_SCALE,
            format_func=_SCALES.__getitem__,
            required=True,
            label_visibility="collapsed",
            on_change=_apply_scale,
        )
        st.toggle(
            "Megatron-LM + Perseus, dashed",
            key=_BASELINE,
            on_change=_apply_baseline,
        )
        st.space("stretch")
        for source in dict.fromkeys(study.source for study in chosen):
            source_mark(
                source, extrapolated=any(s.extrapolated for s in chosen if s.source is source)
            )


def _apply_choice() -> None:
    url.put(url.STUDIES, ",".join(st.session_state[_CHOICE]) or None)


def _apply_scale() -> None:
    value = Scale(st.session_state[_SCALE])
    url.put(url.SCALE, None if value is Scale.MEGATRON else value.value)


def _apply_baseline() -> None:
    url.put(url.BASELINE, Method.PERSEUS.value if st.session_state[_BASELINE] else None)


def _draw_figures(chosen: Sequence[StudySummary], studies: Sequence[StudyFrontiers]) -> None:
    """The comparison figures, one column per study."""
    st.markdown("**Figures**")
    columns = {
        one.name: [words(_facts(summary, one)) for words in _FIGURES.values()]
        for summary, one in zip(chosen, studies, strict=True)
    }
    st.dataframe(
        pd.DataFrame(columns, index=pd.Index(list(_FIGURES), name="Kareus")),
        key="compare_figures",
        height=table_height(len(_FIGURES), at_most=len(_FIGURES)),
        column_config={
            name: st.column_config.TextColumn(name, alignment="right") for name in columns
        },
    )


def _facts(summary: StudySummary, one: StudyFrontiers) -> Mapping[str, Any]:
    """What the figures are made of."""
    detail = _detail(summary)
    plans = one.frontiers.get(Method.KAREUS, ())
    return {
        "detail": detail,
        "compare": detail.compare or {},
        "fastest": plans[0] if plans else None,
        "frugal": min(plans, key=lambda plan: plan.pipeline_energy_j) if plans else None,
        "one": one,
    }


def _throughput(facts: Mapping[str, Any], figure: str) -> float | None:
    method = facts["compare"].get("max_throughput", {}).get(Method.KAREUS.value) or {}
    value: float | None = method.get(figure)
    return value


def _against_perseus(facts: Mapping[str, Any], figure: str) -> float | None:
    value: float | None = facts["compare"].get(figure, {}).get(Method.KAREUS.value)
    return value


def _per_token(facts: Mapping[str, Any], plan: str) -> str:
    chosen, one = facts[plan], facts["one"]
    if chosen is None:
        return fmt.DASH
    seconds, kilojoules = per_million_tokens(one)
    energy_j = chosen.pipeline_energy_j * one.gpus_per_stage * kilojoules * 1e3
    return f"{fmt.time(chosen.iteration_time_s * seconds)}, {fmt.energy(energy_j)}"


_FIGURES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "Source": lambda f: source_words(f["one"].source, extrapolated=f["one"].extrapolated),
    "GPUs": lambda f: (
        f"{f['detail'].workload.parallelism.num_gpus} × {f['detail'].workload.gpu.name}"
    ),
    "Fastest plan against Megatron-LM": lambda f: fmt.speed(_throughput(f, "time_reduction_pct")),
    "its energy": lambda f: fmt.reduction(_throughput(f, "energy_reduction_pct"), "energy"),
    "Equal time, against Perseus": lambda f: fmt.reduction(
        _against_perseus(f, "iso_time_energy_reduction_pct"), "energy"
    ),
    "Equal energy, against Perseus": lambda f: fmt.reduction(
        _against_perseus(f, "iso_energy_time_reduction_pct"), "time"
    ),
    "Million tokens, fastest": lambda f: _per_token(f, "fastest"),
    "Million tokens, most frugal": lambda f: _per_token(f, "frugal"),
    "Hypervolume (1 is ideal)": lambda f: fmt.number(_against_perseus(f, "hypervolume")),
    "Measurements": lambda f: count(f["detail"].measurements),
}


guarded(show)()
