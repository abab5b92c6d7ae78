"""Measuring on this machine, and replaying what was measured.

- `source`: the measured source: clocks here, ranks there
- `trial`, `window`: one configuration's measurement, over all ranks and on one
- `group`, `protocol`, `worker`: ranks started through torchrun and asked one thing at a time
- `campaign`, `static_power`: what `kareus profile` does
- `machine`: what this machine offers
- `layout`, `recorder`, `rows`, `replay`: measurements on disk, and the source that replays them

On NVIDIA GPUs this was not yet run: clocks, energy and their failures are tested against a stand-in
for NVIDIA's library, computation on processors. `tests/gpu` has the check for a machine with one.
"""
