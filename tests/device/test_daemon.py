"""Clocks through zeusd: a daemon of the test's own that speaks what zeus' client asks."""

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from kareus.device import nvml
from kareus.device.clocks import ClockKeeper
from kareus.device.preflight import CheckState, preflight
from tests.standin import StandIn


class _Handler(BaseHTTPRequestHandler):
    def address_string(self) -> str:
        return "client"

    def log_message(self, *args: object) -> None: ...

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        gpus = [{"id": i, "name": "NVIDIA A100-SXM4-40GB"} for i in (0, 1)]
        groups = ["gpu-read", "gpu-control"]
        self._answer(200, {"gpus": gpus, "cpus": [], "enabled_api_groups": groups,
                           "auth_required": False})  # fmt: skip

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.server.calls.append((url.path, asked.get("gpu_ids"), asked.get("max_clock_mhz")))
        if self.server.refuses:
            self._answer(403, "not allowed")
        else:
            self._answer(200, {})


class Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    calls: list[tuple[str, str | None, str | None]]
    refuses = False


@pytest.fixture
def daemon(standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon on a machine where this process itself may not set clocks."""
    monkeypatch.setenv("STANDIN_NO_PERMISSION", "1")
    path = tmp_path / "zeusd.sock"
    with Daemon(str(path), _Handler) as server:
        server.calls = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_daemon_sets_and_resets_what_this_process_may_not(daemon: Daemon) -> None:
    device = nvml.find_devices()[1]
    assert nvml.uses_daemon()
    assert device.energy_j() > 0
    with ClockKeeper([device]) as keeper:
        keeper.lock(900)
        assert daemon.calls == [("/gpu/set_gpu_locked_clocks", "1", "900")]
    assert daemon.calls[1:] == [("/gpu/reset_gpu_locked_clocks", "1", None)]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_daemon_that_refuses_fails_the_preflight(daemon: Daemon) -> None:
    daemon.refuses = True
    checks = {check.name: check for check in preflight(num_gpus=1, settle_s=0.1)}
    lock = checks["GPU 0 clock lock"]
    assert lock.state is CheckState.MISSING
    assert "set_gpu_locked_clocks" in lock.found or "reset" in lock.found
