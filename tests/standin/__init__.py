"""A machine with NVIDIA GPUs that exist in a file only: see nvml.c.

`pynvml` and `zeus` load the stand-in as they would load the driver's library: child processes by
`LD_LIBRARY_PATH`, this one because a library of that name is loaded already.
"""

import ctypes
import os
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("nvml.c")
# As in nvml.c: energy, two times, then locked clock, clock before, number of sets and of resets.
_GPU = struct.Struct("=3d4I")


def build_library(folder: Path) -> Path:
    """Compile the stand-in and return the folder it lies in."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    if not library.exists():
        unfinished = folder / f"{LIBRARY}.{os.getpid()}"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror",
             f"-Wl,-soname,{LIBRARY}", "-o", str(unfinished), str(_SOURCE), "-lm", "-lpthread"],
            check=True,
        )  # fmt: skip
        unfinished.replace(library)
    return folder


@dataclass(frozen=True)
class GpuState:
    locked_mhz: int
    num_sets: int
    num_resets: int


@dataclass(frozen=True)
class StandIn:
    """The machine of one test.

    Attributes:
        library_folder: Where the library lies.
        state: The file of its state.
    """

    library_folder: Path
    state: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """What a child process needs to see these GPUs."""
        paths = [str(self.library_folder), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            "STANDIN_STATE": str(self.state),
            "LD_LIBRARY_PATH": ":".join(path for path in paths if path),
        }

    def load(self) -> None:
        """Make this process find the stand-in under the library's name."""
        ctypes.CDLL(str(self.library_folder / LIBRARY), mode=ctypes.RTLD_GLOBAL)

    def gpu(self, index: int) -> GpuState:
        """Return what was done to a GPU."""
        data = self.state.read_bytes()[index * _GPU.size :] if self.state.exists() else b""
        if not data:
            return GpuState(0, 0, 0)
        *_, locked, _, sets, resets = _GPU.unpack_from(data)
        return GpuState(locked, sets, resets)
