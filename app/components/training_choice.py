"""Which training run the Training page shows: a log and its bundle, found, typed or uploaded."""

from collections.abc import Callable, Sequence

import streamlit as st

from app import url
from app.backend import service
from app.components.frame import escape, show_error
from app.components.text import quiet
from app.wording import age
from kareus.errors import ConfigError, KareusError, NotFoundError
from kareus.service import TrainingLog

BUNDLE = "bundle"
LOG = "log"
THRESHOLD = "threshold"
DEFAULT_THRESHOLD_PCT = 10.0
_LOG_CHOICE = "training_log_choice"
_THRESHOLD_CHOICE = "training_threshold"
_THRESHOLDS = (2.0, 5.0, 10.0, 20.0, 50.0)


def choose_run() -> tuple[TrainingLog, str] | None:
    """Draw the choice and return the log and its bundle's path, or None with what to do drawn.

    Without a choice in the URL it is the newest log that knows its bundle.
    """
    logs = service().training_logs()
    wanted = url.get(LOG)
    shown = _shown(logs, wanted)
    # A bundle belongs to the log it came with.
    given = url.get(BUNDLE) if wanted is not None else None
    bundle = given or (None if shown is None else shown.bundle)
    if shown is None or bundle is None:
        _draw_start(logs, shown)
        return None
    listed = logs if shown.path in {one.path for one in logs} else [shown, *logs]
    by_path = {one.path: one for one in listed}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.session_state[_LOG_CHOICE] = shown.path
        st.selectbox(
            "Log",
            list(by_path),
            key=_LOG_CHOICE,
            format_func=lambda path: f"{by_path[path].name}, {age(by_path[path].updated)}",
            label_visibility="collapsed",
            width=360,
            on_change=_apply_log,
        )
        st.session_state[_THRESHOLD_CHOICE] = threshold_pct()
        st.selectbox(
            "Threshold",
            sorted({*_THRESHOLDS, threshold_pct()}),
            key=_THRESHOLD_CHOICE,
            format_func=lambda value: f"within {value:g}\u2009%",
            label_visibility="collapsed",
            width=150,
            on_change=_apply_threshold,
        )
        with st.popover("Other files", type="tertiary", icon=":material/folder_open:"):
            _draw_files("popover", shown.path, bundle)
    return shown, bundle


def threshold_pct() -> float:
    """Return the deviation in percent beyond which the alarm goes, as the URL says."""
    try:
        value = float(url.get(THRESHOLD) or "")
    except ValueError:
        return DEFAULT_THRESHOLD_PCT
    return value if 0 < value <= 1000 else DEFAULT_THRESHOLD_PCT


def _shown(logs: Sequence[TrainingLog], wanted: str | None) -> TrainingLog | None:
    """The log the URL names, else the newest that knows its bundle."""
    if wanted is None:
        return next((one for one in logs if one.bundle is not None), None)
    try:
        return service().training_log(wanted)
    except NotFoundError:
        url.put(LOG, None)
        url.put(BUNDLE, None)
        raise


def _draw_start(logs: Sequence[TrainingLog], shown: TrainingLog | None) -> None:
    """What to give, where nothing can be shown yet."""
    st.subheader(
        "Which bundle was it trained under?" if shown is not None else "No training run yet"
    )
    left, right = st.columns([1.5, 1], gap="medium")
    with left, st.container(border=True, gap="small"):
        if shown is not None:
            quiet(escape(f"Log {shown.name} does not say, or its bundle is no longer there."))
        _draw_files("start", "" if shown is None else shown.path, "")
    with right, st.container(border=True, gap="small"):
        st.markdown("**Train under a schedule**")
        quiet("Download a schedule from Frontier or Plan, then")
        st.code("kareus launch bundle.zip --steps 100", language="bash")
        quiet(
            "It logs to `kareus-logs/`; started in the folder this dashboard runs in, it appears "
            "here by itself. Without a GPU, add `--device cpu`."
        )
        for one in logs[:4]:
            st.button(
                escape(one.name),
                key=f"open_{one.path}",
                type="tertiary",
                icon=":material/history:",
                on_click=_open,
                args=(one.path, one.bundle),
            )


def _draw_files(place: str, log: str, bundle: str) -> None:
    """Fields for both: a path on the server, or files from here; what is left empty stays."""
    bundle_path = st.text_input(
        "Bundle on the server",
        key=f"{place}_bundle",
        placeholder=bundle or "/path/to/bundle.zip",
    ).strip()
    bundle_file = st.file_uploader("or a bundle from here", type="zip", key=f"{place}_zip")
    log_path = st.text_input(
        "Folder of the log on the server",
        key=f"{place}_log",
        placeholder=log or "/path/to/kareus-logs/RUN",
    ).strip()
    log_files = st.file_uploader(
        "or its files from here",
        type="jsonl",
        accept_multiple_files=True,
        key=f"{place}_files",
        help="rank-00000.jsonl, ... of every rank; clocks-00000.jsonl, ... if there are any.",
    )
    given = bool(bundle_path or bundle_file or log_path or log_files)
    if st.button(
        "Compare with the plan",
        type="primary",
        icon=":material/rule:",
        disabled=not given or not (log or log_path or log_files),
        width="stretch",
        key=f"{place}_compare",
    ):
        try:
            if log_files:
                files = [(file.name, file.getvalue()) for file in log_files]
                shown = service().add_training_log(files)
            else:
                shown = service().training_log(log_path or log)
            found = bundle_path
            if bundle_file is not None:
                found = service().add_bundle(bundle_file.name, bundle_file.getvalue())
            # A log knows its own bundle better than the page does.
            found = found or shown.bundle or bundle
            if not found:
                raise ConfigError(f"{shown.name} does not say its bundle: give it, too")
            _check(found, shown.path)
        except KareusError as error:
            show_error(error)
        else:
            _open(shown.path, found)
            st.rerun()


def _check(bundle: str, log: str) -> None:
    """Refuse what cannot be shown before it gets into the URL."""
    service().training_run(bundle, log)


def _open(log: str, bundle: str | None) -> None:
    url.put(LOG, log)
    url.put(BUNDLE, bundle)


def _apply_log() -> None:
    """Another run: its own bundle, if it knows it."""
    _open(st.session_state[_LOG_CHOICE], None)


def _apply_threshold() -> None:
    value = float(st.session_state[_THRESHOLD_CHOICE])
    url.put(THRESHOLD, None if value == DEFAULT_THRESHOLD_PCT else f"{value:g}")


Builder = Callable[[], bytes]


def trace_builder(bundle: str, log: str) -> Builder:
    """Return what builds the Perfetto file when it is asked for, outside the page's thread."""

    def build() -> bytes:
        return service().training_trace(bundle, log)[1]

    return build
