"""The execution engine in torch: what is profiled is what trains.

A transformer block runs as the partitions of a plan: the computation of one nanobatch, with the
other's collective launched at a chosen point and on a chosen number of SMs.

- `block`, `dropout`, `sequence`: operators, weights, masks and the context-parallel layout
- `vocabulary`: embedding, head and loss, with the vocabulary split over the tensor-parallel ranks
- `parallel`: groups, collectives, one process group per SM allocation
- `layout`: which parts a block is cut into, their order and names
- `subgraph`, `state`, `units`: the parts of a block as slots, forward and backward
- `nanobatch`: runs a unit beside the pending collective
- `engine`, `call`: a stage's blocks as one autograd function, and one call of it
- `settings`, `trace`: what an instruction is told, and what was seen to happen
- `stage`, `partition_runner`: what training and profiling call
"""
