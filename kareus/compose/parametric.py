"""The exact frontier of the linear relaxation, by successive longest paths (compiled).

Each instruction's options are relaxed to the lower convex hull of (time, effective energy), with
vertices t_0 < .. < t_K and marginal savings m_1 > .. > m_K (watts). Minimising energy under a
deadline T is then a linear program (Kelley 1961, Fulkerson 1961) whose dual is a flow of longest
paths (Phillips & Dessouky 1977): instruction i is a bundle of parallel arcs from its start to its
end, of length t_K and capacity m_K, then t_k and m_k - m_{k+1}, and t_0 without limit; precedence
arcs have length 0. Sending flow along successively longest residual paths from the source to the
sink, path length is the deadline T and the flow sent so far is the dual price lambda (watts) of
the deadline, -dE/dT. Every breakpoint of the frontier is met, from the slowest to the fastest.

Node potentials are event times: between two breakpoints, an event of distance d from the source
(in reduced costs) moves earlier by min(d, x) when the deadline falls by x, so the windows of all
instructions are exact at any deadline.

Times and flows are integers (grid units; watts in units of a power of two), so tight arcs are tight
exactly. Legend: node i has start event 2 i and end event 2 i + 1.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.problem import Floats, Ints, Problem

_UNLIMITED = 2**62
_RUNNING, _AT_PRICE, _FASTEST = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Relaxation:
    """The frontier of the relaxation and the windows at the deadlines asked for.

    Attributes:
        times_s: Breakpoints, shape (b,), descending from the slowest useful to the fastest.
        energies_j: Least effective energy at each, summed over instructions, shape (b,).
        prices_w: Dual price just below each breakpoint (towards faster), shape (b - 1,), ascending.
        frugal_s: The time beyond which the iteration needs more pipeline energy, not less.
        deadlines: Deadlines in grid units, descending, shape (d,).
        starts: Start of every node's window at each deadline, grid units, shape (d, N).
        ends: End of it, likewise.
        node_prices_w: What a second of each node is worth at each deadline (the flow through it),
            watts, likewise.
    """

    times_s: Floats
    energies_j: Floats
    prices_w: Floats
    frugal_s: float
    deadlines: Ints
    starts: Ints
    ends: Ints
    node_prices_w: Floats

    def effective_energy_j(self, deadline_s: float) -> float:
        """Return the least effective energy within a deadline, in joules."""
        return float(np.interp(deadline_s, self.times_s[::-1], self.energies_j[::-1]))

    def fastest_within_j(self, energy_j: float, held_power_w: float) -> float | None:
        """Return a lower bound on the time of any plan within a pipeline energy; None if none is.

        Exact for the relaxation: its pipeline energy is convex and piecewise linear in time.

        Args:
            energy_j: Pipeline energy in joules.
            held_power_w: Static power of all stages together.
        """
        return self._first_time(self.energies_j + held_power_w * self.times_s - energy_j)

    def fastest_within_w(self, power_w: float, held_power_w: float) -> float | None:
        """Return a lower bound on the time of any plan within an average power; None if none is.

        Args:
            power_w: Average power of one GPU per stage, summed over stages.
            held_power_w: Static power of all stages together.
        """
        return self._first_time(self.energies_j + (held_power_w - power_w) * self.times_s)

    def _first_time(self, excess_j: Floats) -> float | None:
        """The fastest time at which a convex, piecewise linear excess is not positive."""
        times, excess = self.times_s[::-1], excess_j[::-1]
        within = np.flatnonzero(excess <= 0)
        if len(within) == 0:
            return None
        k = int(within[0])
        if k == 0:
            return float(times[0])
        share = excess[k - 1] / (excess[k - 1] - excess[k])
        return float(times[k - 1] + share * (times[k] - times[k - 1]))

    def bound_j(self, time_s: float, held_power_w: float) -> float:
        """Return a lower bound on the pipeline energy of any plan not slower than `time_s`.

        The bound falls up to `frugal_s` and is constant beyond.

        Args:
            time_s: Iteration time in seconds.
            held_power_w: Static power of all stages together.
        """
        best = min(time_s, self.frugal_s)
        return self.effective_energy_j(best) + held_power_w * best


def relax(
    problem: Problem,
    *,
    held_power_w: float,
    num_deadlines: int,
    extra_deadlines: Ints,
    beyond_frugal: bool = False,
) -> Relaxation:
    """Solve the relaxation for every deadline, and return the windows at some.

    Args:
        problem: The iteration.
        held_power_w: Static power of all stages together: where the price of the deadline equals
            it, pipeline energy is least.
        num_deadlines: Deadlines spread evenly from the fastest time to that of least energy.
        extra_deadlines: Further ones in grid units; those out of range are moved into it.
        beyond_frugal: Whether deadlines reach on to where every instruction is at its most frugal
            option, although pipeline energy rises again: power falls until there.

    Returns:
        The relaxation with its distinct deadlines, the slowest first.
    """
    flow = _Flow(problem)
    slowest = flow.time
    flow.advance(price_limit_w=held_power_w, deadlines=np.empty(0, dtype=np.int64))
    frugal = flow.time
    fastest = flow.fastest
    end = slowest if beyond_frugal else frugal
    if beyond_frugal:
        flow = _Flow(problem)
    wanted = np.concatenate(
        (
            np.round(np.linspace(fastest, end, max(num_deadlines, 1))).astype(np.int64),
            np.clip(extra_deadlines, fastest, end),
        )
    )
    deadlines = np.unique(wanted)[::-1].copy()
    starts, ends, node_prices = flow.advance(price_limit_w=math.inf, deadlines=deadlines)
    times, prices = flow.breakpoints()
    # Energies by integrating the price from the slowest end, where every instruction is at its
    # most frugal option.
    savings = np.concatenate(([0.0], np.cumsum(prices * (times[:-1] - times[1:]))))
    frugal_energy = problem.hull_energy_j[problem.hull_ptr[1:] - 1][problem.kind].sum()
    return Relaxation(
        times_s=times,
        energies_j=frugal_energy + savings,
        prices_w=prices,
        frugal_s=frugal * TIME_GRID_S,
        deadlines=deadlines,
        starts=starts,
        ends=ends,
        node_prices_w=node_prices,
    )


class _Flow:
    """The state of the successive longest paths; advances to a price or to the fastest end."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        times = problem.hull_time
        energies = problem.hull_energy_j
        marginals = np.zeros(len(times))
        falls = energies[:-1] - energies[1:]
        rises = (times[1:] - times[:-1]) * TIME_GRID_S
        firsts = np.zeros(len(times), dtype=bool)
        firsts[problem.hull_ptr[:-1]] = True
        inner = ~firsts[1:]
        marginals[1:][inner] = falls[inner] / rises[inner]
        # The unit of flow: the finest power of two that cannot overflow when all flows meet.
        steepest = np.array(
            [
                marginals[a + 1] if b > a + 1 else 0.0
                for a, b in zip(problem.hull_ptr[:-1], problem.hull_ptr[1:], strict=True)
            ]
        )
        total = max(float(steepest[problem.kind].sum()), 1.0)
        self._unit_w = 2.0 ** (math.ceil(math.log2(total)) - 60)
        self._marginal = np.round(marginals / self._unit_w).astype(np.int64)
        self._capacity = _capacities(self._marginal, problem.hull_ptr)
        self._hull_time = times
        slowest = times[problem.hull_ptr[1:] - 1][problem.kind]
        fastest = times[problem.hull_ptr[:-1]][problem.kind]
        n = problem.num_nodes
        starts = earliest_starts(problem.pred_ptr, problem.pred, slowest)
        self._event = np.empty(2 * n, dtype=np.int64)
        self._event[0::2] = starts
        self._event[1::2] = starts + slowest
        self.fastest = int(
            (earliest_starts(problem.pred_ptr, problem.pred, fastest) + fastest).max()
        )
        self._arc = problem.hull_ptr[problem.kind + 1] - 1
        self._left = self._capacity[self._arc].copy()
        self._flow = np.zeros(len(problem.succ), dtype=np.int64)
        # Scalars that outlive a call: time, shift of untouched events, price.
        self._scalars = np.array([int(self._event[1::2].max()), 0, 0], dtype=np.int64)
        self._times: list[int] = [self.time]
        self._prices: list[int] = []

    @property
    def time(self) -> int:
        """The deadline reached, in grid units."""
        return int(self._scalars[0])

    def advance(self, *, price_limit_w: float, deadlines: Ints) -> tuple[Ints, Ints, Floats]:
        """Shorten the deadline until its price reaches the limit; windows at deadlines passed."""
        problem = self._problem
        starts = np.zeros((len(deadlines), problem.num_nodes), dtype=np.int64)
        ends = np.zeros_like(starts)
        node_prices = np.zeros_like(starts)
        limit = _UNLIMITED if math.isinf(price_limit_w) else math.ceil(price_limit_w / self._unit_w)
        buffer = np.empty((4096, 2), dtype=np.int64)
        state = _RUNNING
        next_deadline = 0
        while state == _RUNNING:
            state, count, next_deadline = _advance(
                problem.pred_ptr,
                problem.pred,
                problem.succ_ptr,
                problem.succ,
                _reverse_arcs(problem),
                problem.hull_ptr[problem.kind + 1] - 1,
                problem.hull_ptr[problem.kind],
                self._hull_time,
                self._capacity,
                np.append(self._marginal, 0),
                self._event,
                self._arc,
                self._left,
                self._flow,
                self._scalars,
                min(limit, _UNLIMITED),
                deadlines,
                next_deadline,
                starts,
                ends,
                node_prices,
                buffer,
            )
            for time, price in buffer[:count].tolist():
                self._times.append(time)
                self._prices.append(price)
        return starts, ends, np.asarray(node_prices * self._unit_w, dtype=np.float64)

    def breakpoints(self) -> tuple[Floats, Floats]:
        """Breakpoint times in seconds, descending, and the prices between them in watts."""
        return (
            np.array(self._times, dtype=np.float64) * TIME_GRID_S,
            np.array(self._prices, dtype=np.float64) * self._unit_w,
        )


