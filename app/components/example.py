"""The study a new user gets by pressing nothing but the offered defaults."""

import streamlit as st

from app import navigation, url
from app.backend import service
from app.components.text import quiet
from kareus.service import StudyRequest, WorkloadSettings

EXAMPLE_SETTINGS = WorkloadSettings(
    model="llama3.2-3b",
    gpu="A100-SXM4-40GB",
    tp=8,
    cp=1,
    pp=2,
    dp=1,
    microbatch_size=8,
    seq_len=4096,
    num_microbatches=8,
)
EXAMPLE = StudyRequest(settings=EXAMPLE_SETTINGS)


def offer_first_study() -> None:
    """Draw what stands where there is no study yet: what it would show, and one button."""
    with st.container(
        border=True, height=320, horizontal_alignment="center", vertical_alignment="center"
    ):
        st.subheader("Which schedule to run, and what it buys", text_alignment="center")
        st.markdown(
            "A study measures how clock, SM share and launch point act on time and energy, "
            "and plans the whole iteration from it. The example takes about a minute, needs no "
            "GPU, and ends with a schedule to download.",
            text_alignment="center",
            width=560,
        )
        quiet(
            "Llama 3.2 3B on 16 A100-SXM4-40GB: tp8, pp2, 8 microbatches of 8 × 4096 tokens, "
            "simulated",
            center=True,
        )
        with st.container(horizontal=True, horizontal_alignment="center"):
            if st.button(
                "Start the example study",
                type="primary",
                icon=":material/play_arrow:",
                key="example",
            ):
                start(EXAMPLE)
            st.page_link(
                navigation.NEW_STUDY.path, label="Set up your own", icon=navigation.NEW_STUDY.icon
            )


def start(request: StudyRequest) -> None:
    """Submit a study and go to where its job can be watched."""
    handle = service().submit(request)
    url.choose_study(handle.study)
    url.put(url.JOB, handle.job)
    st.switch_page(
        navigation.JOBS.path, query_params={url.JOB: handle.job, url.STUDY: handle.study}
    )
