"""Real processes over gloo: exact losses, the schedule followed on every rank, clocks released."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from kareus.core.pipeline import PipelineOrder
from kareus.core.workload import Recompute
from kareus.errors import JobError, NotFoundError
from kareus.train.checks import Nodes
from kareus.train.data import open_tokens
from kareus.train.launcher import launch
from kareus.train.log import clock_file, rank_file, read_log
from kareus.train.runtime import planned_instructions
from kareus.train.settings import TrainingSettings
from kareus.train.track import track
from kareus.workload.models import load_model
from tests.train.reference import reference_losses, reference_steps
from tests.train.sample import make_bundle, make_schedule, make_workload, tiny_model

NUM_STEPS = 20


def run(folder: Path, bundle: Path, **settings):
    arguments = {
        "bundle": bundle,
        "log": folder / "log",
        "device": "cpu",
        "steps": NUM_STEPS,
        "trace_every": 1,
        "threads": 1,
        **settings,
    }
    return launch(TrainingSettings(**arguments))


def relative_errors(losses, expected):
    assert len(losses) == len(expected)
    return max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))


def check_exact(report, workload, num_steps=NUM_STEPS, source=None):
    """Losses and gradient norms are those of one process without a schedule."""
    steps = reference_steps(workload, num_steps, source=source)
    assert relative_errors(report.losses, [loss for loss, _ in steps]) < 1e-4
    for log in read_log(report.log):
        norms = [record.gradient_norm for record in log.steps]
        assert relative_errors(norms, [norm for _, norm in steps]) < 1e-3


def test_pp2_tp2_trains_exactly_and_follows_its_schedule(tmp_path, standin, monkeypatch):
    monkeypatch.setenv("STANDIN_GPUS", "4")
    workload = make_workload(pp=2, tp=2)
    bundle = make_bundle(tmp_path, workload)
    report = run(tmp_path, bundle, clocks="apply")

    check_exact(report, workload)
    assert report.losses[-1] < report.losses[0]
    assert report.schedule_followed is True, report.mismatches
    assert report.steps == NUM_STEPS
    assert report.energy_j is not None and report.energy_j > 0

    schedule = make_schedule(workload)
    logs = read_log(report.log)
    assert [log.info.stage for log in logs] == [0, 0, 1, 1]
    for log in logs:
        # Written out here, independently of the report: order, clocks, launch points.
        planned = schedule.stages[log.info.stage].instructions
        for record in log.steps:
            assert [(i.name, i.microbatch, i.clock_mhz) for i in record.instructions] == [
                (i.direction.value, i.microbatch, i.clock_mhz) for i in planned
            ]
            for instruction, setting in zip(record.instructions, planned, strict=True):
                wanted = {
                    p.partition: {(p.launch_point.value, p.sm_allocation)}
                    for p in setting.partitions
                    if p.launch_point is not None
                }
                seen = {unit.unit: set(unit.launches) for unit in instruction.units}
                for partition, launches in wanted.items():
                    assert seen[partition] == launches
                if not wanted:
                    assert all(unit.startswith("seq_") for unit in seen)
        # What reached the GPU: every change of clock, in order; passed over only for a newer one.
        plan = planned_instructions(schedule, log.info.stage)
        handled = [e for e in log.clock_events if e.event in ("set", "kept", "superseded")]
        # The first clock is set at the start, and asked for again by the first instruction.
        asked = [instruction.clock_mhz for instruction in plan * NUM_STEPS]
        changes = [clock for clock, _ in itertools.groupby(asked)]
        assert [e.clock_mhz for e in handled[1:]] == changes
        num_set = sum(e.event == "set" for e in log.clock_events)
        gpu = standin.gpu(log.info.rank)
        assert gpu.num_sets == num_set > 1
        assert gpu.num_resets == 1
        assert gpu.locked_mhz == 0
        assert log.clock_events[-1].event == "released"

    tracked = track(bundle, report.log)
    assert tracked.schedule_followed is True
    assert len(tracked.steps) == NUM_STEPS
    assert tracked.drift.raised is None  # a CPU says nothing about the plan's GPU


def test_cp2_tp2_trains_exactly(tmp_path):
    workload = make_workload(cp=2, tp=2, num_microbatches=2)
    report = run(tmp_path, make_bundle(tmp_path, workload))
    check_exact(report, workload)
    assert report.schedule_followed is True, report.mismatches
    assert report.energy_j is None
    assert not clock_file(report.log, 0).exists()


def test_dp2_pp2_trains_exactly_with_tied_embeddings_and_one_microbatch(tmp_path):
    model = tiny_model(tied_embeddings=True)
    workload = make_workload(dp=2, pp=2, num_microbatches=1, model=model, recompute=Recompute.NONE)
    report = run(tmp_path, make_bundle(tmp_path, workload))
    check_exact(report, workload)
    assert report.schedule_followed is True, report.mismatches


def test_gpipe_trains_exactly_on_a_file_of_tokens(tmp_path):
    workload = make_workload(pp=2, num_microbatches=3, recompute=Recompute.NONE)
    bundle = make_bundle(tmp_path, workload, order=PipelineOrder.GPIPE)
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(400) % 7)
    report = run(tmp_path, bundle, data=path, steps=5)
    check_exact(report, workload, 5, open_tokens(path, workload, seed=0))
    assert report.schedule_followed is True, report.mismatches


def test_two_nodes_train_as_one(tmp_path):
    """Both on this machine: what matters is that ranks lie in the order of the nodes."""
    workload = make_workload(pp=2, num_microbatches=2)
    bundle = make_bundle(tmp_path, workload)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"

    def launch_node(rank: int):
        settings = TrainingSettings(
            bundle=bundle, log=tmp_path / "log", device="cpu", steps=3, threads=1
        )
        return launch(settings, nodes=Nodes(count=2, rank=rank, rendezvous=place))

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(launch_node, range(2)))
    for report in reports:
        check_exact(report, workload, 3)
        assert report.schedule_followed is True, report.mismatches


def kill_rank_when(log: Path, rank: int, *, step: int) -> None:
    """Kill a rank once it has logged a step."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        if rank_file(log, rank).exists():
            found = None
            with contextlib.suppress(NotFoundError):  # nobody has said who it is yet
                found = next((each for each in read_log(log) if each.info.rank == rank), None)
            if found is not None and found.steps and found.steps[-1].step >= step:
                os.kill(found.info.details["pid"], signal.SIGKILL)
                return
        time.sleep(0.02)
    raise AssertionError(f"rank {rank} never got to step {step}")


