"""Cancelling and resuming a job, and what went wrong with it."""

import streamlit as st

from app.backend import service
from kareus.errors import KareusError

_FAILURE = "job_failure"


def cancel_job(job: str) -> None:
    """Ask a job to stop; what goes wrong is kept for the next drawing."""
    try:
        service().cancel_job(job)
    except KareusError as error:
        st.session_state[_FAILURE] = str(error)


def resume_job(job: str) -> None:
    """Start a job again; what goes wrong is kept for the next drawing."""
    try:
        service().resume_job(job)
    except KareusError as error:
        st.session_state[_FAILURE] = str(error)


def take_failure() -> str | None:
    """Return what went wrong with the last action, once."""
    failure: str | None = st.session_state.pop(_FAILURE, None)
    return failure
