"""What this machine can do, and the remedy for what it lacks."""

import importlib.metadata
import os
import platform
from pathlib import Path

import kareus
from kareus.errors import KareusError
from kareus.service.views import DoctorCheck
from kareus.store import Store

_PACKAGES = ("torch", "numpy", "highspy", "pymoo", "streamlit")


def versions() -> dict[str, object]:
    """Return the versions a study is stored with."""
    found: dict[str, object] = {"kareus": kareus.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def examine(database: Path | None) -> list[DoctorCheck]:
    """Return one check per thing a study or a training job may need."""
    return [_database(database), _processor()]


def _database(path: Path | None) -> DoctorCheck:
    try:
        with Store(path) as store:
            count = len(store.studies())
            return DoctorCheck(
                name="Database", state="ok", found=f"{store.path}, {count} studies", remedy=None
            )
    except KareusError as error:
        return DoctorCheck(
            name="Database",
            state="missing",
            found=str(error),
            remedy="set KAREUS_HOME to a folder on a local disk that you may write to",
        )


def _processor() -> DoctorCheck:
    return DoctorCheck(
        name="Processor",
        state="ok",
        found=f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    )