def test_a_killed_rank_ends_the_job_and_resume_goes_on_exactly(tmp_path, standin):
    workload = make_workload(pp=2, num_microbatches=2)
    bundle = make_bundle(tmp_path, workload)
    common = {"decay_steps": 40, "checkpoint_dir": tmp_path / "checkpoints", "trace_every": 0}
    log = tmp_path / "log"
    killed_s: list[float] = []

    def kill() -> None:
        kill_rank_when(log, 1, step=6)
        killed_s.append(time.monotonic())

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(
        JobError, match=r"rank 1 \(stage 1\) was killed by SIGKILL .*after step"
    ) as e:
        run(tmp_path, bundle, steps=1000, checkpoint_every=4, clocks="apply", **common)
    killer.join()
    assert time.monotonic() - killed_s[0] < 60
    assert "continue after step" in str(e.value)
    for rank in range(2):
        wait_for(lambda rank=rank: standin.gpu(rank).locked_mhz == 0)
        assert standin.gpu(rank).num_resets >= 1
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(log) in (p.info["cmdline"] or ())
    ]

    before = {record.step: record.loss for record in read_log(log)[0].steps}
    last = max(before)
    report = run(tmp_path, bundle, steps=last + 4, resume=True, **common)
    expected = reference_losses(workload, last + 4, decay_steps=40)
    assert relative_errors(report.losses, expected) < 1e-4
    # Steps trained again after the checkpoint are those of the broken run.
    after = {record.step: record.loss for record in read_log(log)[0].steps}
    assert [after[step] for step in before] == pytest.approx(list(before.values()), rel=1e-7)


def processes_of(log: Path):
    """Processes that train into a log."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(log) in (p.info["cmdline"] or ())]


def wait_for(condition, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ending_the_launcher_ends_its_processes_and_releases_the_clocks(tmp_path, standin, number):
    workload = make_workload(pp=2, num_microbatches=2)
    bundle = make_bundle(tmp_path, workload)
    log = tmp_path / "log"
    code = (
        "from pathlib import Path; from kareus.train.launcher import launch\n"
        "from kareus.train.settings import TrainingSettings\n"
        f"launch(TrainingSettings(bundle=Path({str(bundle)!r}), log=Path({str(log)!r}), "
        "device='cpu', clocks='apply', steps=100_000))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    wait_for(lambda: clock_file(log, 1).exists() and rank_file(log, 1).exists(), 120.0)
    wait_for(lambda: standin.gpu(1).num_sets > 1, 120.0)
    process.send_signal(number)
    process.wait(timeout=60)
    wait_for(lambda: not processes_of(log), 60.0)
    for rank in range(2):
        wait_for(lambda rank=rank: standin.gpu(rank).locked_mhz == 0)


def test_tiny_model_learns_within_ten_steps_with_the_defaults(tmp_path):
    workload = make_workload(model=load_model("tiny"), seq_len=64, num_microbatches=2)
    bundle = make_bundle(tmp_path, workload)
    report = launch(
        TrainingSettings(bundle=bundle, log=tmp_path / "log", device="cpu", steps=10, threads=1)
    )
    assert report.losses[-1] < report.losses[0] - 0.1