def _reverse_arcs(problem: Problem) -> Ints:
    """For each entry of `pred`, the position of the same arc in `succ`."""
    position = {}
    for a in range(problem.num_nodes):
        for k in range(int(problem.succ_ptr[a]), int(problem.succ_ptr[a + 1])):
            position[a, int(problem.succ[k])] = k
    return np.array(
        [
            position[int(problem.pred[k]), b]
            for b in range(problem.num_nodes)
            for k in range(int(problem.pred_ptr[b]), int(problem.pred_ptr[b + 1]))
        ],
        dtype=np.int64,
    )


def _capacities(marginals: Ints, hull_ptr: Ints) -> Ints:
    """Capacity of each vertex's arc: marginal savings of its segment less those of the next."""
    capacities = marginals.copy()
    capacities[:-1] -= marginals[1:]
    capacities[hull_ptr[1:] - 1] = marginals[hull_ptr[1:] - 1]
    # Segments that differ by less than the unit still need their arc.
    capacities = np.maximum(capacities, 1)
    capacities[hull_ptr[:-1]] = _UNLIMITED
    return capacities


@njit(cache=True)
def earliest_starts(pred_ptr, pred, durations):  # type: ignore[no-untyped-def]
    """Return the earliest start of every node, grid units."""
    n = len(durations)
    starts = np.zeros(n, dtype=np.int64)
    for v in range(n):
        for k in range(pred_ptr[v], pred_ptr[v + 1]):
            end = starts[pred[k]] + durations[pred[k]]
            if end > starts[v]:
                starts[v] = end
    return starts


