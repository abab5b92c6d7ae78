"""How fast the simulator is: `python -m tests.benchmarks.bench_simulator [--json]`.

`predict`: median milliseconds for the 720 configurations of `fwd_attn`. `measure`: the same with
noise, as measurements. `space`: every unit of an iteration, whole spaces.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

from kareus.simulate.model import predict
from kareus.simulate.source import SimulatorSource
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.partitions import build_partitions


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return 1000 * statistics.median(taken)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    workload = build_workload(
        WorkloadSettings(
            model="llama3.2-3b", gpu="A100-SXM4-40GB", tp=8, cp=1, pp=2, dp=1, microbatch_size=8
        )
    )
    source = SimulatorSource(workload, seed=0)
    units = build_partitions(workload)
    part = units["fwd_attn"]
    space = part.space()
    parameters = source.calibration.parameters
    figures = {
        "points": len(space),
        "predict_ms": milliseconds(
            lambda: predict(part, space, workload.gpu, parameters), arguments.repeats
        ),
        "measure_ms": milliseconds(lambda: list(source.measure(part, space)), arguments.repeats),
        "space_ms": milliseconds(
            lambda: [list(source.measure(unit, source.space(unit))) for unit in units.values()],
            max(1, arguments.repeats // 10),
        ),
    }
    if arguments.json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        for name, value in figures.items():
            sys.stdout.write(f"{name}: {value:.3g}\n")


if __name__ == "__main__":
    main()
