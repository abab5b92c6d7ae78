"""The inner loop of the exact frontier: augmentation along longest residual paths (compiled).

See `parametric` for the algorithm. Node i has start event 2 i and end event 2 i + 1; times are grid
units, flows units of a power of two of a watt.
"""

import numpy as np

from kareus.compiled import compiled
from kareus.compose.primitives import drop_first, push

# A capacity without limit; flows stay below 2^61.
UNLIMITED = 2**62
# Why `advance` returned: its buffer is full, the price limit is reached, or nothing is faster.
RUNNING, AT_PRICE, FASTEST = 0, 1, 2


@compiled
def advance(  # type: ignore[no-untyped-def]
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
    unlimited = UNLIMITED
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
            return AT_PRICE, count, next_deadline
        if count == len(buffer):
            return RUNNING, count, next_deadline
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
                    size = push(heap_key, heap_event, size, d, e)
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
                size = drop_first(heap_key, heap_event, size)
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
                    size = push(heap_key, heap_event, size, d, v)
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
            return FASTEST, count, next_deadline
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
