"""Trust: how far the simulator is from recorded data, published or the user's own."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from app import url
from app.backend import built_in_calibration, service, validation
from app.components.charts import draw, palette
from app.components.frame import escape, guarded, show_error
from app.components.tables import table_height
from app.components.text import quiet
from app.components.trust_uploads import draw_uploads
from app.wording import plural
from kareus.core.plan import Method
from kareus.errors import KareusError
from kareus.report import format as fmt
from kareus.report.comparison import METHOD_NAMES
from kareus.report.data import ParityPoint, parity_frame
from kareus.report.figures import parity_figure
from kareus.service import BUILT_IN, CalibrationView, Records, RecordsKind, Validation

_GPU = "trust_gpu"
_CALIBRATION = "trust_calibration"
_RECORDS = "trust_records"
_FAILURE = "trust_failure"
_DEFAULT_GPU = "A100-SXM4-40GB"
_SIDE = 318
_GPU_PARAMETER = "gpu"


def show() -> None:
    """Draw the page."""
    url.enter(url.RECORDS, url.CALIBRATION, _GPU_PARAMETER)
    st.fragment(guarded(_draw))()


def _draw() -> None:
    """Draw everything that a choice changes."""
    records = service().records()
    shown = next((one for one in records if one.id == url.get(url.RECORDS)), None)
    if shown is None and records:
        shown = records[0]
    gpu = _gpu() if shown is None else shown.gpu
    calibration = _calibration(gpu)
    checked = None if shown is None else _validate(shown, calibration)
    st.subheader(escape(_answer(gpu, calibration, shown, checked)))
    _draw_choice(records, shown, gpu, calibration)
    failure = st.session_state.pop(_FAILURE, None)
    if failure is not None:
        st.error(escape(failure), icon=":material/error:")
    left, right = st.columns([2.3, 1], gap="medium")
    with left:
        if shown is None or checked is None:
            _draw_stated(calibration)
        else:
            _draw_parity(checked)
            _draw_errors(checked)
            _draw_stated(calibration)
    with right:
        draw_uploads(gpu, records=shown is None)


def _gpu() -> str:
    """The GPU the URL names; the one that was measured by default."""
    value = url.get(_GPU_PARAMETER)
    return value if value in service().gpu_names() else _DEFAULT_GPU


def _calibration(gpu: str) -> CalibrationView:
    """The calibration the URL names, if it is for the GPU; else the GPU's own."""
    wanted = url.get(url.CALIBRATION)
    for one in service().calibrations():
        if one.name == wanted and one.gpu == gpu:
            return one
    return built_in_calibration(gpu)


def _validate(records: Records, calibration: CalibrationView) -> Validation | None:
    """Hold the calibration against the records; what goes wrong is shown and no figure made up."""
    written_s = 0.0 if calibration.path is None else Path(calibration.path).stat().st_mtime
    try:
        return validation(records.id, calibration.path, written_s)
    except KareusError as error:
        show_error(error)
        return None


def _answer(
    gpu: str, calibration: CalibrationView, shown: Records | None, checked: Validation | None
) -> str:
    """The page's answer in a sentence."""
    if shown is not None and checked is not None:
        frame = parity_frame(_parity(checked))
        errors = frame["error_pct"].abs().groupby(frame["quantity"]).mean()
        what = "recorded plans" if shown.kind is RecordsKind.FRONTIERS else "configurations"
        return (
            f"The simulator misses {len(checked.points)} {what} by {fmt.percent(errors['time'])} "
            f"in time and {fmt.percent(errors['energy'])} in energy on average"
        )
    time = fmt.percent(100 * calibration.time_uncertainty)
    energy = fmt.percent(100 * calibration.energy_uncertainty)
    if calibration.extrapolated:
        return (
            f"{gpu} was never measured: times to about {time}, energies to about {energy} are "
            "an assumption"
        )
    return (
        f"On workloads it has not seen, the simulator of {gpu} is off by about {time} in time "
        f"and {energy} in energy"
    )


def _draw_choice(
    records: Sequence[Records], shown: Records | None, gpu: str, calibration: CalibrationView
) -> None:
    """Which records (or which GPU, without any), and which calibration."""
    choices = {BUILT_IN: f"Built-in calibration of {gpu}"}
    choices |= {one.name: one.name for one in service().calibrations() if one.gpu == gpu}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if shown is not None:
            by_id = {one.id: one for one in records}
            st.session_state[_RECORDS] = shown.id
            st.selectbox(
                "Records",
                list(by_id),
                key=_RECORDS,
                format_func=lambda one: f"{by_id[one].name}, {by_id[one].gpu}",
                label_visibility="collapsed",
                width=320,
                on_change=_apply,
                args=(url.RECORDS, _RECORDS),
            )
        else:
            st.session_state[_GPU] = gpu
            st.selectbox(
                "GPU",
                list(service().gpu_names()),
                key=_GPU,
                label_visibility="collapsed",
                width=320,
                on_change=_apply,
                args=(_GPU_PARAMETER, _GPU),
            )
        st.session_state[_CALIBRATION] = calibration.name
        st.selectbox(
            "Calibration",
            list(choices),
            key=_CALIBRATION,
            format_func=choices.__getitem__,
            label_visibility="collapsed",
            width=320,
            on_change=_apply,
            args=(url.CALIBRATION, _CALIBRATION),
        )
        if shown is not None:
            st.button(
                "Delete records",
                icon=":material/delete:",
                type="tertiary",
                key="delete_records",
                on_click=_delete,
                args=(shown.id,),
            )


