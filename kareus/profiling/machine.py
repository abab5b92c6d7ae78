"""What this machine offers to measuring and training, without starting either.

torch is looked at by its files, so that a page that asks does not have to import it.
"""

import importlib.metadata
import importlib.util
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kareus.core.workload import Workload
from kareus.device.nvml import Device, visible_devices
from kareus.device.preflight import Check, CheckState
from kareus.errors import NotFoundError
from kareus.workload.gpus import adapt_to_device, load_gpu

_LOGGER = logging.getLogger(__name__)
_GPU_BUILD = "install a CUDA build of torch (see pytorch.org), or measure with --device cpu"


def adapt_workload(workload: Workload, devices: Sequence[Device] | None = None) -> Workload:
    """Return the workload with the clocks that the machine's GPUs can be locked to.

    The catalogue's grid stays where all of it is supported; otherwise clocks are chosen among the
    supported ones, and a warning says so. Do this before partitions are built.

    Args:
        workload: The workload.
        devices: The GPUs to measure on; None for those CUDA shows.

    Raises:
        DeviceError: There is no GPU, or it lists no clock.
    """
    device = (visible_devices() if devices is None else devices)[0]
    try:
        found = load_gpu(device.name)
    except NotFoundError:
        found = None
    if found is not None and found.name != workload.gpu.name:
        _LOGGER.warning("planned for %s, but this machine has %s", workload.gpu.name, found.name)
    adapted = adapt_to_device(
        workload.gpu,
        supported_clocks_mhz=device.supported_clocks_mhz(),
        num_sms=workload.gpu.num_sms,
    )
    if adapted.clocks_mhz != workload.gpu.clocks_mhz:
        _LOGGER.warning(
            "%s does not support all clocks of the catalogue: %d clocks from %d to %d MHz are used",
            device.name,
            len(adapted.clocks_mhz),
            adapted.clocks_mhz[0],
            adapted.clocks_mhz[-1],
        )
    return replace(workload, gpu=adapted)


def torch_checks() -> tuple[Check, ...]:
    """Return which torch there is, and whether it can use GPUs and NCCL."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return (
            Check(
                name="torch",
                state=CheckState.MISSING,
                found="not installed",
                remedy="pip install 'torch>=2.9'",
            ),
        )
    version = importlib.metadata.version("torch")
    text = Path(found.origin).with_name("version.py").read_text()
    cuda = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    if cuda is None:
        return (
            Check(
                name="torch",
                state=CheckState.WARNING,
                found=f"{version}, built without CUDA",
                remedy=_GPU_BUILD,
            ),
        )
    return (
        Check(name="torch", state=CheckState.OK, found=f"{version}, CUDA {cuda[1]}"),
        _nccl_check(Path(found.origin).parent, cuda[1]),
    )


def _nccl_check(folder: Path, cuda: str) -> Check:
    """Whether torch's NCCL is there: a package of its own, or part of torch."""
    package = f"nvidia-nccl-cu{cuda.split('.')[0]}"
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if any((folder / "lib").glob("libnccl*")) or (folder / "lib/libtorch_cuda.so").exists():
            return Check(name="NCCL", state=CheckState.OK, found="part of torch")
        return Check(
            name="NCCL",
            state=CheckState.MISSING,
            found="not installed",
            remedy=f"pip install {package}",
        )
    return Check(name="NCCL", state=CheckState.OK, found=version)
