import pytest

from kareus.service import RecordsKind
from tests.app.conftest import Opener, parameter, words
from tests.app.fake import FakeService
from tests.app.fake_trust import calibration


def test_without_records_the_calibration_speaks_for_itself(
    fake: FakeService, open_page: Opener
) -> None:
    page = open_page("trust")
    assert not page.exception
    said = words(page)
    assert "off by about 1.7\u2009% in time and 2.3\u2009% in energy" in said
    assert "Check it on your own data" in said
    page.selectbox(key="trust_gpu").set_value("H100-SXM5-80GB").run()
    assert "H100-SXM5-80GB was never measured" in words(page)
    assert parameter(page, "gpu") == "H100-SXM5-80GB"


def test_uploaded_plans_are_compared(fake: FakeService, open_page: Opener) -> None:
    page = open_page("trust")
    assert page.button(key="add_records").disabled
    page.file_uploader(key="upload_plans").upload("mine.csv", b"model,cp").run()
    page.file_uploader(key="upload_clocks").upload("clocks.csv", b"model,cp").run()
    page.button(key="add_records").click().run()
    assert not page.exception and not page.error
    assert parameter(page, "records") == "r-mine"
    assert "misses 4 recorded plans by 1.0\u2009% in time and 2.0\u2009% in energy" in words(page)
    table = page.dataframe[0].value
    assert list(table["workload"]) == ["llama3.2-3b cp1 tp8, 8 × 4096", "All"]
    assert set(table["method"]) == {"Megatron-LM + Perseus"}


def test_a_bad_row_is_named_and_nothing_kept(fake: FakeService, open_page: Opener) -> None:
    page = open_page("trust")
    page.file_uploader(key="upload_plans").upload("mine.csv", b"nan").run()
    page.file_uploader(key="upload_clocks").upload("clocks.csv", b"x").run()
    page.button(key="add_records").click().run()
    assert "mine.csv, row 3" in words(page)
    assert fake.kept_records == []


def test_a_sweep_has_errors_and_rank_correlation(fake: FakeService, open_page: Opener) -> None:
    page = open_page("trust")
    page.selectbox(key="upload_kind").set_value("Partition sweep").run()
    page.file_uploader(key="upload_sweep").upload("sweep.csv", b"x").run()
    page.text_input(key="upload_clock").set_value("fast").run()
    page.button(key="add_records").click().run()
    assert "the sweep's clock is 'fast'" in words(page)
    page.text_input(key="upload_clock").set_value("1410").run()
    page.button(key="add_records").click().run()
    assert fake.kept_records[0].kind is RecordsKind.SWEEP
    assert "misses 4 configurations" in words(page)
    table = page.dataframe[0].value
    assert table["spearman"].isna().tolist() == [False, True]


def test_records_can_be_deleted(fake: FakeService, open_page: Opener) -> None:
    fake._keep("mine", RecordsKind.FRONTIERS, "A100-SXM4-40GB")
    page = open_page("trust", records="r-mine")
    page.button(key="delete_records").click().run()
    assert fake.kept_records == []
    assert "Check it on your own data" in words(page)


@pytest.mark.parametrize(("content", "kept"), [(b"{}", ["lab"]), (b"no", [])])
def test_a_calibration_is_kept_or_refused(
    fake: FakeService, open_page: Opener, content: bytes, kept: list[str]
) -> None:
    page = open_page("trust")
    page.segmented_control(key="upload_what").set_value("Calibration").run()
    page.file_uploader(key="upload_calibration").upload("lab.json", content).run()
    page.button(key="add_calibration").click().run()
    assert [one.name for one in fake.kept_calibrations] == kept
    assert bool(page.error) is not bool(kept)
    assert parameter(page, "calibration") == (kept[0] if kept else None)


def test_a_kept_calibration_is_offered_to_a_study_of_its_gpu(
    fake: FakeService, open_page: Opener
) -> None:
    fake.kept_calibrations = [calibration("lab"), calibration("other", gpu="H100-SXM5-80GB")]
    page = open_page("new_study")
    box = page.selectbox(key="form_calibration")
    assert box.options == ["Built-in", "lab"]
    box.set_value("lab").run()
    page.button(key="start").click().run()
    assert fake.submitted[0].calibration == "calibrations/lab.json"


def test_a_calibration_does_not_follow_to_another_gpu(fake: FakeService, open_page: Opener) -> None:
    fake.kept_calibrations = [calibration("lab")]
    page = open_page("new_study")
    page.selectbox(key="form_calibration").set_value("lab").run()
    page.selectbox(key="form_gpu").set_value("H100-SXM5-80GB").run()
    assert not page.exception
    page.button(key="start").click().run()
    assert fake.submitted[0].calibration is None