def _apply(parameter: str, key: str) -> None:
    value = st.session_state[key]
    url.put(parameter, None if value == BUILT_IN else value)


def _delete(records: str) -> None:
    try:
        service().delete_records(records)
    except KareusError as error:
        st.session_state[_FAILURE] = str(error)
    url.put(url.RECORDS, None)


def _parity(checked: Validation) -> list[ParityPoint]:
    return [
        ParityPoint(
            label=point.label,
            method=point.method,
            recorded_time_s=point.recorded_time_s,
            predicted_time_s=point.predicted_time_s,
            recorded_energy_j=point.recorded_energy_j,
            predicted_energy_j=point.predicted_energy_j,
        )
        for point in checked.points
    ]


def _draw_parity(checked: Validation) -> None:
    """The picture: predicted over recorded; on the line they agree."""
    draw(
        parity_figure(parity_frame(_parity(checked)), palette=palette(), side=_SIDE),
        key="parity",
        alt_text="Predicted over recorded time and energy; on the diagonal they agree",
    )


def _draw_errors(checked: Validation) -> None:
    """The error table: per workload and method, or of the sweep."""
    figures = checked.figures
    st.markdown("**Mean absolute errors**")
    if checked.records.kind is RecordsKind.SWEEP:
        st.dataframe(
            pd.DataFrame(
                [
                    ("Time", figures["time_mape_pct"], figures["spearman_time"]),
                    ("Energy", figures["energy_mape_pct"], figures["spearman_energy"]),
                ],
                columns=["quantity", "error", "spearman"],
            ),
            key="sweep_errors",
            hide_index=True,
            height=table_height(2, at_most=2),
            placeholder=fmt.DASH,
            column_config={
                "quantity": st.column_config.TextColumn("Quantity"),
                "error": st.column_config.NumberColumn("Error (%)", format="%.2f"),
                "spearman": st.column_config.NumberColumn(
                    "Rank correlation", format="%.3f", help="Spearman's: 1 is the same order."
                ),
            },
        )
        return
    rows = [
        {
            "workload": (
                f"{row['model']} cp{row['cp']} tp{row['tp']}, "
                f"{row['microbatch_size']} × {row['seq_len']}"
            ),
            "method": _method(row["method"]),
            "plans": row["plans"],
            "time": row["time_mape_pct"],
            "energy": row["energy_mape_pct"],
        }
        for row in figures["rows"]
    ]
    rows += [
        {
            "workload": "All",
            "method": _method(method),
            "plans": sum(r["plans"] for r in figures["rows"] if r["method"] == method),
            "time": errors["time_mape_pct"],
            "energy": errors["energy_mape_pct"],
        }
        for method, errors in figures["overall"].items()
    ]
    st.dataframe(
        pd.DataFrame(rows),
        key="frontier_errors",
        hide_index=True,
        height=table_height(len(rows), at_most=14),
        column_config={
            "workload": st.column_config.TextColumn("Workload", width=270),
            "method": st.column_config.TextColumn("Method", width=190),
            "plans": st.column_config.NumberColumn("Plans"),
            "time": st.column_config.NumberColumn("Time (%)", format="%.2f"),
            "energy": st.column_config.NumberColumn("Energy (%)", format="%.2f"),
        },
    )
    ratio = figures["ratio"]
    if ratio["time_err_pct"] is not None:
        quiet(
            "What nanobatching gains over sequential execution at the fastest plans is predicted "
            f"to {fmt.percent(ratio['time_err_pct'])} in time and "
            f"{fmt.percent(ratio['energy_err_pct'])} in energy."
        )


def _method(name: str) -> str:
    """A method as the recorded files spell it, in words."""
    spelled = name.replace("_", "-")
    return METHOD_NAMES[Method(spelled)] if spelled in set(Method) else name


def _draw_stated(calibration: CalibrationView) -> None:
    """What the calibration says of itself."""
    st.markdown(f"**What the calibration states** · {escape(calibration.data)}")
    held_out = {error.method: error for error in calibration.held_out}
    rows = [
        {
            "method": _method(error.method),
            "fit_time": error.time_mape_pct,
            "fit_energy": error.energy_mape_pct,
            "out_time": held_out[error.method].time_mape_pct if error.method in held_out else None,
            "out_energy": held_out[error.method].energy_mape_pct
            if error.method in held_out
            else None,
        }
        for error in calibration.fit
    ]
    if rows:
        st.dataframe(
            pd.DataFrame(rows),
            key="stated_errors",
            hide_index=True,
            height=table_height(len(rows), at_most=4),
            placeholder=fmt.DASH,
            column_config={
                "method": st.column_config.TextColumn("Method", width="medium"),
                "fit_time": st.column_config.NumberColumn("Fitted, time (%)", format="%.2f"),
                "fit_energy": st.column_config.NumberColumn("Fitted, energy (%)", format="%.2f"),
                "out_time": st.column_config.NumberColumn("Held out, time (%)", format="%.2f"),
                "out_energy": st.column_config.NumberColumn("Held out, energy (%)", format="%.2f"),
            },
        )
        quiet(
            "Fitted: errors on the data it was fitted on. Held out: each workload predicted by a "
            "fit to all others."
        )
    quiet(
        escape(
            f"Bands on charts take {fmt.percent(100 * calibration.time_uncertainty)} for times and "
            f"{fmt.percent(100 * calibration.energy_uncertainty)} for energies "
            f"({calibration.uncertainty_source})."
        )
    )
    if calibration.warnings:
        quiet(plural(len(calibration.warnings), "warning") + " of the fit:")
        quiet("  \n".join(escape(warning) for warning in calibration.warnings[:6]))


guarded(show)()
