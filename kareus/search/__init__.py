"""Search of a partition's space: few measurements, a good set of options at every clock.

Ask and tell: a search proposes configurations and is told what was measured. It sees callables and
values, never a GPU, so that simulated, replayed and real measurements are searched alike.
"""
