"""What cannot train is refused before anything starts, with the remedy."""

import hashlib
import json
import re
import socket
import subprocess
import sys
import zipfile

import pytest

from kareus.core.pipeline import PipelineOrder, build_pipeline
from kareus.errors import ConfigError, DeviceError, KareusError, NotFoundError, ScheduleError
from kareus.schedule.bundle import write_bundle
from kareus.train.checks import JobShape, Nodes
from kareus.train.launcher import launch
from kareus.train.settings import TrainingSettings, training_settings
from kareus.workload.models import load_model
from tests.train.sample import make_bundle, make_schedule, make_workload

WORKLOAD = make_workload(pp=2, tp=2)


@pytest.fixture
def bundle(tmp_path):
    return make_bundle(tmp_path, WORKLOAD)


def refuse(bundle, tmp_path, message, *, kind=KareusError, nodes=None, job=None, **settings):
    """Launching is refused with such a message, and nothing was started."""
    arguments = {"bundle": bundle, "log": tmp_path / "log", "device": "cpu", **settings}
    with pytest.raises(kind, match=message) as error:
        launch(TrainingSettings(**arguments), nodes=nodes, job=job)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (JobShape(pp=4), "made for pp 2, this job has 4: plan and export"),
        (JobShape(num_microbatches=8), "made for num_microbatches 4, this job has 8"),
        (JobShape(tp=4), "made for tp 2, this job has 4"),
        (JobShape(cp=2), "made for cp 1, this job has 2"),
        (JobShape(dp=3), "made for dp 1, this job has 3"),
    ],
)
def test_bundle_for_another_job(bundle, tmp_path, job, message):
    refuse(bundle, tmp_path, message, kind=ScheduleError, job=job)


def test_tampered_bundle(bundle, tmp_path):
    folder = tmp_path / "folder"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    path = folder / "schedule.json"
    path.write_text(path.read_text().replace('"clock_mhz": 900', '"clock_mhz": 905', 1))
    refuse(
        folder, tmp_path, "schedule.json was altered .*export the plan again", kind=ScheduleError
    )
    # The manifest brought in line: the document's own checksum still tells.
    _update_manifest(folder)
    refuse(folder, tmp_path, "checksum .* does not match the contents", kind=ScheduleError)


def test_schedule_file_with_code_in_it(bundle, tmp_path):
    folder = tmp_path / "folder"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    path = next(folder.glob("freqs_*.py"))
    marker = tmp_path / "executed"
    path.write_text(f"__import__('pathlib').Path({str(marker)!r}).touch()\n")
    _update_manifest(folder)
    refuse(folder, tmp_path, path.name, kind=ScheduleError)
    assert not marker.exists()


def _update_manifest(folder):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "bytes": len(data),
        }
    path.write_text(json.dumps(manifest))


def test_no_bundle(tmp_path):
    refuse(tmp_path / "nothing.zip", tmp_path, "there is no such bundle", kind=ScheduleError)


def test_clock_the_gpu_lacks(bundle, tmp_path, standin, monkeypatch):
    monkeypatch.setenv("STANDIN_GPUS", "4")
    monkeypatch.setenv("STANDIN_CLOCKS", "210:1290:15")
    refuse(
        bundle,
        tmp_path,
        r"asks for 1410 MHz, which GPU 0 .* does not offer .*210 to 1290",
        kind=ScheduleError,
        clocks="apply",
    )
    assert standin.gpu(0).num_sets == 0


def test_no_gpu_at_all(bundle, tmp_path, standin, monkeypatch):
    monkeypatch.setenv("STANDIN_GPUS", "0")
    refuse(bundle, tmp_path, "or train with --device cpu", kind=DeviceError, device="cuda")


def test_fewer_gpus_than_processes(bundle, tmp_path, standin):
    refuse(
        bundle,
        tmp_path,
        "needs 4 GPUs, 2 are visible: use more nodes",
        kind=DeviceError,
        device="cuda",
    )


def test_fewer_processes_than_the_mesh_needs(bundle, tmp_path):
    refuse(
        bundle,
        tmp_path,
        "1 nodes with 2 processes each are 2, pp 2 x dp 1 x cp 1 x tp 2 needs 4",
        kind=ConfigError,
        nodes=Nodes(processes=2),
    )
    refuse(
        bundle,
        tmp_path,
        "needs 4 processes, which 3 nodes cannot share evenly",
        kind=ConfigError,
        nodes=Nodes(count=3, rendezvous="localhost:29500"),
    )


