"""Moving the windows of the relaxed solution to where real options fit (compiled).

Rounding loses where windows fall between options: about a quarter of the instructions sit off the
hull at a relaxed optimum. Here the starts of instructions move, a few at a time, so that one of the
instructions concerned lands exactly on an option; all of them then take the slowest option that
fits their new windows. A move that lowers the energy is kept, one that raises it sometimes, less
and less (simulated annealing). The relaxed solution is the start, the temperature is a fraction of
what plain rounding loses per instruction, and a move costs some 0.1 us, as it touches a handful of
instructions only.

Legend: start of each node's window, grid units; its end is the earliest start among its successors,
or the deadline.
"""

import math

import numpy as np

from kareus.compiled import compiled
from kareus.compose.problem import Ints
from kareus.compose.rounding import Net

# Moves per instruction, and first and last temperature relative to the loss per instruction.
MOVES = 100
HOT = 0.3
COLD = 0.006
# Option lists longer than this are stepped through in larger steps, too.
FINE_OPTIONS = 64


def anneal(net: Net, starts: Ints, deadline: int, *, loss_j: float, seed: int) -> Ints:
    """Return options that fit within the deadline, with little energy.

    Args:
        net: The iteration.
        starts: Start of every node's window in the relaxed solution, grid units, shape (N,).
        deadline: In grid units.
        loss_j: Energy that plain rounding loses per node, the scale of the temperature.
        seed: Seed of the moves; equal seeds give equal plans.

    Returns:
        Positions in the option arrays, shape (N,).
    """
    n = len(starts)
    chosen = np.empty(n, dtype=np.int64)
    degree = int(np.diff(net.succ_ptr).max(initial=1)) + 1
    most = int(degree * (np.diff(net.pred_ptr).max(initial=1) + 1))
    levels = max(1, math.ceil(math.log2(int((net.last - net.first).max()) / FINE_OPTIONS)) + 1)
    _anneal(
        net,
        starts.copy(),
        deadline,
        MOVES * n,
        HOT * loss_j,
        COLD * loss_j,
        np.uint64(2 * seed + 1),
        most,
        levels,
        chosen,
    )
    return chosen


@compiled
def _next_random(state):  # type: ignore[no-untyped-def]
    """Marsaglia's xorshift on 64 bits."""
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    return state


@compiled
def _window_end(succ_ptr, succ, start, deadline, node):  # type: ignore[no-untyped-def]
    """The earliest start among a node's successors, or the deadline."""
    end = deadline
    for k in range(succ_ptr[node], succ_ptr[node + 1]):
        if start[succ[k]] < end:
            end = start[succ[k]]
    return end


@compiled
def _fitting(time, first, last, option, room):  # type: ignore[no-untyped-def]
    """The slowest option within `room`, looked for from another one; below the first if none."""
    if time[option] <= room:
        while option + 1 < last and time[option + 1] <= room:
            option += 1
    else:
        while option >= first and time[option] > room:
            option -= 1
    return option


@compiled
def _anneal(  # type: ignore[no-untyped-def]
    net, start, deadline, num_moves, hot, cold, random, most, levels, chosen
):
    """Move starts; `chosen` receives the options that fit in the end."""
    n = len(start)
    # Reading an array out of the tuple counts references: once here, not in the loop.
    pred_ptr, pred, succ_ptr, succ = net.pred_ptr, net.pred, net.succ_ptr, net.succ
    first, last, time, energy = net.first, net.last, net.time, net.energy
    end = np.empty(n, dtype=np.int64)
    for node in range(n):
        end[node] = _window_end(succ_ptr, succ, start, deadline, node)
        chosen[node] = _fitting(time, first[node], last[node], first[node], end[node] - start[node])
    if hot <= 0.0:
        return
    moved = np.empty(most, dtype=np.int64)
    old_start = np.empty(most, dtype=np.int64)
    affected = np.empty(most, dtype=np.int64)
    new_end = np.empty(most, dtype=np.int64)
    new_option = np.empty(most, dtype=np.int64)
    mark = np.full(n, -1, dtype=np.int64)
    temperature = hot
    cooling = (cold / hot) ** (1.0 / num_moves)
    for move in range(num_moves):
        temperature *= cooling
        random = _next_random(random)
        v = np.int64((random >> np.uint64(16)) % np.uint64(n))
        step = np.int64(1) + np.int64((random >> np.uint64(3)) % np.uint64(3))
        step = step << np.int64((random >> np.uint64(8)) % np.uint64(levels))
        target = chosen[v] + step if random & np.uint64(2) else chosen[v] - step
        if target < first[v] or target >= last[v]:
            continue
        num_moved = 0
        if random & np.uint64(1):
            # Start the node so that the target just fits before its end.
            moved[0] = v
            old_start[0] = start[v]
            num_moved = 1
            start[v] = end[v] - time[target]
            if start[v] < 0:
                start[v] = old_start[0]
                continue
        else:
            # Start its successors so that the target just fits after its start.
            goal = start[v] + time[target]
            for k in range(succ_ptr[v], succ_ptr[v + 1]):
                u = succ[k]
                if (goal > end[v] and start[u] < goal) or (goal < end[v] and start[u] > goal):
                    moved[num_moved] = u
                    old_start[num_moved] = start[u]
                    num_moved += 1
                    start[u] = goal
        num_affected = 0
        for j in range(num_moved):
            u = moved[j]
            if mark[u] != move:
                mark[u] = move
                affected[num_affected] = u
                num_affected += 1
            for k in range(pred_ptr[u], pred_ptr[u + 1]):
                p = pred[k]
                if mark[p] != move:
                    mark[p] = move
                    affected[num_affected] = p
                    num_affected += 1
        change = 0.0
        accepted = True
        for j in range(num_affected):
            u = affected[j]
            new_end[j] = _window_end(succ_ptr, succ, start, deadline, u)
            new_option[j] = _fitting(time, first[u], last[u], chosen[u], new_end[j] - start[u])
            if new_option[j] < first[u]:
                accepted = False
                break
            change += energy[new_option[j]] - energy[chosen[u]]
        if accepted and change > 0.0:
            random = _next_random(random)
            uniform = np.float64(random >> np.uint64(11)) / 9007199254740992.0
            accepted = bool(uniform < math.exp(-change / temperature))
        if accepted:
            for j in range(num_affected):
                end[affected[j]] = new_end[j]
                chosen[affected[j]] = new_option[j]
        else:
            for j in range(num_moved):
                start[moved[j]] = old_start[j]
