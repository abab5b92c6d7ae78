"""The real Zeus server, in an environment of its own: it pins a pydantic we cannot have.

The environment lies in the checkout (`.venv-pfo`), is made when it is first needed, which takes
about a minute, and is used again as long as the versions stay the same.
"""

import fcntl
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".venv-pfo"
PYTHON = FOLDER / "bin" / "python"


def server_python() -> Path:
    """Return the Python of the server's environment, made if need be."""
    # torch as here: by itself zeus[pfo-server] would draw in the newest and largest build.
    torch = importlib.metadata.version("torch").partition("+")[0]
    packages = [f"torch=={torch}", f"zeus[pfo-server]=={importlib.metadata.version('zeus')}",
                "aiofiles"]  # fmt: skip
    stamp, wanted = FOLDER / "kareus-packages.json", json.dumps(packages)
    with (FOLDER.parent / ".venv-pfo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(FOLDER, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
            # Most of the time goes into compiling what is never imported.
            subprocess.run(
                [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-compile", *packages],
                check=True,
            )
            stamp.write_text(wanted)
    return PYTHON


@contextmanager
def running_server(python: Path, solution: Path, folder: Path) -> Iterator[str]:
    """Serve a frequency file on loopback and give the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {
        **os.environ,
        "ZEUS_PFO_SCHEDULER": "PointSolution3D",
        "ZEUS_PFO_SCHEDULER_ARGS": json.dumps({"solution_path": str(solution)}),
        "ZEUS_PFO_DUMP_DIR": str(folder / "dump"),
        "ZEUS_PFO_LOG_LEVEL": "INFO",
    }
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(python), "-m", "uvicorn", "zeus.optimizer.pipeline_frequency.server.router:app",
             "--host", "127.0.0.1", "--port", str(port)],
            env=environment, cwd=folder, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        _wait(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"{url}/openapi.json", timeout=5):
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"the server did not start: {log.read_text()}") from None
        time.sleep(0.1)
