"""The view's state in the URL: what a pasted link must reproduce.

Streamlit drops the query parameters on a page switch; `enter` puts back those a page shares with
the ones visited before. The copy that makes this possible lives in the session, never in a cache
that users share.
"""

from collections.abc import Iterable

import streamlit as st

from kareus.core.plan import Method

_COPY = "url_copy"
STUDY = "study"
PLAN = "plan"
METHOD = "method"
METHODS = "methods"
SCOPE = "scope"
PINS = "pins"
JOB = "job"
PARTITION = "partition"
BASELINE = "baseline"
EXPLORATION = "exploration"
POINT = "point"
STUDIES = "studies"
SCALE = "scale"
RECORDS = "records"
CALIBRATION = "calibration"
_OF_A_STUDY = (PLAN, METHOD, PINS, PARTITION)


def enter(*names: str) -> None:
    """Start a page: remember the named parameters it came with, put back those it came without."""
    copy = _copy()
    for name in names:
        if name in st.query_params:
            copy[name] = st.query_params[name]
        elif name in copy:
            st.query_params[name] = copy[name]


def get(name: str) -> str | None:
    """Return a parameter's value; None where it is absent or empty."""
    return st.query_params.get(name) or None


def put(name: str, value: str | None) -> None:
    """Set a parameter, or remove it with None, and remember it for the next page."""
    copy = _copy()
    if value is None:
        copy.pop(name, None)
        if name in st.query_params:
            del st.query_params[name]
        return
    copy[name] = value
    if st.query_params.get(name) != value:
        st.query_params[name] = value


def get_number(name: str) -> int | None:
    """Return a parameter as a whole number; None where it is absent or not one."""
    value = get(name)
    return int(value) if value is not None and value.isascii() and value.isdigit() else None


def get_method(name: str, default: Method) -> Method:
    """Return a parameter as a method; the default where it is absent or unknown."""
    value = get(name)
    return Method(value) if value in set(Method) else default


def get_methods(default: Iterable[Method]) -> list[Method]:
    """Return the methods shown, in their fixed order; the default where none is named."""
    value = get(METHODS)
    named = set(value.split(",")) if value else set()
    return [method for method in Method if method in named] or list(default)


def get_pins() -> list[tuple[Method, int]]:
    """Return the pinned plans, at most three, oldest first; what is no plan is left out."""
    pins = []
    for pin in (get(PINS) or "").split(","):
        method, _, number = pin.rpartition("-")
        if method in set(Method) and number.isascii() and number.isdigit():
            pins.append((Method(method), int(number)))
    return list(dict.fromkeys(pins))[:3]


def put_pins(pins: Iterable[tuple[Method, int]]) -> None:
    """Set the pinned plans."""
    put(PINS, ",".join(plan_id(method, number) for method, number in pins) or None)


def plan_id(method: Method, number: int) -> str:
    """Return the stable name of a plan within its study, such as `kareus-14`."""
    return f"{method.value}-{number}"


def choose_study(study: str) -> None:
    """Set the study; what belonged to another study goes."""
    if get(STUDY) not in (None, study):
        copy = _copy()
        for name in _OF_A_STUDY:
            copy.pop(name, None)
            if name in st.query_params:
                del st.query_params[name]
    put(STUDY, study)


def carried(*names: str, **values: str) -> dict[str, str]:
    """Return the query parameters for a link to another page: those named, and the given values."""
    kept = {name: value for name in names if (value := get(name)) is not None}
    return kept | values


def _copy() -> dict[str, str]:
    """The open tab's copy of the last parameters seen."""
    copy: dict[str, str] = st.session_state.setdefault(_COPY, {})
    return copy
