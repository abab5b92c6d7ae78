"""Training under a schedule, and seeing whether it did what was promised.

- `launcher`, `checks`, `elastic`: a bundle checked against the job, then torchrun
- `trainer`, `pipeline`, `data`, `optimizer`, `checkpoint`, `progress`: what each process runs
- `runtime`, `timing`: the four hooks that walk the schedule, usable from any training loop
- `clocks`, `clock_process`, `pfo`: who sets the clock, and a Zeus server that says to what
- `log`, `track`, `perfetto`: what happened, held against the plan
"""
