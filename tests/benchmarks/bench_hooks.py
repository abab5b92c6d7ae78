"""What the hooks cost per instruction, the request for a clock included.

    python -m tests.benchmarks.bench_hooks

The clock changes at every instruction, so this is the worst case. The request goes down a real pipe
to a process that reads it.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import torch

from kareus.execute.parallel import ParallelGroups
from kareus.execute.stage import Stage
from kareus.train.clocks import REQUEST
from kareus.train.runtime import ScheduleRuntime, configure_stage
from tests.train.sample import make_schedule, make_workload

LIMIT_US = 50.0
NUM_STEPS = 400


def measure(num_steps: int = NUM_STEPS) -> dict[str, float]:
    """Return microseconds per instruction: median and 99th percentile over steps."""
    workload = make_workload(num_microbatches=16)
    schedule = make_schedule(workload, clocks_mhz=(900, 1410))
    device = torch.device("cpu")
    stage = Stage(
        workload, 0, groups=ParallelGroups.single(device), device=device, dtype=torch.float32
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", "import os\nwhile os.read(0, 4096): pass"], stdin=subprocess.PIPE
    )
    assert reader.stdin is not None
    pipe = reader.stdin.fileno()
    runtime = ScheduleRuntime(
        schedule,
        stage=0,
        configure=configure_stage(stage),
        request_clock=lambda clock_mhz: os.write(pipe, REQUEST.pack(clock_mhz)),
    )
    names = [planned.name for planned in runtime.plan]
    times_us = []
    for _ in range(num_steps):
        begin_s = time.perf_counter()
        runtime.on_step_begin()
        for name in names:
            runtime.on_instruction_begin(name)
            runtime.on_instruction_end(name)
        runtime.on_step_end()
        times_us.append((time.perf_counter() - begin_s) * 1e6 / len(names))
    reader.stdin.close()
    reader.wait()
    times_us.sort()
    return {
        "median_us": statistics.median(times_us),
        "p99_us": times_us[int(0.99 * len(times_us))],
        "limit_us": LIMIT_US,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure()) + "\n")
