"""From windows to real options: slack fill and exchange (compiled).

At a deadline every instruction starts from the slowest option that fits its window in the relaxed
solution, or from where `annealing` moved the windows. Two steps lower the energy; neither ever
misses the deadline:

1. fill: slow down, where slack allows, whatever saves most energy per second, until nothing fits;
2. exchange: speed one instruction up by a few options, fill the slack this opens, and keep the
   change if the total energy falls; otherwise undo it. Repeat around what changed.

What a second is worth to an instruction at the relaxed optimum (its price, watts) tells in advance
which exchanges can pay: energy + price x time of the sped-up instruction must not rise by more than
its share of what rounding lost in all.

Earliest starts and latest ends are kept up to date along the affected part of the graph only, with
a log to undo them. Legend: es earliest start, le latest end, duration of every node, in grid units;
slack = le - es - duration.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kareus.compiled import compiled
from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.primitives import drop_first, earliest_starts, push
from kareus.compose.problem import Floats, Ints, Problem

# Speeds tried per instruction in an exchange, besides the next hull vertex.
DEPTH = 3
# Exchanges tried per plan: they pay most in small iterations, where they also cost least.
MAX_EXCHANGES = 400


class Net(NamedTuple):
    """What does not change: the graph and the options (see `problem.Problem`)."""

    pred_ptr: Ints
    pred: Ints
    succ_ptr: Ints
    succ: Ints
    first: Ints
    last: Ints
    time: Ints
    energy: Floats
    slower_vertex: Ints
    faster_vertex: Ints


class _State(NamedTuple):
    """A plan under change. Log rows are (what, node, old value), see `_undo`."""

    chosen: Ints
    duration: Ints
    es: Ints
    le: Ints
    dirty: NDArray[np.bool_]
    log: Ints
    num_log: Ints
    is_touched: NDArray[np.bool_]
    touched: Ints


def make_net(problem: Problem) -> Net:
    """Return the graph and options of an iteration as the compiled parts take them."""
    slower, faster = _vertices(problem)
    return Net(
        problem.pred_ptr,
        problem.pred,
        problem.succ_ptr,
        problem.succ,
        problem.option_ptr[problem.kind],
        problem.option_ptr[problem.kind + 1],
        problem.option_time,
        problem.option_energy_j,
        slower,
        faster,
    )


def improve(
    net: Net,
    chosen: Ints,
    deadline: int,
    prices_w: Floats,
    *,
    max_exchanges: int = MAX_EXCHANGES,
) -> Ints:
    """Return options that need no more energy than the given ones, within the deadline.

    Args:
        net: The iteration.
        chosen: Per node, a position in the option arrays; together they meet the deadline.
        deadline: In grid units.
        prices_w: What a second of each node is worth at this deadline, watts, shape (N,).
        max_exchanges: Exchanges tried at most; 0 fills only.

    Returns:
        Positions in the option arrays, shape (N,).
    """
    result = chosen.copy()
    _improve(net, result, deadline, prices_w * TIME_GRID_S, DEPTH, max_exchanges)
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


def _vertices(problem: Problem) -> tuple[Ints, Ints]:
    """For each option, the next slower and next faster hull vertex (itself at the ends)."""
    slower = np.empty(len(problem.option_time), dtype=np.int64)
    faster = np.empty_like(slower)
    for kind in range(len(problem.option_ptr) - 1):
        own = problem.hull_option[problem.hull_ptr[kind] : problem.hull_ptr[kind + 1]]
        options = np.arange(problem.option_ptr[kind], problem.option_ptr[kind + 1])
        above = np.searchsorted(own, options, side="right")
        slower[options] = own[np.minimum(above, len(own) - 1)]
        below = np.searchsorted(own, options, side="left") - 1
        faster[options] = own[np.maximum(below, 0)]
    return slower, faster


@compiled
def _best_move(time, energy, slower_vertex, current, end, room):  # type: ignore[no-untyped-def]
    """The slower option within `room` that saves most energy per unit of time, and that rate."""
    if current + 1 >= end or time[current + 1] - time[current] > room:
        return current, 0.0
    limit = time[current] + room
    low = current + 1
    high = end - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if time[middle] <= limit:
            low = middle
        else:
            high = middle - 1
    best = low
    rate = (energy[current] - energy[low]) / (time[low] - time[current])
    other = current + 1
    while other < low:
        r = (energy[current] - energy[other]) / (time[other] - time[current])
        if r > rate:
            rate = r
            best = other
        following = slower_vertex[other]
        if following <= other:
            break
        other = following
    return best, rate


@compiled
def _note(log, num_log, what, node, value):  # type: ignore[no-untyped-def]
    """Log an old value."""
    row = num_log[0]
    log[row, 0] = what
    log[row, 1] = node
    log[row, 2] = value
    num_log[0] = row + 1


@compiled
def _choose(net, state, deadline, node, option):  # type: ignore[no-untyped-def]
    """Change a node's option and update starts after and ends before it, logging old values."""
    pred_ptr, pred, succ_ptr, succ = net.pred_ptr, net.pred, net.succ_ptr, net.succ
    chosen, duration, es, le = state.chosen, state.duration, state.es, state.le
    dirty, log, num_log = state.dirty, state.log, state.num_log
    n = len(duration)
    _note(log, num_log, 0, node, chosen[node])
    chosen[node] = option
    duration[node] = net.time[option]
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
                _note(log, num_log, 1, v, es[v])
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
                _note(log, num_log, 2, v, le[v])
                le[v] = end
                for k in range(pred_ptr[v], pred_ptr[v + 1]):
                    if not dirty[pred[k]]:
                        dirty[pred[k]] = True
                        pending += 1
        v -= 1


