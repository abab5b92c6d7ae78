"""Checks the engine and its measurements on a machine with one NVIDIA GPU; changes no clock.

    python -m tests.gpu.device_check --out report.json

Takes at most five minutes and writes a JSON report: the machine, the period of its energy counter,
partitions at tp = 1 with energy from the counter beside the integral of power, what the engine adds
to the plain block, and how much of a copy hides behind computation on another stream. Where there
is no GPU it says so and ends well. `--rehearse` runs every step in small on the processor.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kareus.core.configuration import Configuration
from kareus.core.workload import Workload
from kareus.device.monitor import DeviceMonitor
from kareus.device.nvml import Device, driver_version, visible_devices
from kareus.device.preflight import preflight
from kareus.errors import DeviceError, KareusError
from kareus.execute.block import Block, BlockShape, rotary_table
from kareus.execute.dropout import Dropout
from kareus.execute.parallel import ParallelGroups
from kareus.execute.partition_runner import PartitionRunner
from kareus.profiling.window import Synchroniser, measure_window
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.gpus import load_gpu

LIMIT_S = 300.0
_RESERVE_S = 30.0
_COUNTER_S = 2.0
_ALONE = Synchroniser(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """What every step works with."""

    device: torch.device
    gpu: Device | None
    workload: Workload
    dtype: torch.dtype
    window_s: float
    cooldown_s: float
    copy_bytes: int
    matrix_size: int

    def window(self, run: Callable[[], object]) -> dict[str, Any]:
        """Measure a function that is executed again and again."""
        time.sleep(self.cooldown_s)
        reading = measure_window(
            lambda: (run(), None)[1],
            device=self.device,
            synchroniser=_ALONE,
            warmup_s=self.window_s / 4,
            window_s=self.window_s,
            monitor=DeviceMonitor(self.gpu) if self.gpu is not None else None,
        )
        figures: dict[str, Any] = {
            "time_s": reading.time_s,
            "time_spread_s": reading.time_spread_s,
            "executions": reading.num_executions,
            "energy_j": None,
        }
        window = reading.window
        if window is not None:
            energy_j = window.energy_j
            figures |= {
                "energy_j": energy_j / reading.num_executions if energy_j is not None else None,
                "energy_source": window.energy_source.value,
                "power_w": energy_j / window.duration_s if energy_j is not None else None,
                "integral_over_counter": window.power_integral_j / energy_j
                if window.power_integral_j is not None and energy_j is not None
                else None,
                "achieved_clock_mhz": window.achieved_clock_mhz,
                "temperature_c": window.temperature_c,
                "throttle_reasons": list(window.throttle_reasons),
                "flags": list(window.flags),
            }
        return figures


def machine(check: Check) -> dict[str, Any]:
    """Return what is there."""
    found: dict[str, Any] = {"torch": torch.__version__, "python": platform.python_version()}
    if check.device.type == "cuda":
        properties = torch.cuda.get_device_properties(check.device)
        found |= {
            "device": properties.name,
            "num_sms": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    if check.gpu is not None:
        clocks_mhz = check.gpu.supported_clocks_mhz()
        found |= {
            "driver": driver_version(),
            "nvml_device": check.gpu.name,
            "power_limit_w": check.gpu.power_limit_w(),
            "clocks_mhz": [clocks_mhz[0], clocks_mhz[-1], len(clocks_mhz)],
            "preflight": [
                dataclasses.asdict(each) for each in preflight(num_gpus=1, set_clocks=False)
            ],
        }
    return found


def counter(check: Check) -> dict[str, Any]:
    """Return how often the energy counter moves, while idle."""
    if check.gpu is None:
        return {"period_s": None}
    moments_s, last_j, started_s = [], check.gpu.energy_j(), time.monotonic()
    first_j = last_j
    while time.monotonic() - started_s < _COUNTER_S:
        now_j = check.gpu.energy_j()
        if now_j != last_j:
            moments_s.append(time.monotonic())
            last_j = now_j
        time.sleep(0.001)
    steps_s = [later - earlier for earlier, later in itertools.pairwise(moments_s)]
    return {
        "period_s": statistics.median(steps_s) if steps_s else None,
        "idle_power_w": (last_j - first_j) / _COUNTER_S,
        "idle_power_reading_w": check.gpu.power_w(),
    }


def partitions(check: Check) -> dict[str, Any]:
    """Return every unit of the workload, at whatever clock the GPU chooses."""
    runner = PartitionRunner(
        check.workload,
        groups=ParallelGroups.single(check.device),
        device=check.device,
        dtype=check.dtype,
    )
    figures = {}
    for name, partition in runner.partitions.items():
        run = runner.prepare(name)
        configuration = Configuration(clock_mhz=partition.clocks_mhz[-1])
        figures[name] = check.window(lambda run=run, c=configuration: run(c))
    runner.release()
    return figures


def overhead(check: Check, measured: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine's sequential parts take beyond the plain block, in percent."""
    shape = BlockShape(model=check.workload.model, seq_len=check.workload.seq_len)
    block = Block(shape, layer=0, seed=0, dtype=check.dtype, device=check.device)
    rotary = rotary_table(shape, dtype=torch.float32, device=check.device)
    dropout = Dropout(rate=0.0, seed=0)
    size = (check.workload.microbatch_size, shape.seq_len, shape.model.hidden_size)
    hidden = torch.randn(size, device=check.device, dtype=check.dtype, requires_grad=True)
    output = block(hidden, rotary, dropout)
    gradient = torch.randn_like(output)
    inputs = [hidden, *block.parameters()]
    plain = {
        "forward": check.window(lambda: block(hidden, rotary, dropout)),
        "backward": check.window(
            lambda: torch.autograd.grad(output, inputs, gradient, retain_graph=True)
        ),
    }
    figures: dict[str, Any] = {}
    for direction, parts in (
        ("forward", ("seq_fwd_attn", "seq_fwd_mlp")),
        ("backward", ("seq_bwd_mlp", "seq_bwd_attn")),
    ):
        engine_s = sum(measured[part]["time_s"] for part in parts)
        plain_s = plain[direction]["time_s"]
        figures[direction] = {
            "engine_s": engine_s,
            "plain_s": plain_s,
            "overhead_pct": 100 * (engine_s / plain_s - 1),
        }
    return figures


