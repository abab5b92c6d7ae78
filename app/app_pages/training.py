"""Training: whether a run does what its plan promised, why not, and planning again with it."""

from datetime import UTC, datetime

import pandas as pd
import streamlit as st

from app import navigation, url
from app.backend import service, training_run
from app.components.charts import draw, palette
from app.components.frame import escape, guarded, show_error
from app.components.marks import source_mark
from app.components.tables import table_height
from app.components.text import quiet, small
from app.components.training_choice import (
    BUNDLE,
    LOG,
    THRESHOLD,
    choose_run,
    threshold_pct,
    trace_builder,
)
from app.wording import plural
from kareus.errors import KareusError
from kareus.report import format as fmt
from kareus.report.comparison import METHOD_NAMES
from kareus.report.drawing import prefixed
from kareus.report.figures import training_figure
from kareus.report.training import (
    deviation_words,
    energy_words,
    instructions_frame,
    stages_frame,
    steps_frame,
    training_answer,
    typical,
    typical_energy,
)
from kareus.service import TrainingLog, TrainingRun

_QUANTITIES = {"time": "Time", "energy": "Energy"}
_QUANTITY = "training_quantity"
_CHART_HEIGHT = 350
_TOGGLE_HEIGHT = 45
_POLL_S = 10.0
_SILENT_S = 600.0


def show() -> None:
    """Draw the page."""
    url.enter(BUNDLE, LOG, THRESHOLD)
    chosen = choose_run()
    if chosen is None:
        return
    log, bundle = chosen
    run = _load(log, bundle)
    silent_s = (datetime.now(UTC) - log.updated).total_seconds()
    goes_on = not run.ended and run.failure is None and silent_s < _SILENT_S
    st.fragment(guarded(_draw), run_every=_POLL_S if goes_on else None)(log, bundle)


def _load(log: TrainingLog, bundle: str) -> TrainingRun:
    return training_run(
        bundle, log.path, threshold_pct() / 100, service().training_changed_s(bundle, log.path)
    )


def _draw(log: TrainingLog, bundle: str) -> None:
    """Draw everything that follows from the run."""
    run = _load(log, bundle)
    report = run.report
    comparable = report.drift.raised is not None
    st.subheader(
        escape(
            training_answer(
                report.steps, report.stages, comparable=comparable, gpu=run.workload.gpu.name
            )
        )
    )
    left, right = st.columns([2.1, 1], gap="medium")
    with left:
        _draw_chart(run, comparable)
    with right:
        _draw_card(run, log, bundle, comparable)
    _draw_stages(run, comparable)
    _draw_instructions(run, comparable)
    for line in (*report.mismatches[:10], *report.notes):
        quiet(escape(line))


def _draw_chart(run: TrainingRun, comparable: bool) -> None:
    """The picture: every step against the plan, with the band of the threshold."""
    report = run.report
    frame = steps_frame(report.steps, threshold=report.drift.threshold)
    quantity, height = "time", _CHART_HEIGHT + _TOGGLE_HEIGHT
    if bool(frame["energy_j"].notna().any()):
        st.session_state.setdefault(_QUANTITY, "time")
        st.segmented_control(
            "Of a step",
            list(_QUANTITIES),
            key=_QUANTITY,
            format_func=_QUANTITIES.__getitem__,
            required=True,
            label_visibility="collapsed",
        )
        quantity, height = str(st.session_state[_QUANTITY]), _CHART_HEIGHT
    draw(
        training_figure(
            frame,
            quantity=quantity,
            threshold=report.drift.threshold,
            comparable=comparable,
            palette=palette(),
            height=height,
        ),
        key="training",
        alt_text=f"{_QUANTITIES[quantity]} of every step beside the plan's and the threshold",
    )


def _draw_card(run: TrainingRun, log: TrainingLog, bundle: str, comparable: bool) -> None:
    """The alarm, the figures, and what to do next."""
    report = run.report
    with st.container(border=True, gap="xsmall", height="stretch"):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(
                f"**{METHOD_NAMES[run.method]} plan {report.plan}**",
                width="stretch",
                help=f"Study {escape(report.study)}, {run.workload.model.name}",
            )
            source_mark(run.source, extrapolated=run.extrapolated)
        _draw_alarm(run)
        time_s, _ = typical(report.steps)
        energy = typical_energy(report.steps)
        time_column, energy_column = st.columns(2, gap="small")
        time_column.metric("Time of a step", fmt.time(time_s))
        energy_column.metric("Energy, all GPUs", fmt.energy(None if energy is None else energy[0]))
        planned = report.steps[0]
        quiet(
            f"Planned {fmt.time(planned.planned_time_s)}, {fmt.energy(planned.planned_energy_j)}"
            + (f"; energy {energy_words(energy[1])}" if energy and comparable else "")
        )
        quiet(escape(_progress(run)))
        st.download_button(
            "Download timeline",
            data=trace_builder(bundle, log.path),
            file_name=f"{log.name}-timeline.json",
            mime="application/json",
            icon=":material/download:",
            width="stretch",
            on_click="ignore",
            key="download_timeline",
            help="Planned and actual timeline of the last step in one file, for ui.perfetto.dev.",
        )
        _draw_replan(run, log, bundle)


