"""What this machine can do, and the remedy for what it lacks."""

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import kareus
from kareus.core.workload import Workload
from kareus.device.preflight import Check, preflight
from kareus.errors import KareusError
from kareus.profiling.machine import torch_checks
from kareus.service.views import DoctorCheck
from kareus.store import Store

# Those whose versions can change a result.
_PACKAGES = ("torch", "numpy", "scipy", "numba", "pymoo", "zeus")


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
    return [_database(database), _processor(), *_plain(torch_checks()), *measuring_checks()]


def measuring_checks(
    workload: Workload | None = None, *, set_clocks: bool = True
) -> list[DoctorCheck]:
    """Return what measuring needs of this machine's GPUs: set, read back and reset a clock, ...

    Args:
        workload: What would be measured; None for nothing in particular.
        set_clocks: Whether to try setting clocks; pages that ask often should not.
    """
    checks = (
        preflight(set_clocks=set_clocks)
        if workload is None
        else preflight(
            num_gpus=workload.parallelism.tp * workload.parallelism.cp,
            model=workload.gpu.name,
            clocks_mhz=workload.gpu.clocks_mhz,
            static_power_w=workload.gpu.static_power_w,
            static_power_measured=workload.gpu.static_power_measured,
            set_clocks=set_clocks,
        )
    )
    return _plain(checks)


def _plain(checks: Sequence[Check]) -> list[DoctorCheck]:
    """Checks of the machine as the service gives them."""
    return [
        DoctorCheck(
            name=check.name, state=check.state.value, found=check.found, remedy=check.remedy
        )
        for check in checks
    ]


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
