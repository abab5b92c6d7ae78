"""From windows to real options: slack fill and exchange (compiled).

At a deadline every instruction starts from the slowest option that fits its window in the relaxed
solution. Three steps lower the energy, none ever misses the deadline:

1. fill: slow down, where slack allows, whatever saves most energy per second, until nothing fits;
2. exchange: speed one instruction up by a few options, fill the slack this opens, and keep
   the change if the total energy falls; otherwise undo it;
3. repeat over all instructions until a sweep changes nothing (or the number of sweeps is spent).

Earliest starts and latest ends are kept up to date along the affected part of the graph only, with
a log to undo them. Legend: es earliest start, le latest end, duration of every node, in grid units;
slack = le - es - duration.
"""

import numpy as np
from numba import njit

from kareus.compose.parametric import _drop_first, _push, earliest_starts
from kareus.compose.problem import Ints, Problem

# Options tried per instruction when it is sped up, and sweeps over all instructions.
DEPTH = 3
MAX_SWEEPS = 8


def round_plan(
    problem: Problem, chosen: Ints, deadline: int, *, depth: int = DEPTH, sweeps: int = MAX_SWEEPS
) -> Ints:
    """Return options that need no more energy than the given ones, within the deadline.

    Args:
        problem: The iteration.
        chosen: Per node, a position in the option arrays; together they meet the deadline.
        deadline: In grid units.
        depth: Options tried per instruction in an exchange.
        sweeps: Sweeps of exchanges at most; 0 fills only.

    Returns:
        Positions in the option arrays, shape (N,).
    """
    result = chosen.copy()
    _improve(
        problem.pred_ptr,
        problem.pred,
        problem.succ_ptr,
        problem.succ,
        problem.option_ptr[problem.kind + 1],
        problem.option_ptr[problem.kind],
        problem.option_time,
        problem.option_energy_j,
        _next_vertex(problem),
        deadline,
        result,
        depth,
        sweeps,
    )
    return result


def slowest_within(problem: Problem, durations: Ints) -> Ints:
    """Return each node's slowest option that takes no longer than given (the fastest if none)."""
    chosen = np.empty(problem.num_nodes, dtype=np.int64)
    for kind in range(len(problem.option_ptr) - 1):
        first, end = int(problem.option_ptr[kind]), int(problem.option_ptr[kind + 1])
        nodes = np.flatnonzero(problem.kind == kind)
        found = np.searchsorted(problem.option_time[first:end], durations[nodes], side="right")
        chosen[nodes] = first + np.maximum(found - 1, 0)
    return chosen


def makespan(problem: Problem, chosen: Ints) -> int:
    """Return the longest path through the chosen options, in grid units."""
    durations = problem.option_time[chosen]
    starts = earliest_starts(problem.pred_ptr, problem.pred, durations)
    return int((starts + durations).max())


def _next_vertex(problem: Problem) -> Ints:
    """For each option, the next slower hull vertex of its kind (its own position at the end)."""
    following = np.arange(len(problem.option_time), dtype=np.int64)
    vertices = problem.hull_option
    for kind in range(len(problem.option_ptr) - 1):
        own = vertices[problem.hull_ptr[kind] : problem.hull_ptr[kind + 1]]
        options = np.arange(problem.option_ptr[kind], problem.option_ptr[kind + 1])
        found = np.searchsorted(own, options, side="right")
        following[options] = own[np.minimum(found, len(own) - 1)]
    return following