def test_nodes_that_cannot_meet(bundle, tmp_path):
    refuse(bundle, tmp_path, "give --rdzv-endpoint", kind=ConfigError, nodes=Nodes(count=2))
    refuse(
        bundle, tmp_path, "node 2 of 2", kind=ConfigError,
        nodes=Nodes(count=2, rank=2, rendezvous="localhost:29500"),
    )  # fmt: skip
    refuse(bundle, tmp_path, "use host:port", kind=ConfigError, nodes=Nodes(rendezvous="localhost"))


def test_port_in_use(bundle, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refuse(
            bundle,
            tmp_path,
            f"port {port} of this node cannot be used .*choose another port",
            kind=ConfigError,
            nodes=Nodes(rendezvous=f"localhost:{port}"),
        )


def test_pfo_server_absent(bundle, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    refuse(bundle, tmp_path, f"{url}: no pipeline frequency .*start it as", pfo_url=url)
    refuse(bundle, tmp_path, "not an address", kind=ConfigError, pfo_url="localhost")


def test_backend_of_another_kind(tmp_path, standin, monkeypatch):
    monkeypatch.setenv("STANDIN_GPUS", "4")
    schedule = make_schedule(WORKLOAD)
    backend = schedule.collective_backend.model_copy(update={"name": "mscclpp"})
    bundle = write_bundle(
        tmp_path / "other.zip", schedule.model_copy(update={"collective_backend": backend})
    )
    refuse(
        bundle, tmp_path, "those of mscclpp, training runs on nccl", kind=ScheduleError,
        device="cuda",
    )  # fmt: skip


def test_interleaved_order(tmp_path):
    schedule = make_schedule(make_workload(pp=2, num_microbatches=2))
    pipeline = build_pipeline(PipelineOrder.INTERLEAVED, 2, 2, num_chunks=2)
    assert pipeline.num_chunks == 2
    other = schedule.model_copy(update={"order": PipelineOrder.INTERLEAVED})
    bundle = write_bundle(tmp_path / "other.zip", other)
    refuse(bundle, tmp_path, "one model chunk per stage; plan with 1f1b", kind=ScheduleError)


def test_model_too_large_for_this_machine(tmp_path):
    workload = make_workload(model=load_model("llama3.3-70b"), pp=2, tp=2)
    bundle = make_bundle(tmp_path, workload)
    refuse(
        bundle, tmp_path, r"llama3.3-70b needs about \d+ GiB .* use --device cuda", kind=DeviceError
    )


def test_resume_from_nothing(bundle, tmp_path):
    refuse(
        bundle, tmp_path, "no complete checkpoint", kind=NotFoundError,
        resume=True, checkpoint_dir=tmp_path / "none",
    )  # fmt: skip


def test_log_of_another_run(bundle, tmp_path):
    log = tmp_path / "used"
    log.mkdir()
    (log / "rank-00000.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds the log of another run; choose another --log"):
        launch(TrainingSettings(bundle=bundle, log=log, device="cpu"))


def test_data_that_cannot_be_used(bundle, tmp_path):
    path = tmp_path / "tokens.bin"
    refuse(bundle, tmp_path, "not a readable file of tokens", kind=ConfigError, data=path)
    path.write_bytes(bytes(10))
    refuse(bundle, tmp_path, "holds 5 tokens, one sequence needs 17", kind=ConfigError, data=path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps = 0: use 1 or more"),
        ({"device": "tpu"}, "device = tpu: use cpu or cuda"),
        ({"learning_rate": float("nan")}, "learning_rate = nan: use a value above 0"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"resume": True}, "give --checkpoint-dir"),
        ({"checkpoint_every": 5}, "give --checkpoint-dir"),
    ],
)
def test_settings_that_cannot_be(tmp_path, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        TrainingSettings(**{"bundle": tmp_path, "log": tmp_path, "device": "cpu", **settings})


def test_launching_and_tracking_need_no_torch():
    code = (
        "import sys, kareus.train.launcher, kareus.train.track, kareus.train.clock_process\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("name", "value"), [("steps", "0"), ("learning_rate", "nan")])
def test_a_senseless_setting_is_named_and_nothing_else(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        training_settings({"bundle": "bundle", "log": "log", name: value})
    assert str(caught.value).startswith(f"{name} = {value}: use")
