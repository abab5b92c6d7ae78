"""Uploads of the Trust page: recorded data to hold the simulator against, and calibrations."""

from collections.abc import Callable
from pathlib import PurePath

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app import url
from app.backend import service
from app.components.frame import escape, show_error
from app.components.text import quiet
from app.wording import plural
from kareus.errors import ConfigError, KareusError
from kareus.service import Records

_PLANS = "Planned iterations"
_SWEEP = "Partition sweep"
_DONE = "trust_upload_done"


def draw_uploads(gpu: str, *, records: bool) -> None:
    """Draw the place for files.

    Args:
        gpu: The GPU shown, which the fields start with.
        records: Whether to start with records, because there are none yet.
    """
    with st.container(border=True, gap="small"):
        st.markdown("**Check it on your own data**" if records else "**More data**")
        what = st.segmented_control(
            "What",
            ["Records", "Calibration"],
            key="upload_what",
            default="Records",
            required=True,
            label_visibility="collapsed",
        )
        if what == "Records":
            _draw_records(gpu)
        else:
            _draw_calibration()
        done = st.session_state.pop(_DONE, None)
        if done is not None:
            st.success(escape(done), icon=":material/check_circle:")


def _draw_records(gpu: str) -> None:
    """Take plans with their clocks, or a sweep; every row is checked before anything is kept."""
    kind = st.selectbox("Recorded", [_PLANS, _SWEEP], key="upload_kind")
    names = list(service().gpu_names())
    recorded_on = st.selectbox("On", names, index=names.index(gpu), key="upload_gpu")
    if kind == _PLANS:
        plans = st.file_uploader(
            "Plans (CSV)",
            key="upload_plans",
            help="Columns: model, cp, tp, microbatch_size, seq_len, method, plan, "
            "iteration_time_s, total_energy_j.",
        )
        clocks = st.file_uploader(
            "Their clocks (CSV)",
            key="upload_clocks",
            help="Columns: model, cp, tp, microbatch_size, seq_len, method, plan, stage, "
            "position, instruction, frequency_mhz.",
        )
        if _button(disabled=plans is None or clocks is None) and plans and clocks:
            _keep(
                lambda: service().add_frontier_records(
                    PurePath(plans.name).stem,
                    frontiers=_content(plans),
                    frequencies=_content(clocks),
                    gpu=recorded_on,
                )
            )
        return
    clock = st.text_input(
        "Its clock (MHz)", key="upload_clock", placeholder="top clock", live=True
    ).strip()
    sweep = st.file_uploader(
        "Sweep (CSV)",
        key="upload_sweep",
        help="Columns: overlap_start, overlap_end, comm_sm_number, comm_block_size, and per "
        "repeat 'N:time (s)' and 'N:rankK energy (J)'.",
    )
    if _button(disabled=sweep is None) and sweep:
        _keep(
            lambda: service().add_sweep_records(
                PurePath(sweep.name).stem,
                sweep=_content(sweep),
                gpu=recorded_on,
                clock_mhz=_clock(clock),
            )
        )


def _button(*, disabled: bool) -> bool:
    return st.button(
        "Compare with the simulator",
        icon=":material/rule:",
        disabled=disabled,
        width="stretch",
        key="add_records",
    )


def _keep(add: Callable[[], Records]) -> None:
    """Keep records and show them; what is wrong with a row is said in its words."""
    try:
        kept = add()
    except KareusError as error:
        show_error(error)
        return
    url.put(url.RECORDS, kept.id)
    st.rerun()


def _clock(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"the sweep's clock is {text!r}: give whole MHz, or nothing")
    return int(text)


def _draw_calibration() -> None:
    """Take a calibration file; it can then be chosen here and in New study."""
    file = st.file_uploader("Calibration (JSON)", key="upload_calibration")
    if st.button(
        "Keep calibration",
        icon=":material/upload:",
        disabled=file is None,
        width="stretch",
        key="add_calibration",
    ):
        assert file is not None, "the button is enabled with a file only"
        try:
            kept = service().add_calibration(*_content(file))
        except KareusError as error:
            show_error(error)
        else:
            url.put(url.CALIBRATION, kept.name)
            st.session_state[_DONE] = (
                f"{kept.name} is kept: choose it above, and in New study for {kept.gpu}."
            )
            st.rerun()
    found = service().calibrations()
    if found:
        names = ", ".join(one.name for one in found)
        quiet(escape(f"{plural(len(found), 'calibration')} kept: {names}"))
    else:
        quiet(
            "Fit one to your records with `kareus calibrate --frontiers CSV --frequencies CSV "
            "--gpu GPU --out FILE`."
        )


def _content(file: UploadedFile) -> tuple[str, bytes]:
    return file.name, file.getvalue()
