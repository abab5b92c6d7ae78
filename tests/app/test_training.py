from dataclasses import replace

import pandas as pd
import pytest

from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService
from tests.app.training_runs import ON_A_CPU, STRAGGLING


def test_without_a_run_it_says_how_to_make_one(fake: FakeService, open_page: Opener) -> None:
    page = open_page("training")
    assert not page.exception
    assert "No training run yet" in words(page)
    assert "kareus launch bundle.zip" in page.code[0].value
    assert page.button(key="start_compare").disabled


def test_a_straggling_run_is_answered_first(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(STRAGGLING)
    page = open_page("training")
    assert not page.exception and not page.error
    assert page.subheader[0].value.replace("\\", "") == (
        "Steps take 5.28\u2009s, 20.0\u2009% longer than planned; stage 1 straggles"
    )
    said = words(page)
    assert "Drift since step 2: time 20.0\u2009% longer than planned" in said
    assert "energy 10.0\u2009% more than planned" in said
    assert "Schedule followed on every rank" in said
    assert "2 of 4 beyond the threshold" in said
    assert page.metric[0].value == "5.28\u2009s"
    stages, instructions = (table.value for table in page.dataframe)
    assert list(stages["cause"].fillna("")) == ["", "straggling stage"]
    assert stages["energy_j"].isna().all()  # drawn as a dash, never 0
    assert list(instructions["instruction"]) == ["forward 0", "forward 1"] * 2
    assert instructions["time_s"].iloc[-1] == pytest.approx(240.0)  # ms
    assert pd.isna(instructions["achieved_clock_mhz"].iloc[0])
    assert len(page.get("vega_lite_chart")) == 1
    assert page.get("download_button")


def test_a_run_is_planned_with_and_leads_to_its_job(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(STRAGGLING)
    page = open_page("training")
    page.button(key="replan_training").click().run()
    assert not page.exception
    assert fake.replanned_runs == [("/bundles/b.zip", "/logs/run-1")]
    assert "s-replanned" in fake.studies_by_id


def test_on_a_cpu_nothing_is_compared_and_the_button_says_why(
    fake: FakeService, open_page: Opener
) -> None:
    fake.add_training_run(ON_A_CPU)
    page = open_page("training")
    said = words(page)
    assert "Steps take 270\u2009ms on a CPU; planned are 4.40\u2009s on A100-SXM4-40GB" in said
    assert "No drift alarm: trained on a CPU" in said
    assert page.button(key="replan_training").disabled
    assert "The run trained on a CPU, whose times" in said
    assert page.metric[1].value == "–"
    assert not [one for one in page.get("button_group") if one.key == "training_quantity"]


def test_energy_is_a_click_where_it_was_measured(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(STRAGGLING)
    page = open_page("training")
    page.segmented_control(key="training_quantity").set_value("energy").run()
    assert not page.exception
    assert "Energy of a step, all GPUs (kJ)" in page.get("vega_lite_chart")[0].proto.spec


def test_the_threshold_and_the_run_stay_in_the_url(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(ON_A_CPU)
    fake.add_training_run(STRAGGLING, "/logs/run-2")
    page = open_page("training")
    assert "straggles" in words(page)  # the newest
    page.selectbox(key="training_log_choice").set_value("/logs/run-1").run()
    assert parameter(page, "log") == "/logs/run-1"
    assert "on a CPU" in words(page)
    page.selectbox(key="training_threshold").set_value(20.0).run()
    assert parameter(page, "threshold") == "20"
    assert fake.thresholds[-1] == pytest.approx(0.2)


def test_a_log_without_its_bundle_asks_for_it(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(STRAGGLING, bundle=None)
    page = open_page("training", log="/logs/run-1")
    assert "Which bundle was it trained under?" in words(page)
    page.text_input(key="start_bundle").set_value("/bundles/b.zip").run()
    page.button(key="start_compare").click().run()
    assert not page.exception
    assert "straggles" in words(page)
    assert parameter(page, "bundle") == "/bundles/b.zip"


def test_files_are_uploaded(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(STRAGGLING, "/logs/rank-00000.jsonl+rank-00001.jsonl", bundle=None)
    page = open_page("training")
    page.file_uploader(key="start_zip").upload("b.zip", b"PK").run()
    files = page.file_uploader(key="start_files")
    files.upload("rank-00000.jsonl", b"{}").upload("rank-00001.jsonl", b"{}").run()
    page.button(key="start_compare").click().run()
    assert not page.exception and not page.error
    assert "straggles" in words(page)


def test_what_does_not_belong_together_is_refused(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(STRAGGLING)
    page = open_page("training")
    page.text_input(key="popover_bundle").set_value("/bundles/other.zip").run()
    page.button(key="popover_compare").click().run()
    assert "was not written under /bundles/other.zip" in words(page)
    assert parameter(page, "bundle") is None
    assert "straggles" in words(page)


def test_a_typed_log_brings_its_own_bundle_or_is_asked_for_it(
    fake: FakeService, open_page: Opener
) -> None:
    fake.add_training_run(STRAGGLING, "/logs/silent", bundle=None)
    fake.add_training_run(STRAGGLING, "/logs/run-1")
    page = open_page("training", log="/logs/silent")
    page.text_input(key="start_log").set_value("/logs/run-1").run()
    page.button(key="start_compare").click().run()
    assert parameter(page, "bundle") == "/bundles/b.zip"
    page = open_page("training", log="/logs/silent")
    page.text_input(key="start_log").set_value("/logs/silent").run()
    page.button(key="start_compare").click().run()
    assert "silent does not say its bundle" in words(page)


def test_a_log_that_is_gone_is_named(fake: FakeService, open_page: Opener) -> None:
    page = open_page("training", log="/logs/none")
    assert "/logs/none: holds no training log" in words(page)
    page.run()
    assert "No training run yet" in words(page)


def test_a_failed_run_says_so(fake: FakeService, open_page: Opener) -> None:
    fake.add_training_run(replace(STRAGGLING, ended=False, failure="no memory left"), "/logs/run-1")
    page = open_page("training")
    assert "failed: no memory left" in words(page)


def test_what_was_not_followed_is_shown(fake: FakeService, open_page: Opener) -> None:
    report = replace(
        STRAGGLING.report,
        schedule_followed=False,
        mismatches=("rank 0, step 3, position 0: planned forward of 0",),
    )
    fake.add_training_run(replace(STRAGGLING, report=report))
    assert "Schedule not followed: rank 0, step 3" in words(open_page("training"))
