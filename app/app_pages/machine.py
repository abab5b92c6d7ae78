"""Machine: what this machine can do, what it lacks, and recorded measurements from elsewhere."""

import tempfile
from pathlib import Path

import pandas as pd
import streamlit as st

from app.backend import doctor, service
from app.components import workload_form
from app.components.frame import escape, guarded, show_error
from app.components.tables import table_height
from app.components.text import quiet
from app.components.uploads import unpack
from app.wording import count, plural
from kareus.errors import KareusError
from kareus.service import DoctorCheck, ImportReport

_MARKS = {
    "ok": (":material/check_circle:", "green"),
    "warning": (":material/warning:", "orange"),
    "missing": (":material/cancel:", "red"),
}


def show() -> None:
    """Draw the page."""
    checks = doctor()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.subheader(escape(_answer(checks)), width="stretch")
        st.button("Look again", icon=":material/refresh:", key="look_again", on_click=doctor.clear)
    left, right = st.columns([1.7, 1], gap="large")
    with left:
        _draw_checks(checks)
    with right:
        _draw_import()


def _answer(checks: list[DoctorCheck]) -> str:
    """The page's answer."""
    if workload_form.missing_for_measuring() is None:
        return "This machine can measure and train"
    missing = [check.name for check in checks if check.state == "missing"]
    lack = ", ".join(missing) if missing else "GPU"
    return f"This machine plans with the simulator and recorded measurements; it lacks: {lack}"


def _draw_checks(checks: list[DoctorCheck]) -> None:
    """One line per check, with the remedy for each lack."""
    for check in checks:
        icon, color = _MARKS.get(check.state, _MARKS["warning"])
        name, found = st.columns([0.3, 0.7], gap="small")
        name.markdown(f":{color}[{icon}] **{escape(check.name)}**")
        remedy = (
            f"  \n:gray[{escape(check.remedy)}]" if check.remedy and check.state != "ok" else ""
        )
        found.markdown(escape(check.found) + remedy)


def _draw_import() -> None:
    """Take recorded measurements of the workload that New study describes."""
    with st.container(border=True):
        st.markdown("**Import recorded measurements**")
        settings = workload_form.request().settings
        quiet(
            escape(
                f"For {settings.model} on {settings.gpu}, tp{settings.tp} cp{settings.cp} "
                f"pp{settings.pp}, as New study says."
            )
        )
        file = st.file_uploader(
            "A .zip of the folder",
            type="zip",
            key="measurement_files",
            help="cp1-tp8-bs8-seq4096/fwd_attn/eval_results.jsonl and so on, at any depth.",
        )
        path = st.text_input("or its path on the server", live=True, key="measurement_path").strip()
        if st.button(
            "Import",
            icon=":material/upload:",
            disabled=file is None and not path,
            key="import",
            width="stretch",
        ):
            try:
                if file is None:
                    report = service().import_measurements(Path(path), settings)
                else:
                    with tempfile.TemporaryDirectory() as folder:
                        unpack(file.name, file.getvalue(), Path(folder))
                        report = service().import_measurements(Path(folder), settings)
            except KareusError as error:
                show_error(error)
            else:
                st.session_state[workload_form.DATASET] = report.dataset
                st.session_state["import_report"] = report
        if "import_report" in st.session_state:
            _draw_report(st.session_state["import_report"])


def _draw_report(report: ImportReport) -> None:
    """What became of the rows."""
    st.success(
        f"{plural(report.taken, 'row')} taken, {count(report.repeated)} of them repeats: "
        f"dataset {escape(report.dataset)}",
        icon=":material/check_circle:",
    )
    if report.refusals:
        quiet(f"{plural(report.refused, 'row')} refused")
        st.dataframe(
            pd.DataFrame(
                [(one.file, one.line, one.reason) for one in report.refusals],
                columns=["File", "Line", "Reason"],
            ),
            hide_index=True,
            height=table_height(len(report.refusals), at_most=5),
        )


guarded(show)()
