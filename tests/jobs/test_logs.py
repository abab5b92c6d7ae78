import logging
from pathlib import Path

from kareus.jobs.logs import JsonLines, tail


def _line(message: str, *, failing: bool = False) -> str:
    formatter = JsonLines(job="study-1", study="llama")
    try:
        if failing:
            raise ValueError("broken")
        info = None
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("kareus.x", logging.INFO, "f.py", 1, message, (), info)
    return formatter.format(record)


def test_records_and_printed_lines_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(
        "\n".join(
            [_line("first\nsecond ü"), "printed by a library", "[1]", _line("x", failing=True)]
        )
    )
    lines = tail(path)
    assert lines[0].endswith(" info: first\nsecond ü")
    assert lines[1:3] == ["printed by a library", "[1]"]
    assert lines[-1] == "ValueError: broken"


def test_only_the_last_lines_are_returned(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(f"{index}\n" for index in range(1000)))
    assert tail(path, num_lines=3) == ["997", "998", "999"]


def test_a_log_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "absent.log") == []


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"a\xff\xfe\n" + _line("good").encode() + b"\n")
    assert tail(path)[1].endswith("good")
