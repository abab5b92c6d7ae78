from dataclasses import replace

import pytest

from kareus.core.measurement import SourceKind
from kareus.errors import ConfigError
from kareus.service import DoctorCheck, Finding, Severity, StudyRequest, Uncertainty
from kareus.service.views import DatasetView
from tests.app.conftest import Opener, words
from tests.app.fake import CREATED, SETTINGS, WORKLOAD, FakeService


def finding(field: str, severity: Severity, message: str) -> Finding:
    return Finding(field=field, severity=severity, message=message)


def test_the_defaults_start_a_study(fake: FakeService, open_page: Opener) -> None:
    page = open_page("new_study")
    assert not page.exception
    assert not page.button(key="start").disabled
    assert "16 GPUs, A100-SXM4-40GB" in words(page)
    page.button(key="start").click().run()
    request = fake.submitted[0]
    assert request.settings.microbatch_size == request.settings.num_microbatches == 8
    assert request.source is SourceKind.SIMULATOR
    assert "Measuring: 240 of 448" in words(page)


def test_an_error_stands_by_its_field_and_blocks_the_button(
    fake: FakeService, open_page: Opener
) -> None:
    fake.findings = (
        finding("tp", Severity.ERROR, "--tp 3 does not divide the 24 attention heads: use 1, 2"),
        finding("num_microbatches", Severity.WARNING, "--num-microbatches 1 is below the stages"),
        finding("model", Severity.NOTE, "embedding and head share their weights"),
    )
    page = open_page("new_study")
    said = words(page)
    assert "tp 3 does not divide the 24 attention heads" in said  # the form's words, no option
    assert "--tp" not in said
    assert "num microbatches 1 is below the stages" in said
    assert "share their weights" in said
    assert page.button(key="start").disabled
    assert ":material/block: tp 3 does not divide" in said  # the reason, under the button


def test_unknown_parts_of_the_summary_are_dashes(fake: FakeService, open_page: Opener) -> None:
    fake.findings = (finding("tp", Severity.ERROR, "tp is wrong: use 1"),)
    page = open_page("new_study")
    assert [metric.value for metric in page.metric] == ["–", "–"]


def test_what_is_typed_goes_to_the_service_as_it_is(fake: FakeService, open_page: Opener) -> None:
    seen: list[StudyRequest] = []
    assess = fake.assess
    fake.assess = lambda request: (seen.append(request), assess(request))[1]  # type: ignore[method-assign]
    page = open_page("new_study")
    page.text_input(key="form_tp").set_value("8x").run()
    page.text_input(key="form_stage_layers").set_value("15, 13").run()
    page.selectbox(key="form_budget").set_value("number").run()
    page.text_input(key="form_num_measurements").set_value("120").run()
    settings = seen[-1].settings
    assert settings.tp == "8x"
    assert settings.stage_layers == (15, 13)
    assert seen[-1].budget == "120"
    page.text_input(key="form_stage_layers").set_value("15,x").run()
    assert seen[-1].settings.stage_layers == (15, "x")


def test_measuring_without_a_gpu_says_what_is_missing(fake: FakeService, open_page: Opener) -> None:
    page = open_page("new_study")
    page.segmented_control(key="form_source").set_value(SourceKind.MEASURED).run()
    said = words(page)
    assert page.button(key="start").disabled
    assert "Measuring is not possible on this machine: GPU: no NVIDIA driver" in said
    assert "Use a machine with one" in said
    fake.doctor_checks = [DoctorCheck(name="GPU", state="ok", found="A100")]
    import streamlit as st

    st.cache_data.clear()
    assert not page.run().button(key="start").disabled


def dataset(name: str) -> DatasetView:
    return DatasetView(
        dataset=name,
        name="llama3.2-3b-runs",
        origin="/data/runs",
        workload=WORKLOAD,
        rows=1296,
        created=CREATED,
    )


def test_replay_offers_what_was_imported(fake: FakeService, open_page: Opener) -> None:
    fake.kept_datasets = [dataset("d2"), dataset("d1")]
    page = open_page("new_study")
    page.segmented_control(key="form_source").set_value(SourceKind.REPLAY).run()
    choice = page.selectbox(key="form_measurements")
    assert choice.value == "d2"  # the newest
    assert "llama3.2-3b-runs, tp8 cp1, 1\u2009296 rows" in choice.options[1]
    choice.set_value("d1").run()
    page.button(key="start").click().run()
    assert fake.submitted[0].measurements == "d1"


def test_replay_without_recorded_measurements_leads_to_their_import(
    fake: FakeService, open_page: Opener
) -> None:
    page = open_page("new_study")
    page.segmented_control(key="form_source").set_value(SourceKind.REPLAY).run()
    assert page.button(key="start").disabled
    assert "Choose recorded measurements, or import them first." in words(page)
    fake.findings = (
        finding("measurements", Severity.ERROR, "there are no recorded measurements 'x'"),
    )
    assert "no recorded measurements 'x'" in words(page.run())


@pytest.mark.parametrize(
    ("content", "words_shown"),
    [(b"not json", "is not a config.json"), (b"\xff\xfe\x00", "is not text in UTF-8")],
)
def test_an_upload_that_is_no_configuration_is_refused(
    fake: FakeService, open_page: Opener, content: bytes, words_shown: str
) -> None:
    page = open_page("new_study")
    page.file_uploader(key="config_upload").upload("config.json", content).run()
    assert words_shown in words(page)
    assert "uploaded-model" not in page.selectbox(key="form_model").options


def test_an_uploaded_configuration_is_chosen(fake: FakeService, open_page: Opener) -> None:
    page = open_page("new_study")
    page.file_uploader(key="config_upload").upload("config.json", b"{}").run()
    assert page.selectbox(key="form_model").value == "uploaded-model"


def test_an_extrapolated_simulator_says_how_far_it_can_be_trusted(
    fake: FakeService, open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    assessment = replace(
        fake.assess(StudyRequest(settings=SETTINGS)),
        extrapolated=True,
        uncertainty=Uncertainty(time=0.2, energy=0.25),
    )
    monkeypatch.setattr(fake, "assess", lambda request: assessment)
    said = words(open_page("new_study"))
    assert "**extrapolated**: times to about 20.0\u2009%, energies to about 25.0\u2009%" in said


def test_a_refusal_by_the_service_is_one_line(
    fake: FakeService, open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: StudyRequest) -> None:
        raise ConfigError("the disk is full: free some space")

    monkeypatch.setattr(fake, "submit", refuse)
    page = open_page("new_study")
    page.button(key="start").click().run()
    assert [error.value for error in page.error] == ["the disk is full\\: free some space"]


def test_the_fields_survive_a_page_switch(fake: FakeService, open_page: Opener) -> None:
    page = open_page("new_study")
    page.text_input(key="form_tp").set_value("4").run()
    page.switch_page("app_pages/machine.py").run()
    page.switch_page("app_pages/new_study.py").run()
    assert page.text_input(key="form_tp").value == "4"