@njit(cache=True)
def _best_move(  # type: ignore[no-untyped-def]
    current, end, room, option_time, option_energy, next_vertex
):
    """The slower option within `room` that saves most energy per unit of time, and that rate."""
    if current + 1 >= end or option_time[current + 1] - option_time[current] > room:
        return current, 0.0
    limit = option_time[current] + room
    low = current + 1
    high = end - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if option_time[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    best = low
    rate = (option_energy[current] - option_energy[low]) / (option_time[low] - option_time[current])
    other = current + 1
    while other < low:
        r = (option_energy[current] - option_energy[other]) / (
            option_time[other] - option_time[current]
        )
        if r > rate:
            rate = r
            best = other
        following = next_vertex[other]
        if following <= other:
            break
        other = following
    return best, rate


@njit(cache=True)
def _set_duration(  # type: ignore[no-untyped-def]
    node,
    value,
    pred_ptr,
    pred,
    succ_ptr,
    succ,
    deadline,
    duration,
    es,
    le,
    dirty,
    log,
    num_log,
):
    """Change a duration and update starts and ends after and before it, logging old values.

    Log rows: (0, node, old duration), (1, node, old es), (2, node, old le). Returns its new length.
    """
    n = len(duration)
    log[num_log, 0] = 0
    log[num_log, 1] = node
    log[num_log, 2] = duration[node]
    num_log += 1
    duration[node] = value
    pending = 0
    for k in range(succ_ptr[node], succ_ptr[node + 1]):
        if not dirty[succ[k]]:
            dirty[succ[k]] = True
            pending += 1
    v = node + 1
    while pending > 0 and v < n:
        if dirty[v]:
            dirty[v] = False
            pending -= 1
            start = 0
            for k in range(pred_ptr[v], pred_ptr[v + 1]):
                t = es[pred[k]] + duration[pred[k]]
                if t > start:
                    start = t
            if start != es[v]:
                log[num_log, 0] = 1
                log[num_log, 1] = v
                log[num_log, 2] = es[v]
                num_log += 1
                es[v] = start
                for k in range(succ_ptr[v], succ_ptr[v + 1]):
                    if not dirty[succ[k]]:
                        dirty[succ[k]] = True
                        pending += 1
        v += 1
    for k in range(pred_ptr[node], pred_ptr[node + 1]):
        if not dirty[pred[k]]:
            dirty[pred[k]] = True
            pending += 1
    v = node - 1
    while pending > 0 and v >= 0:
        if dirty[v]:
            dirty[v] = False
            pending -= 1
            end = deadline
            for k in range(succ_ptr[v], succ_ptr[v + 1]):
                t = le[succ[k]] - duration[succ[k]]
                if t < end:
                    end = t
            if end != le[v]:
                log[num_log, 0] = 2
                log[num_log, 1] = v
                log[num_log, 2] = le[v]
                num_log += 1
                le[v] = end
                for k in range(pred_ptr[v], pred_ptr[v + 1]):
                    if not dirty[pred[k]]:
                        dirty[pred[k]] = True
                        pending += 1
        v -= 1
    return num_log


@njit(cache=True)
def _improve(  # type: ignore[no-untyped-def]
    pred_ptr,
    pred,
    succ_ptr,
    succ,
    last,
    first,
    option_time,
    option_energy,
    next_vertex,
    deadline,
    chosen,
    depth,
    sweeps,
):
    """Fill, then exchange until nothing changes; `chosen` is changed in place."""
    n = len(chosen)
    duration = np.empty(n, dtype=np.int64)
    for v in range(n):
        duration[v] = option_time[chosen[v]]
    es = earliest_starts(pred_ptr, pred, duration)
    le = np.empty(n, dtype=np.int64)
    for v in range(n - 1, -1, -1):
        le[v] = deadline
        for k in range(succ_ptr[v], succ_ptr[v + 1]):
            t = le[succ[k]] - duration[succ[k]]
            if t < le[v]:
                le[v] = t
    dirty = np.zeros(n, dtype=np.bool_)
    # Each change logs at most 2 n + 1 rows; a fill step is skipped where the log might overflow.
    log = np.empty((16 * n + 64, 3), dtype=np.int64)
    # Fill. Slack only shrinks here, so rates only fall: stale heap entries are put back.
    heap_key = np.empty(2 * n + 1, dtype=np.float64)
    heap_node = np.empty(2 * n + 1, dtype=np.int64)
    size = 0
    for v in range(n):
        option, rate = _best_move(
            chosen[v], last[v], le[v] - es[v] - duration[v], option_time, option_energy, next_vertex
        )
        if option != chosen[v]:
            size = _push(heap_key, heap_node, size, -rate, v)
    while size > 0:
        key = heap_key[0]
        v = heap_node[0]
        size = _drop_first(heap_key, heap_node, size)
        option, rate = _best_move(
            chosen[v], last[v], le[v] - es[v] - duration[v], option_time, option_energy, next_vertex
        )
        if option == chosen[v]:
            continue
        if -rate > key:
            size = _push(heap_key, heap_node, size, -rate, v)
            continue
        chosen[v] = option
        _set_duration(
            v,
            option_time[option],
            pred_ptr,
            pred,
            succ_ptr,
            succ,
            deadline,
            duration,
            es,
            le,
            dirty,
            log,
            0,
        )
        option, rate = _best_move(
            option, last[v], le[v] - es[v] - duration[v], option_time, option_energy, next_vertex
        )
        if option != chosen[v]:
            size = _push(heap_key, heap_node, size, -rate, v)
    # Exchange.
    touched = np.empty(n, dtype=np.int64)
    is_touched = np.zeros(n, dtype=np.bool_)
    changed_node = np.empty(n + 1, dtype=np.int64)
    changed_option = np.empty(n + 1, dtype=np.int64)
    for _ in range(sweeps):
        improved = False
        for v in range(n):
            for step in range(1, depth + 1):
                faster = chosen[v] - step
                if faster < first[v]:
                    break
                cost = option_energy[faster] - option_energy[chosen[v]]
                before = chosen[v]
                chosen[v] = faster
                num_log = _set_duration(
                    v,
                    option_time[faster],
                    pred_ptr,
                    pred,
                    succ_ptr,
                    succ,
                    deadline,
                    duration,
                    es,
                    le,
                    dirty,
                    log,
                    0,
                )
                num_touched = 0
                for k in range(1, num_log):
                    u = log[k, 1]
                    if not is_touched[u] and u != v:
                        is_touched[u] = True
                        touched[num_touched] = u
                        num_touched += 1
                gain = 0.0
                num_changed = 0
                while num_log + 2 * n + 1 <= len(log) and num_changed < n:
                    best_rate = 0.0
                    best_node = -1
                    best_option = -1
                    for k in range(num_touched):
                        u = touched[k]
                        room = le[u] - es[u] - duration[u]
                        if room <= 0:
                            continue
                        option, rate = _best_move(
                            chosen[u], last[u], room, option_time, option_energy, next_vertex
                        )
                        if option != chosen[u] and rate > best_rate:
                            best_rate = rate
                            best_node = u
                            best_option = option
                    if best_node < 0:
                        break
                    gain += option_energy[chosen[best_node]] - option_energy[best_option]
                    changed_node[num_changed] = best_node
                    changed_option[num_changed] = chosen[best_node]
                    num_changed += 1
                    chosen[best_node] = best_option
                    num_log = _set_duration(
                        best_node,
                        option_time[best_option],
                        pred_ptr,
                        pred,
                        succ_ptr,
                        succ,
                        deadline,
                        duration,
                        es,
                        le,
                        dirty,
                        log,
                        num_log,
                    )
                for k in range(num_touched):
                    is_touched[touched[k]] = False
                if gain > cost * (1.0 + 1e-12):
                    improved = True
                    break
                for k in range(num_changed - 1, -1, -1):
                    chosen[changed_node[k]] = changed_option[k]
                chosen[v] = before
                for k in range(num_log - 1, -1, -1):
                    if log[k, 0] == 0:
                        duration[log[k, 1]] = log[k, 2]
                    elif log[k, 0] == 1:
                        es[log[k, 1]] = log[k, 2]
                    else:
                        le[log[k, 1]] = log[k, 2]
        if not improved:
            break
