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

from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.longest_paths import RUNNING, UNLIMITED, advance
from kareus.compose.primitives import earliest_starts
from kareus.compose.problem import Floats, Ints, Problem


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
        limit = UNLIMITED if math.isinf(price_limit_w) else math.ceil(price_limit_w / self._unit_w)
        buffer = np.empty((4096, 2), dtype=np.int64)
        state = RUNNING
        next_deadline = 0
        while state == RUNNING:
            state, count, next_deadline = advance(
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
                min(limit, UNLIMITED),
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
    capacities[hull_ptr[:-1]] = UNLIMITED
    return capacities