def _draw_alarm(run: TrainingRun) -> None:
    """Whether the run drifts, and whether the schedule is followed: symbol, word and colour."""
    report = run.report
    drift = report.drift
    threshold = fmt.percent(100 * drift.threshold)
    if drift.raised:
        since = "" if drift.since_step is None else f" since step {drift.since_step}"
        parts = []
        if abs(drift.time_deviation) > drift.threshold:
            parts.append(f"time {deviation_words(drift.time_deviation)}")
        if drift.energy_deviation is not None and abs(drift.energy_deviation) > drift.threshold:
            parts.append(f"energy {energy_words(drift.energy_deviation)}")
        small(f":material/warning: Drift{since}: {', '.join(parts)}", "red")
    elif drift.raised is False:
        small(f":material/check_circle: No drift beyond {threshold}", "green")
    else:
        small(f":material/info: No drift alarm: {escape(drift.reason or '')}", "gray")
    if report.schedule_followed:
        small(":material/check_circle: Schedule followed on every rank", "green")
    elif report.schedule_followed is False:
        small(
            f":material/error: Schedule not followed: {escape(report.mismatches[0])}"
            if report.mismatches
            else ":material/error: Schedule not followed",
            "red",
        )
    else:
        small(
            f":material/info: Logs of {report.ranks} of {report.num_ranks} ranks are here", "orange"
        )


def _progress(run: TrainingRun) -> str:
    steps = run.report.steps
    last = "" if steps[-1].step == len(steps) else f" to step {steps[-1].step}"
    trained = (
        f"{plural(len(steps), 'step')}{last}, loss "
        f"{fmt.number(steps[0].loss, digits=4)} to {fmt.number(steps[-1].loss, digits=4)}"
    )
    if run.failure is not None:
        return f"{trained}; failed: {run.failure}"
    return trained if run.ended else f"{trained}; not ended"


def _draw_replan(run: TrainingRun, log: TrainingLog, bundle: str) -> None:
    """Start a study that replays what the run measured; or say why that cannot be."""
    count = len(run.report.measurements)
    if st.button(
        "Replan with these measurements",
        type="primary",
        icon=":material/route:",
        width="stretch",
        disabled=run.obstacle is not None,
        key="replan_training",
    ):
        try:
            handle = service().replan_with_measurements(bundle, log.path)
        except KareusError as error:
            show_error(error)
            return
        st.switch_page(
            navigation.JOBS.path, query_params={url.JOB: handle.job, url.STUDY: handle.study}
        )
    if run.obstacle is not None:
        quiet(escape(f"{run.obstacle[:1].upper()}{run.obstacle[1:]}."))
    else:
        quiet(
            f"{plural(count, 'measurement')} of this run; the study's others are carried over by "
            "the ratios it shows. The result is a study of its own."
        )


def _draw_table(
    frame: pd.DataFrame, key: str, comparable: bool, at_most: int, **columns: object
) -> None:
    """Draw a table of stages or instructions, its times and energies in units that fit."""
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    of_one = "Of one GPU."
    seconds, time_factor = prefixed(frame["planned_time_s"], "s")
    joules, energy_factor = prefixed(frame["planned_energy_j"], "J")
    frame = frame.assign(
        time_s=frame["time_s"] / time_factor,
        planned_time_s=frame["planned_time_s"] / time_factor,
        energy_j=frame["energy_j"] / energy_factor,
        planned_energy_j=frame["planned_energy_j"] / energy_factor,
    )
    shared = {
        "stage": number("Stage", pinned=True, width=60),
        "time_s": number(f"Time ({seconds})", format="%.4g"),
        "planned_time_s": number(f"Planned ({seconds})", format="%.4g"),
        "time_pct": number("Off plan (%)", format="%+.1f") if comparable else None,
        "energy_j": number(f"Energy ({joules})", format="%.4g", help=of_one),
        "planned_energy_j": number(f"Planned ({joules})", format="%.4g", help=of_one),
        "energy_pct": number("Off plan (%)", format="%+.1f") if comparable else None,
        "cause": text("Likely cause", width=150) if comparable else None,
        "detail": text("What speaks for it", width=300) if comparable else None,
    }
    st.dataframe(
        frame,
        key=key,
        hide_index=True,
        height=table_height(len(frame), at_most=at_most),
        placeholder=fmt.DASH,
        column_config=shared | columns,  # type: ignore[arg-type]
    )


def _draw_stages(run: TrainingRun, comparable: bool) -> None:
    st.markdown("**Stages** · time at work per step, energy of one GPU per step")
    _draw_table(stages_frame(run.report.stages), "stages", comparable, 8)


def _draw_instructions(run: TrainingRun, comparable: bool) -> None:
    frame = instructions_frame(run.report.instructions)
    off = int((frame["time_pct"].abs() > 100 * run.report.drift.threshold).sum())
    words = f" · {off} of {len(frame)} beyond the threshold in time" if comparable else ""
    st.markdown(f"**Instructions**{words}")
    _draw_table(
        frame,
        "instructions",
        comparable,
        12,
        instruction=st.column_config.TextColumn("Instruction", pinned=True, width=110),
        clock_mhz=st.column_config.NumberColumn("Clock (MHz)", format="%d"),
        achieved_clock_mhz=st.column_config.NumberColumn("Ran at (MHz)", format="%.0f"),
    )


guarded(show)()
