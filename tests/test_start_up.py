import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import kareus.cli", ("numpy", "pandas", "kareus.service")),
        ("import kareus.service", ("scipy", "sklearn", "numba", "torch", "zeus.device")),
        ("import kareus.execute.engine", ("torch._dynamo",)),
    ],
)
def test_heavy_libraries_wait_until_they_are_used(code: str, heavy: tuple[str, ...]) -> None:
    report = f"import sys; {code}; print([name for name in {heavy} if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == "[]", ran.stderr
