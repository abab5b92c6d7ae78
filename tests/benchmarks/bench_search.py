"""Compare searches of a partition: `python -m tests.benchmarks.bench_search [--quick] [--json]`.

Every method measures the same spaces with the same seeds; figures are means over seeds of the
scores of `search_scores` (per cent of the exhaustive truth). `--transfer` measures what starting
from another study saves; `--allocation` compares one study-wide budget with equal shares.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tests.benchmarks import search_methods, search_spaces, search_studies
from tests.benchmarks.search_scores import scores

_CHECKPOINTS = (72, 108, 144, 224)
_COLUMNS = (
    "hv_effective_pct",
    "hv_total_pct",
    "tight_effective_pct",
    "tight_total_pct",
    "per_clock_pct",
)
_SIMULATED = ("fwd_attn", "bwd_mlp", "fwd_ao_ag")
_REFERENCE = "KAREUS_REFERENCE_DATA"
_QUICK_PEER_SEEDS = {"tpe": 3, "published": 3}


def _sweep_path() -> Path | None:
    beside = Path(__file__).parents[3] / "shared" / "data"
    path = Path(os.environ.get(_REFERENCE, beside)) / "attention_sweep.csv"
    return path if path.exists() else None


def _spaces() -> tuple[dict[str, Callable[[int], search_spaces.BenchSpace]], dict[str, str]]:
    """Return the spaces at hand by name, as functions of the seed, and the absent with reasons."""
    spaces: dict[str, Callable[[int], search_spaces.BenchSpace]] = {
        "synthetic": search_spaces.synthetic
    }
    missing: dict[str, str] = {}
    path = _sweep_path()
    if path is None:
        missing["sweep"] = f"reference data absent: set {_REFERENCE} to its folder"
    else:
        spaces["sweep"] = lambda seed: search_spaces.sweep(path, seed)
        spaces["sweep-clocks"] = lambda seed: search_spaces.sweep(
            path, seed, clocks_mhz=search_spaces.CLOCKS
        )
    for name in _SIMULATED:
        spaces[f"simulator-{name}"] = lambda seed, name=name: search_spaces.simulated(name, seed)
    return spaces, missing


def _one(task: tuple[str, str, int, tuple[int, ...]]) -> tuple[dict[int, dict[str, float]], float]:
    """Run one method on one space with one seed; mean proposal time with the scores."""
    space_name, method, seed, checkpoints = task
    space = _spaces()[0][space_name](seed)
    size = len(space.truth)
    counts = tuple(one for one in checkpoints if one <= size) or (size,)
    # One thread: proposal times are CPU seconds of one core.
    with threadpool_limits(1):
        run = search_methods.METHODS[method](space, seed, counts)
    result = {count: scores(space, options) for count, options in run.options.items()}
    return result, float(np.mean(run.proposal_s)) if run.proposal_s else 0.0


def compare(
    space_names: Sequence[str],
    methods: Sequence[str],
    num_seeds: dict[str, int],
    checkpoints: tuple[int, ...],
    workers: int,
) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Return the figures: space -> method -> evaluations -> figures."""
    tasks = [
        (space, method, seed, checkpoints)
        for space in space_names
        for method in methods
        for seed in range(num_seeds[method])
    ]
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            results = list(pool.map(_one, tasks))
    else:
        results = [_one(task) for task in tasks]
    table: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for space in space_names:
        table[space] = {}
        for method in methods:
            runs = [
                result
                for task, result in zip(tasks, results, strict=True)
                if task[:2] == (space, method)
            ]
            counts = sorted({count for scored, _ in runs for count in scored})
            table[space][method] = {str(count): _figures(runs, count) for count in counts}
    return table


def _figures(runs: Sequence[tuple[dict[int, dict[str, float]], float]], count: int) -> Any:
    reached = [(scored[count], proposal_s) for scored, proposal_s in runs if count in scored]
    figures: dict[str, float] = {
        column: round(float(np.mean([scored[column] for scored, _ in reached])), 3)
        for column in _COLUMNS
    }
    figures["seeds_both_99"] = sum(
        scored["hv_effective_pct"] >= 99.0 and scored["hv_total_pct"] >= 99.0
        for scored, _ in reached
    )
    figures["seeds"] = len(reached)
    figures["proposal_s"] = round(float(np.mean([proposal_s for _, proposal_s in reached])), 4)
    return figures


def _print(document: dict[str, Any]) -> None:
    write = sys.stdout.write
    for space, methods in document["spaces"].items():
        write(f"\n{space}: hypervolume effective / total, tight effective / total, per clock (%)\n")
        for method, counts in methods.items():
            for count, row in counts.items():
                figures = "  ".join(f"{row[column]:6.2f}" for column in _COLUMNS)
                write(
                    f"  {method:10} {count:>4}  {figures}   both >= 99: {row['seeds_both_99']}"
                    f" of {row['seeds']}   {row['proposal_s']:.3f} s per batch\n"
                )
    for name, reason in document["absent"].items():
        write(f"absent: {name}: {reason}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="72 evaluations, about a minute")
    parser.add_argument(
        "--evaluations", help="comma-separated numbers of measurements; default: 72,108,144,224"
    )
    parser.add_argument("--seeds", type=int, default=10, help="seeds per space and method")
    parser.add_argument("--spaces", help="comma-separated; default: all at hand")
    parser.add_argument("--methods", help="comma-separated; default: all at hand")
    parser.add_argument("--transfer", action="store_true", help="what other studies save")
    parser.add_argument("--allocation", action="store_true", help="one budget, equal shares")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)

    if options.transfer or options.allocation:
        studies: dict[str, Any] = {}
        with threadpool_limits(1):
            if options.transfer:
                studies["transfer"] = search_studies.transfer(range(options.seeds))
            if options.allocation:
                studies["allocation"] = search_studies.allocation(
                    range(options.seeds), (56, 96, 160, 240)
                )
        sys.stdout.write(json.dumps(studies, indent=None if options.json else 2) + "\n")
        return 0

    spaces, missing = _spaces()
    missing |= search_methods.absent()
    methods = options.methods.split(",") if options.methods else list(search_methods.METHODS)
    names = options.spaces.split(",") if options.spaces else list(spaces)
    for name in [*names, *methods]:
        if name not in spaces and name not in search_methods.METHODS and name not in missing:
            parser.error(f"unknown space or method {name!r}; spaces: {', '.join(spaces)}")
    methods = [name for name in methods if name not in missing]
    seeds = dict.fromkeys(methods, options.seeds)
    if options.quick:
        seeds = {
            name: min(options.seeds, _QUICK_PEER_SEEDS.get(name, options.seeds)) for name in methods
        }
    usable = []
    for name in names:
        if name in missing:
            continue
        try:
            spaces[name](0)
        except ImportError as error:
            missing[name] = f"not available: {error}"
        else:
            usable.append(name)
    evaluations = (72,) if options.quick else _CHECKPOINTS
    if options.evaluations:
        evaluations = tuple(sorted(int(one) for one in options.evaluations.split(",")))
    table = compare(usable, methods, seeds, evaluations, options.workers)
    document = {"spaces": table, "absent": missing}
    if options.json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        _print(document)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