@compiled
def _undo(net, state):  # type: ignore[no-untyped-def]
    """Restore what the log holds, newest first, and empty it."""
    chosen, duration, es, le = state.chosen, state.duration, state.es, state.le
    log, num_log, time = state.log, state.num_log, net.time
    for k in range(num_log[0] - 1, -1, -1):
        what = log[k, 0]
        node = log[k, 1]
        if what == 0:
            chosen[node] = log[k, 2]
            duration[node] = time[log[k, 2]]
        elif what == 1:
            es[node] = log[k, 2]
        else:
            le[node] = log[k, 2]
    num_log[0] = 0


@compiled
def _fill_touched(net, state, deadline, seed):  # type: ignore[no-untyped-def]
    """Fill the slack of the nodes in the log, best rate first, the seed last. Returns joules."""
    time, energy, slower_vertex, last = net.time, net.energy, net.slower_vertex, net.last
    chosen, duration, es, le = state.chosen, state.duration, state.es, state.le
    log, num_log = state.log, state.num_log
    touched, is_touched = state.touched, state.is_touched
    n = len(duration)
    gain = 0.0
    num_touched = 0
    read = 0
    for allow_seed in (False, True):
        while num_log[0] + 2 * n + 1 <= len(log):
            while read < num_log[0]:
                u = log[read, 1]
                read += 1
                if not is_touched[u]:
                    is_touched[u] = True
                    touched[num_touched] = u
                    num_touched += 1
            best_rate = 0.0
            best_node = -1
            best_option = -1
            for k in range(num_touched):
                u = touched[k]
                room = le[u] - es[u] - duration[u]
                if room <= 0 or (u == seed and not allow_seed):
                    continue
                option, rate = _best_move(time, energy, slower_vertex, chosen[u], last[u], room)
                if option != chosen[u] and rate > best_rate:
                    best_rate = rate
                    best_node = u
                    best_option = option
            if best_node < 0:
                break
            gain += energy[chosen[best_node]] - energy[best_option]
            _choose(net, state, deadline, best_node, best_option)
    for k in range(num_touched):
        is_touched[touched[k]] = False
    return gain


@compiled
def _exchange(net, state, deadline, node, target):  # type: ignore[no-untyped-def]
    """Speed a node up to an option and fill the slack; returns whether the energy fell."""
    cost = net.energy[target] - net.energy[state.chosen[node]]
    _choose(net, state, deadline, node, target)
    gain = _fill_touched(net, state, deadline, node)
    return gain > cost + 1e-12 * abs(cost)


