"""Whole studies on the simulator: what they gain, how long they take, what a small budget costs.

    python -m tests.benchmarks.bench_studies gains --frontiers published_frontiers.csv
    python -m tests.benchmarks.bench_studies speed
    python -m tests.benchmarks.bench_studies budget

`gains` prints, for every recorded workload, what Kareus and nanobatching gain over Megatron-LM +
Perseus: recorded plans beside simulated ones. `speed` runs the two reference studies in processes
of their own and prints wall time and peak memory. `budget` compares the frontier of the `fast` and
`published` budgets with that of the exhaustive search, energy at equal time.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kareus.core.plan import Method
from kareus.service import PlanSummary, Service, StudyRequest, WorkloadSettings
from kareus.workload.gpus import load_gpu
from tests.benchmarks.gains import gains, gains_table

GPU = "A100-SXM4-40GB"
REFERENCE = {
    "llama3.2-3b tp8": WorkloadSettings(
        model="llama3.2-3b", gpu=GPU, tp=8, pp=2, stage_layers=(15, 13)
    ),
    "llama3.2-3b cp2 tp4": WorkloadSettings(
        model="llama3.2-3b", gpu=GPU, tp=4, cp=2, pp=2, stage_layers=(15, 13)
    ),
}
BUDGET_WORKLOADS = {
    **REFERENCE,
    "qwen3-1.7b tp8": WorkloadSettings(
        model="qwen3-1.7b", gpu=GPU, tp=8, pp=2, stage_layers=(15, 13)
    ),
    "qwen3-1.7b tp8 microbatch 16": WorkloadSettings(
        model="qwen3-1.7b", gpu=GPU, tp=8, pp=2, microbatch_size=16, stage_layers=(15, 13)
    ),
}


def points(plans: Sequence[PlanSummary]) -> list[tuple[float, float]]:
    """Return (iteration time in s, pipeline energy in J) of plans."""
    return [(plan.iteration_time_s, plan.pipeline_energy_j) for plan in plans]


def excess_energy_pct(plans: Sequence[PlanSummary], reference: Sequence[PlanSummary]) -> float:
    """Return how much more energy a frontier needs at equal time, mean over the common times, in %.

    Between neighbouring plans both frontiers are taken as straight.
    """
    ours, theirs = np.array(points(plans)), np.array(points(reference))
    low = max(ours[0, 0], theirs[0, 0])
    high = min(ours[-1, 0], theirs[-1, 0])
    times = np.linspace(low, high, 200)
    energies = np.interp(times, ours[:, 0], ours[:, 1])
    least = np.interp(times, theirs[:, 0], theirs[:, 1])
    return float(100.0 * np.mean(energies / least - 1.0))


def run_gains(frontiers: Path, budget: str) -> list[dict[str, Any]]:
    """Return one row per recorded workload and release."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder) / "kareus.db")
        simulated = {}
        nanobatching = {}
        for key in {row.key for row in gains_table(frontiers, load_gpu(GPU))}:
            settings = WorkloadSettings(
                model=key.model,
                gpu=GPU,
                tp=key.tp,
                cp=key.cp,
                pp=2,
                microbatch_size=key.microbatch_size,
                seq_len=key.seq_len,
                stage_layers=(15, 13),
            )
            study = service.run(StudyRequest(settings=settings, budget=budget)).study
            perseus = points(service.plan_summaries(study, Method.PERSEUS))
            simulated[key] = (points(service.plan_summaries(study, Method.KAREUS)), perseus)
            nanobatching[key] = gains(
                points(service.plan_summaries(study, Method.NANOBATCHING_PERSEUS)), perseus
            )
        rows = []
        for row in gains_table(frontiers, load_gpu(GPU), simulated=simulated):
            assert row.simulated is not None
            rows.append(
                {
                    "workload": str(row.key),
                    "release": row.release,
                    "recorded": _percent(row.recorded),
                    "simulated": _percent(row.simulated),
                    "simulated_nanobatching": _percent(nanobatching[row.key]),
                }
            )
        return rows


def _percent(found: Any) -> dict[str, float | None]:
    return {
        name: None if value is None else round(100 * value, 1)
        for name, value in (
            ("fastest", found.fastest),
            ("iso_time_energy", found.iso_time),
            ("iso_energy_time", found.iso_energy),
        )
    }


def run_speed(repeats: int) -> list[dict[str, Any]]:
    """Return wall time (median) and peak memory of the two reference studies, `published`."""
    rows = []
    for name, settings in REFERENCE.items():
        seconds = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                started = time.monotonic()
                subprocess.run(
                    [
                        sys.executable, "-m", "kareus", "optimize", "--json",
                        "--db", str(Path(folder) / "kareus.db"),
                        "--model", settings.model, "--tp", str(settings.tp),
                        "--cp", str(settings.cp), "--pp", "2", "--stage-layers", "15,13",
                        "--budget", "published",
                    ],
                    check=True,
                    capture_output=True,
                )  # fmt: skip
                seconds.append(time.monotonic() - started)
        peak_kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        rows.append(
            {
                "workload": name,
                "seconds_median": round(statistics.median(seconds), 1),
                "seconds": [round(value, 1) for value in seconds],
                "peak_gib": round(peak_kib / 2**20, 2),
            }
        )
    return rows


def run_budget() -> list[dict[str, Any]]:
    """Return the excess energy of the named budgets over the exhaustive search's frontier."""
    rows = []
    for name, settings in BUDGET_WORKLOADS.items():
        with tempfile.TemporaryDirectory() as folder:
            service = Service(Path(folder) / "kareus.db")
            frontiers = {
                budget: service.plan_summaries(
                    service.run(StudyRequest(settings=settings, budget=budget)).study,
                    Method.KAREUS,
                )
                for budget in ("exhaustive", "published", "fast")
            }
        rows.append(
            {
                "workload": name,
                **{
                    f"{budget}_excess_pct": round(
                        excess_energy_pct(frontiers[budget], frontiers["exhaustive"]), 3
                    )
                    for budget in ("published", "fast")
                },
            }
        )
    return rows


def main() -> None:
    """Parse the command line and print one JSON document."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    of_gains = commands.add_parser("gains")
    of_gains.add_argument("--frontiers", type=Path, required=True)
    of_gains.add_argument("--budget", default="published")
    of_speed = commands.add_parser("speed")
    of_speed.add_argument("--repeats", type=int, default=3)
    commands.add_parser("budget")
    options = parser.parse_args()
    if options.command == "gains":
        rows = run_gains(options.frontiers, options.budget)
    elif options.command == "speed":
        rows = run_speed(options.repeats)
    else:
        rows = run_budget()
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
