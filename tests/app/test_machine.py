import io
import zipfile
from pathlib import Path

import pytest

from app.components.uploads import unpack
from kareus.errors import MeasurementError
from kareus.service import DoctorCheck
from tests.app.conftest import Opener, words
from tests.app.fake import FakeService


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        for name in names:
            out.writestr(name, "{}")
    return buffer.getvalue()


def test_what_is_missing_comes_with_its_remedy(fake: FakeService, open_page: Opener) -> None:
    page = open_page("machine")
    assert not page.exception
    said = words(page)
    assert "it lacks: GPU" in said
    assert "no NVIDIA driver" in said and "Use a machine with one" in said


def test_a_complete_machine_says_so(fake: FakeService, open_page: Opener) -> None:
    fake.doctor_checks = [DoctorCheck(name="GPU", state="ok", found="8 x A100")]
    assert "can measure and train" in words(open_page("machine"))


def test_a_machine_without_a_word_about_gpus_cannot_measure(
    fake: FakeService, open_page: Opener
) -> None:
    fake.doctor_checks = [DoctorCheck(name="Database", state="ok", found="writable")]
    assert "it lacks: GPU" in words(open_page("machine"))


def test_recorded_measurements_are_imported_and_offered(
    fake: FakeService, open_page: Opener
) -> None:
    page = open_page("machine")
    assert page.button(key="import").disabled
    content = archive("cp1-tp8-bs8-seq4096/fwd_attn/eval_results.jsonl")
    page.file_uploader(key="measurement_files").upload("logs.zip", content).run()
    page.button(key="import").click().run()
    assert fake.imported == [["cp1-tp8-bs8-seq4096/fwd_attn/eval_results.jsonl"]]
    assert "10 rows taken" in words(page)
    assert list(page.dataframe[0].value["Reason"]) == ["time is NaN"]


@pytest.mark.parametrize("name", ["../../outside.jsonl", "/etc/outside", "a/../../b"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(MeasurementError, match="leads out of its folder"):
        unpack("logs.zip", archive("good.jsonl", name), folder)
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"logs\.zip is not a \.zip"):
        unpack("logs.zip", b"PK nonsense", tmp_path)
