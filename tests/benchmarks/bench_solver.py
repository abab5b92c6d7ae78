"""The iteration solver against lowtime: `python -m tests.benchmarks.bench_solver [--json]`.

Both solve the same synthetic 1F1B iterations, building included, in CPU seconds of one core. Plans
are judged by their real makespan and energy, gaps are against the exact bound of the linear
relaxation at that makespan. Compilation is done first and reported apart (`compile_s`; nearly
nothing where the compiled code is cached). lowtime's fields are null where it is absent, or does
not finish within the limit.
"""

import argparse
import json
import resource
import sys
import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from kareus.compose.iteration import solve_iteration
from kareus.compose.parametric import relax
from kareus.compose.problem import build_problem
from kareus.core.frontier import non_dominated
from kareus.core.pipeline import one_f_one_b
from kareus.core.plan import Method, Plan
from tests.benchmarks import solver_lowtime
from tests.benchmarks.solver_instances import STATIC_POWER_W, synthetic_options

_INSTANCES = ("2x8", "4x16", "8x32", "16x128")
_QUICK = ("2x8", "4x16")
_NUM_PLANS = 50
# lowtime needs some seven minutes for 8x32, and does not finish 16x128 in an hour.
_PEER_LIMIT_S = 900.0
_PEER_MAX_INSTRUCTIONS = 512


def main() -> int:
    """Run the benchmark and print its table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2x8 and 4x16 only")
    parser.add_argument("--instances", help="STAGESxMICROBATCHES, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer-limit", type=float, default=_PEER_LIMIT_S, metavar="SECONDS")
    parser.add_argument("--no-peer", action="store_true", help="leave lowtime out")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = (
        arguments.instances.split(",")
        if arguments.instances
        else list(_QUICK if arguments.quick else _INSTANCES)
    )
    peer = solver_lowtime.available() and not arguments.no_peer
    with threadpool_limits(limits=1):
        compile_s = _compile()
        results = [
            _instance(name, arguments.seed, arguments.peer_limit if peer else None)
            for name in names
        ]
    document = {
        "instances": results,
        "compile_s": compile_s,
        "peer": "lowtime" if peer else None,
        "seed": arguments.seed,
    }
    if arguments.json:
        json.dump(document, sys.stdout)
        sys.stdout.write("\n")
    else:
        _print_table(document)
    return 0


def _compile() -> float:
    """Solve a small iteration once, so that everything is compiled; wall seconds."""
    began = time.perf_counter()
    _solve(2, 2, seed=0, extra=())
    return time.perf_counter() - began


def _solve(
    num_stages: int, num_microbatches: int, *, seed: int, extra: tuple[float, ...]
) -> tuple[Plan, ...]:
    return solve_iteration(
        one_f_one_b(num_stages, num_microbatches),
        synthetic_options(num_stages, seed),
        static_power_w=STATIC_POWER_W,
        method=Method.KAREUS,
        num_plans=_NUM_PLANS,
        extra_deadlines_s=extra,
    )


def _instance(name: str, seed: int, peer_limit_s: float | None) -> dict[str, Any]:
    """All figures of one instance."""
    num_stages, num_microbatches = map(int, name.split("x"))
    options = synthetic_options(num_stages, seed)
    wall, cpu = time.perf_counter(), time.process_time()
    plans = solve_iteration(
        one_f_one_b(num_stages, num_microbatches),
        options,
        static_power_w=STATIC_POWER_W,
        method=Method.KAREUS,
        num_plans=_NUM_PLANS,
    )
    kareus_s, seconds = time.process_time() - cpu, time.perf_counter() - wall
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    gaps = [100.0 * plan.gap for plan in plans if plan.gap is not None]
    result: dict[str, Any] = {
        "stages": num_stages,
        "microbatches": num_microbatches,
        "lowtime_s": None,
        "kareus_s": kareus_s,
        "speedup": None,
        "gap_mean_pct": float(np.mean(gaps)),
        "gap_max_pct": float(np.max(gaps)),
        "lowtime_gap_mean_pct": None,
        "worse_deadlines": None,
        "seconds": seconds,
        "plans": len(plans),
        "peak_memory_bytes": memory_bytes,
    }
    pipeline = one_f_one_b(num_stages, num_microbatches)
    if peer_limit_s is None or len(pipeline.instructions) > _PEER_MAX_INSTRUCTIONS:
        return result
    peer_plans, lowtime_s = solver_lowtime.rounded_plans(pipeline, options, limit_s=peer_limit_s)
    if peer_plans is None:
        return result
    held_power_w = num_stages * STATIC_POWER_W
    problem = build_problem(pipeline, options)
    bound = relax(
        problem,
        held_power_w=held_power_w,
        num_deadlines=1,
        extra_deadlines=np.empty(0, dtype=np.int64),
    )
    peer_points = [(t, energy + held_power_w * t) for t, energy in peer_plans]
    peer_points = [peer_points[k] for k in non_dominated(peer_points)]
    # Fifty of its non-dominated plans, evenly spread; ours is asked for those very times.
    spread = np.unique(np.round(np.linspace(0, len(peer_points) - 1, _NUM_PLANS)).astype(int))
    peer_points = [peer_points[k] for k in spread]
    ours = _solve(num_stages, num_microbatches, seed=seed, extra=tuple(t for t, _ in peer_points))
    worse = 0
    for time_s, energy_j in peer_points:
        best = min(
            (p.pipeline_energy_j for p in ours if p.iteration_time_s <= time_s), default=np.inf
        )
        worse += bool(best > energy_j)
    peer_gaps = [100.0 * (e / bound.bound_j(t, held_power_w) - 1.0) for t, e in peer_points]
    result.update(
        lowtime_s=lowtime_s,
        speedup=lowtime_s / kareus_s,
        lowtime_gap_mean_pct=float(np.mean(peer_gaps)),
        worse_deadlines=worse,
    )
    return result


def _print_table(document: dict[str, Any]) -> None:
    """Print the results for people."""

    def text(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    lines = [
        f"compilation {document['compile_s']:.1f} s; peer {document['peer'] or 'absent'}",
        f"{'instance':>9} {'lowtime s':>10} {'kareus s':>9} {'ratio':>7} {'gap %':>7} "
        f"{'max %':>7} {'lowtime gap %':>14} {'worse':>6} {'MiB':>6}",
    ]
    lines += [
        f"{row['stages']}x{row['microbatches']:<4}".rjust(9)
        + f" {text(row['lowtime_s'], '.1f'):>10} {row['kareus_s']:9.3f} "
        f"{text(row['speedup'], '.0f'):>7} {row['gap_mean_pct']:7.3f} "
        f"{row['gap_max_pct']:7.3f} {text(row['lowtime_gap_mean_pct'], '.3f'):>14} "
        f"{text(row['worse_deadlines'], 'd'):>6} {row['peak_memory_bytes'] / 2**20:6.0f}"
        for row in document["instances"]
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