@compiled
def _tolerance(net, chosen, price):  # type: ignore[no-untyped-def]
    """Half of what rounding lost per node: energy + price x time above its least."""
    first, last, time, energy = net.first, net.last, net.time, net.energy
    lost = 0.0
    for v in range(len(chosen)):
        least = np.inf
        for option in range(first[v], last[v]):
            least = min(least, energy[option] + price[v] * time[option])
        lost += energy[chosen[v]] + price[v] * time[chosen[v]] - least
    return 0.5 * lost / len(chosen)


@compiled
def _improve(net, chosen, deadline, price, depth, max_exchanges):  # type: ignore[no-untyped-def]
    """Fill, then exchange until nothing changes; `chosen` is changed in place."""
    first, last, time, energy = net.first, net.last, net.time, net.energy
    slower_vertex, faster_vertex = net.slower_vertex, net.faster_vertex
    pred_ptr, pred, succ_ptr, succ = net.pred_ptr, net.pred, net.succ_ptr, net.succ
    n = len(chosen)
    duration = time[chosen]
    es = earliest_starts(net.pred_ptr, net.pred, duration)
    le = np.empty(n, dtype=np.int64)
    for v in range(n - 1, -1, -1):
        le[v] = deadline
        for k in range(succ_ptr[v], succ_ptr[v + 1]):
            t = le[succ[k]] - duration[succ[k]]
            if t < le[v]:
                le[v] = t
    state = _State(
        chosen,
        duration,
        es,
        le,
        np.zeros(n, dtype=np.bool_),
        np.empty((16 * n + 64, 3), dtype=np.int64),
        np.zeros(1, dtype=np.int64),
        np.zeros(n, dtype=np.bool_),
        np.empty(n, dtype=np.int64),
    )
    # Fill. Slack only shrinks here, so rates only fall: stale heap entries are put back.
    heap_key = np.empty(2 * n + 1, dtype=np.float64)
    heap_node = np.empty(2 * n + 1, dtype=np.int64)
    size = 0
    for v in range(n):
        option, rate = _best_move(
            time, energy, slower_vertex, chosen[v], last[v], le[v] - es[v] - duration[v]
        )
        if option != chosen[v]:
            size = push(heap_key, heap_node, size, -rate, v)
    while size > 0:
        key = heap_key[0]
        v = heap_node[0]
        size = drop_first(heap_key, heap_node, size)
        option, rate = _best_move(
            time, energy, slower_vertex, chosen[v], last[v], le[v] - es[v] - duration[v]
        )
        if option == chosen[v]:
            continue
        if -rate > key:
            size = push(heap_key, heap_node, size, -rate, v)
            continue
        _choose(net, state, deadline, v, option)
        state.num_log[0] = 0
        option, rate = _best_move(
            time, energy, slower_vertex, chosen[v], last[v], le[v] - es[v] - duration[v]
        )
        if option != chosen[v]:
            size = push(heap_key, heap_node, size, -rate, v)
    # Exchange, around what changed last.
    if max_exchanges == 0:
        return
    tolerance = _tolerance(net, chosen, price)
    active = np.ones(n, dtype=np.bool_)
    kept_any = True
    while kept_any and max_exchanges > 0:
        kept_any = False
        for v in range(n):
            if not active[v]:
                continue
            active[v] = False
            for step in range(1, depth + 2):
                current = chosen[v]
                target = current - step if step <= depth else faster_vertex[current]
                if target < first[v] or (step > depth and target >= current - depth):
                    continue
                change = energy[target] - energy[current]
                change -= price[v] * (time[current] - time[target])
                if change > tolerance:
                    continue
                if max_exchanges == 0:
                    return
                max_exchanges -= 1
                if not _exchange(net, state, deadline, v, target):
                    _undo(net, state)
                    continue
                kept_any = True
                for k in range(state.num_log[0]):
                    if state.log[k, 0] == 0:
                        u = state.log[k, 1]
                        active[u] = True
                        for j in range(pred_ptr[u], pred_ptr[u + 1]):
                            active[pred[j]] = True
                        for j in range(succ_ptr[u], succ_ptr[u + 1]):
                            active[succ[j]] = True
                state.num_log[0] = 0
                break
