"""Where the published reference data lies, for the tests that check against it."""

import os
from pathlib import Path

import pytest

_BESIDE_CHECKOUT = Path(__file__).parents[2] / "shared" / "data"


def reference_data(name: str) -> Path:
    """Return the path of a reference file; skip the test where it is absent."""
    folder = Path(os.environ.get("KAREUS_REFERENCE_DATA", _BESIDE_CHECKOUT))
    path = folder / name
    if not path.exists():
        pytest.skip(
            f"reference data file {path} is absent: set KAREUS_REFERENCE_DATA to its folder"
        )
    return path