@njit(cache=True)
def _push(heap_key, heap_event, size, key, event):  # type: ignore[no-untyped-def]
    """Add to a binary heap; returns its new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap_key[parent] <= key:
            break
        heap_key[i] = heap_key[parent]
        heap_event[i] = heap_event[parent]
        i = parent
    heap_key[i] = key
    heap_event[i] = event
    return size + 1


@njit(cache=True)
def _drop_first(heap_key, heap_event, size):  # type: ignore[no-untyped-def]
    """Remove the least of a binary heap; returns its new size."""
    size -= 1
    key = heap_key[size]
    event = heap_event[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap_key[child + 1] < heap_key[child]:
            child += 1
        if heap_key[child] >= key:
            break
        heap_key[i] = heap_key[child]
        heap_event[i] = heap_event[child]
        i = child
    heap_key[i] = key
    heap_event[i] = event
    return size


@njit(cache=True)
def _advance(  # type: ignore[no-untyped-def]
    pred_ptr,
    pred,
    succ_ptr,
    succ,
    reverse,
    last_arc,
    first_arc,
    arc_time,
    capacity,
    marginal,
    event,
    arc,
    left,
    flow,
    scalars,
    price_limit,
    deadlines,
    next_deadline,
    starts,
    ends,
    node_prices,
    buffer,
):
    """Augment along longest residual paths; returns (state, breakpoints written, next deadline).

    One search is a shortest-path search in reduced costs: events at distance 0 go through a queue,
    the others through a heap. Events that it does not reach before the sink all move with the
    deadline: `scalars[1]` holds that common shift, so the search costs what it visits.
    """
    n = len(arc)
    unlimited = 2**62
    distance = np.full(2 * n, -1, dtype=np.int64)
    parent = np.full(2 * n, -1, dtype=np.int64)  # how it was reached: see the codes below
    parent_arc = np.full(2 * n, -1, dtype=np.int64)
    done = np.zeros(2 * n, dtype=np.bool_)
    visited = np.empty(2 * n, dtype=np.int64)
    num_arcs = 3 * n + 2 * len(succ) + 1
    queue = np.empty(num_arcs, dtype=np.int64)
    heap_key = np.empty(num_arcs, dtype=np.int64)
    heap_event = np.empty(num_arcs, dtype=np.int64)
    count = 0
    while True:
        if scalars[2] >= price_limit:
            return 1, count, next_deadline
        if count == len(buffer):
            return 0, count, next_deadline
        # Events are at event[e] - shift; the sink's is the deadline itself.
        shift = scalars[1]
        sink_time = scalars[0] + shift
        num_visited = 0
        head = 0
        tail = 0
        size = 0
        sink_distance = unlimited
        sink_parent = -1
        for i in range(n):
            if pred_ptr[i] == pred_ptr[i + 1]:
                e = 2 * i
                d = event[e] - shift
                distance[e] = d
                parent[e] = -1
                visited[num_visited] = e
                num_visited += 1
                if d == 0:
                    queue[tail] = e
                    tail += 1
                else:
                    size = _push(heap_key, heap_event, size, d, e)
        now = 0
        while True:
            if head < tail:
                u = queue[head]
                head += 1
            elif size > 0:
                now = heap_key[0]
                u = heap_event[0]
                if now >= sink_distance:
                    break
                size = _drop_first(heap_key, heap_event, size)
            else:
                break
            if done[u] or distance[u] != now:
                continue
            done[u] = True
            i = u >> 1
            if u & 1 == 0:
                num_arcs = 1 + pred_ptr[i + 1] - pred_ptr[i]
            else:
                num_arcs = 1 + succ_ptr[i + 1] - succ_ptr[i]
            for a in range(num_arcs):
                if u & 1 == 0:
                    if a == 0:  # forward through the instruction
                        v = u + 1
                        k = -1
                        cost = event[v] - event[u] - arc_time[arc[i]]
                    else:  # back along a precedence arc that carries flow
                        p = pred_ptr[i] + a - 1
                        k = reverse[p]
                        if flow[k] == 0:
                            continue
                        v = 2 * pred[p] + 1
                        cost = event[v] - event[u]
                elif a == 0:  # back through the instruction
                    v = u - 1
                    k = -1
                    if left[i] < capacity[arc[i]]:
                        cost = event[v] - event[u] + arc_time[arc[i]]
                    elif arc[i] < last_arc[i]:
                        cost = event[v] - event[u] + arc_time[arc[i] + 1]
                    else:
                        continue
                else:  # forward along a precedence arc
                    k = succ_ptr[i] + a - 1
                    v = 2 * succ[k]
                    cost = event[v] - event[u]
                if done[v]:
                    continue
                d = now + cost
                if d >= sink_distance and d > now:
                    continue
                if distance[v] < 0:
                    visited[num_visited] = v
                    num_visited += 1
                elif distance[v] <= d:
                    continue
                distance[v] = d
                parent[v] = u
                parent_arc[v] = k
                if d == now:
                    queue[tail] = v
                    tail += 1
                else:
                    size = _push(heap_key, heap_event, size, d, v)
            if u & 1 == 1 and succ_ptr[i] == succ_ptr[i + 1]:
                d = now + sink_time - event[u]
                if d < sink_distance:
                    sink_distance = d
                    sink_parent = u
                    if d == now:
                        break
            if head == tail:
                head = 0
                tail = 0
        # The deadline falls by sink_distance at the present price.
        time = scalars[0]
        while next_deadline < len(deadlines) and deadlines[next_deadline] >= time - sink_distance:
            x = time - deadlines[next_deadline]
            for i in range(n):
                starts[next_deadline, i] = event[2 * i] - shift - x
                ends[next_deadline, i] = event[2 * i + 1] - shift - x
                price = capacity[arc[i]] - left[i]
                if arc[i] < last_arc[i]:
                    price += marginal[arc[i] + 1]
                node_prices[next_deadline, i] = price
            for j in range(num_visited):
                e = visited[j]
                if distance[e] < x:
                    if e & 1 == 0:
                        starts[next_deadline, e >> 1] += x - distance[e]
                    else:
                        ends[next_deadline, e >> 1] += x - distance[e]
            next_deadline += 1
        if sink_distance > 0:
            for j in range(num_visited):
                e = visited[j]
                if distance[e] < sink_distance:
                    event[e] += sink_distance - distance[e]
            scalars[0] -= sink_distance
            scalars[1] += sink_distance
            buffer[count, 0] = scalars[0]
            buffer[count, 1] = scalars[2]
            count += 1
        # The narrowest arc of the path.
        amount = unlimited
        v = sink_parent
        while v >= 0:
            u = parent[v]
            if u >= 0:
                i = v >> 1
                if parent_arc[v] >= 0:
                    if u & 1 == 0:
                        amount = min(amount, flow[parent_arc[v]])
                elif u & 1 == 0:
                    if arc[i] > first_arc[i]:
                        amount = min(amount, left[i])
                elif left[i] < capacity[arc[i]]:
                    amount = min(amount, capacity[arc[i]] - left[i])
                else:
                    amount = min(amount, capacity[arc[i] + 1])
            v = u
        if amount == unlimited:
            for j in range(num_visited):
                distance[visited[j]] = -1
                done[visited[j]] = False
            return 2, count, next_deadline
        v = sink_parent
        while v >= 0:
            u = parent[v]
            if u >= 0:
                i = v >> 1
                if parent_arc[v] >= 0:
                    if u & 1 == 0:
                        flow[parent_arc[v]] -= amount
                    else:
                        flow[parent_arc[v]] += amount
                elif u & 1 == 0:
                    left[i] -= amount
                    if left[i] == 0:
                        arc[i] -= 1
                        left[i] = capacity[arc[i]]
                else:
                    if left[i] == capacity[arc[i]]:
                        arc[i] += 1
                        left[i] = 0
                    left[i] += amount
            v = u
        scalars[2] += amount
        for j in range(num_visited):
            distance[visited[j]] = -1
            done[visited[j]] = False