def overlap(check: Check) -> dict[str, Any]:
    """Return how much of a copy hides behind matrix products on another stream."""
    size = check.matrix_size
    a = torch.randn(size, size, device=check.device, dtype=check.dtype)
    source = torch.empty(check.copy_bytes, dtype=torch.uint8, device=check.device)
    target = torch.empty_like(source)
    host = torch.empty(check.copy_bytes, dtype=torch.uint8)
    on_gpu = check.device.type == "cuda"
    if on_gpu:
        host = host.pin_memory()
    side = torch.cuda.Stream(check.device, priority=-1) if on_gpu else None

    def compute() -> None:
        for _ in range(8):
            torch.mm(a, a)

    def beside(copy: Callable[[], object]) -> None:
        if side is None:
            compute()
            copy()
            return
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            copy()
        compute()
        main.wait_stream(side)

    figures: dict[str, Any] = {"streams": on_gpu}
    compute_s = check.window(compute)["time_s"]
    for name, copy in (
        ("device-to-device", lambda: target.copy_(source, non_blocking=True)),
        ("device-to-host", lambda: host.copy_(source, non_blocking=True)),
    ):
        copy_s = check.window(copy)["time_s"]
        both_s = check.window(lambda copy=copy: beside(copy))["time_s"]
        figures[name] = {
            "compute_s": compute_s,
            "copy_s": copy_s,
            "together_s": both_s,
            "hidden_share": (compute_s + copy_s - both_s) / min(compute_s, copy_s),
        }
    return figures


def run_all(check: Check, *, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Return the report; a step that fails, or for which there is no time, says so."""
    started_s = time.monotonic()
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "on_gpu": check.device.type == "cuda",
        "clocks_changed": False,
        "workload": {
            "model": check.workload.model.name,
            "microbatch_size": check.workload.microbatch_size,
            "seq_len": check.workload.seq_len,
            "dtype": str(check.dtype).removeprefix("torch."),
        },
        "window_s": check.window_s,
    }
    steps: tuple[tuple[str, Callable[[], dict[str, Any]]], ...] = (
        ("machine", lambda: machine(check)),
        ("counter", lambda: counter(check)),
        ("partitions", lambda: partitions(check)),
        ("overhead", lambda: overhead(check, report["partitions"])),
        ("overlap", lambda: overlap(check)),
    )
    for name, step in steps:
        if time.monotonic() - started_s > limit_s - _RESERVE_S:
            report[name] = {"error": "no time was left"}
            continue
        try:
            report[name] = step()
        except (KareusError, RuntimeError, KeyError, OSError) as error:
            traceback.print_exc()
            report[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    report["seconds"] = round(time.monotonic() - started_s, 1)
    return report


def make_check(*, rehearse: bool, window_s: float, cooldown_s: float) -> Check | None:
    """Return what to check on; None where there is no GPU."""
    gpu = None
    try:
        gpu = visible_devices()[0]
    except DeviceError as error:
        sys.stderr.write(f"no NVIDIA GPU: {error}\n")
    on_gpu = torch.cuda.is_available()
    if not rehearse and not (on_gpu and gpu is not None):
        return None
    name = "A100-SXM4-40GB"
    if gpu is not None:
        try:
            name = load_gpu(gpu.name).name
        except KareusError as error:
            sys.stderr.write(f"{error}; its sizes are taken as those of {name}\n")
    small = not on_gpu
    if small:
        torch.set_num_threads(1)  # What is too small to share is slower shared.
    workload = build_workload(
        WorkloadSettings(
            model="tiny" if small else "llama3.2-3b",
            gpu=name,
            tp=1,
            cp=1,
            pp=1,
            dp=1,
            microbatch_size=2 if small else 4,
            seq_len=64 if small else 4096,
            num_microbatches=1,
        )
    )
    return Check(
        device=torch.device("cuda", 0) if on_gpu else torch.device("cpu"),
        gpu=gpu,
        workload=workload,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        window_s=window_s,
        cooldown_s=cooldown_s,
        copy_bytes=1 << 20 if small else 1 << 28,
        matrix_size=64 if small else 8192,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the check and write its report."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.device_check", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="where the report goes")
    parser.add_argument("--rehearse", action="store_true", help="run in small without a GPU")
    parser.add_argument("--window", type=float, default=3.0, metavar="S")
    parser.add_argument("--cooldown", type=float, default=1.0, metavar="S")
    options = parser.parse_args(arguments)
    check = make_check(
        rehearse=options.rehearse, window_s=options.window, cooldown_s=options.cooldown
    )
    if check is None:
        report: dict[str, Any] = {
            "on_gpu": False,
            "verdict": "no NVIDIA GPU on this machine: nothing was measured",
        }
    else:
        report = run_all(check)
        failed = [
            name for name, part in report.items() if isinstance(part, dict) and "error" in part
        ]
        report["verdict"] = f"failed: {', '.join(failed)}" if failed else "complete"
    options.out.write_text(json.dumps(report, indent=2) + "\n")
    sys.stdout.write(f"{report['verdict']}\n")
    return 1 if report["verdict"].startswith("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
