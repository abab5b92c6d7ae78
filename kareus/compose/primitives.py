"""Small compiled pieces that the solver's inner loops share."""

import numpy as np

from kareus.compiled import compiled


@compiled
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


@compiled
def push(heap_key, heap_event, size, key, event):  # type: ignore[no-untyped-def]
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


@compiled
def drop_first(heap_key, heap_event, size):  # type: ignore[no-untyped-def]
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
