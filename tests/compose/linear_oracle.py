"""The linear relaxation written out and given to HiGHS: slow, plain, and independent."""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from kareus.core.pipeline import Pipeline
from kareus.core.plan import InstructionOption


def least_effective_energy_j(
    pipeline: Pipeline,
    options: dict[tuple[int, object], tuple[InstructionOption, ...]],
    deadline_s: float,
) -> float | None:
    """Return the relaxation's least energy within a deadline; None where it is infeasible.

    Variables per instruction: start, duration, energy. An instruction's energy lies above every
    chord between two of its options that lies below all of them.
    """
    n = len(pipeline.instructions)
    rows, columns, values, limits = [], [], [], []

    def add(limit: float, **terms: float) -> None:
        for name, value in terms.items():
            rows.append(len(limits))
            columns.append(int(name[1:]))
            values.append(value)
        limits.append(limit)

    for before, after in pipeline.edges:
        add(0.0, **{f"v{before}": 1.0, f"v{n + before}": 1.0, f"v{after}": -1.0})
    bounds = [(0.0, None)] * n
    durations = []
    for i, kind in enumerate(pipeline.kinds):
        own = [(o.time_s, o.effective_energy_j) for o in options[kind]]
        add(deadline_s, **{f"v{i}": 1.0, f"v{n + i}": 1.0})
        durations.append((min(t for t, _ in own), max(t for t, _ in own)))
        add(-min(e for _, e in own), **{f"v{2 * n + i}": -1.0})
        for ta, ea in own:
            for tb, eb in own:
                slope = (eb - ea) / (tb - ta) if tb > ta else 0.0
                if tb > ta and all(e >= ea + slope * (t - ta) - 1e-12 for t, e in own):
                    add(slope * ta - ea, **{f"v{n + i}": slope, f"v{2 * n + i}": -1.0})
    matrix = coo_matrix((values, (rows, columns)), shape=(len(limits), 3 * n)).tocsr()
    result = linprog(
        np.r_[np.zeros(2 * n), np.ones(n)],
        A_ub=matrix,
        b_ub=limits,
        bounds=[*bounds, *durations, *[(None, None)] * n],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    return float(result.fun) if result.status == 0 else None
