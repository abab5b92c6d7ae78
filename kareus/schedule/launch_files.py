"""The bundle's files for people and shells: `launch.sh`, `launch.sbatch`, `README.md`."""

from kareus.core.partition import Execution
from kareus.core.plan import Method
from kareus.schedule.document import Schedule
from kareus.schedule.formats import frequency_file_name, launch_file_name

MAX_GPUS_PER_NODE = 8

_METHODS = {
    Method.KAREUS: "Kareus",
    Method.NANOBATCHING_PERSEUS: "nanobatching + Perseus",
    Method.PERSEUS: "Megatron-LM + Perseus",
    Method.MEGATRON: "Megatron-LM",
}


def gpus_per_node(num_gpus: int) -> int:
    """Return the largest number of GPUs per node, at most 8, that divides the job's GPUs."""
    return max(n for n in range(1, MAX_GPUS_PER_NODE + 1) if num_gpus % n == 0)


def launch_sh(schedule: Schedule) -> str:
    """Return `launch.sh`: trains under this bundle on one node, or on one node of several."""
    num_gpus = schedule.workload.parallelism.num_gpus
    per_node = gpus_per_node(num_gpus)
    return f"""#!/usr/bin/env bash
# Trains under the schedule in this folder: {num_gpus} processes, one per GPU, started by torchrun.
# One node:        ./launch.sh --steps 100
# Several nodes:   NNODES={num_gpus // per_node} NODE_RANK=0 RDZV_ENDPOINT=host:29500 ./launch.sh
#                  on each node, with its own NODE_RANK ({per_node} GPUs each)
# Without GPUs:    ./launch.sh --device cpu --steps 20
# Further options are passed on; 'kareus launch --help' lists them.
set -euo pipefail

bundle="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)"

if ! command -v kareus >/dev/null 2>&1; then
    echo "launch.sh: the command 'kareus' is not on the PATH; activate the environment it is in" >&2
    exit 127
fi

nodes=()
if [[ -n "${{NNODES:-}}" ]]; then
    nodes=(
        --nnodes "$NNODES"
        --node-rank "${{NODE_RANK:?set NODE_RANK to the number of this node, from 0}}"
        --rdzv-endpoint "${{RDZV_ENDPOINT:?set RDZV_ENDPOINT to host:port of node 0}}"
    )
fi

# The device is given first, so that a --device among the arguments wins.
exec kareus launch "$bundle" --device cuda ${{nodes[@]+"${{nodes[@]}}"}} "$@"
"""


def launch_sbatch(schedule: Schedule) -> str:
    """Return `launch.sbatch`: the same under Slurm, one task per node."""
    num_gpus = schedule.workload.parallelism.num_gpus
    per_node = gpus_per_node(num_gpus)
    return f"""#!/usr/bin/env bash
#SBATCH --job-name=kareus-plan-{schedule.plan}
#SBATCH --nodes={num_gpus // per_node}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per_node}
#SBATCH --exclusive
# Submit from this folder (or set KAREUS_BUNDLE to it): sbatch launch.sbatch --steps 1000
# The bundle must lie on a file system that all nodes see. Add your partition, account and time.
set -euo pipefail

bundle="${{KAREUS_BUNDLE:-${{SLURM_SUBMIT_DIR:?submit with sbatch from the bundle}}}}"
read -r head_node < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export RDZV_ENDPOINT="$head_node:${{RDZV_PORT:-29500}}"
export NNODES="$SLURM_NNODES"

# One task per node; each hands its rank to launch.sh, which starts the node's processes.
# shellcheck disable=SC2016 # SLURM_NODEID is the task's, so it is expanded there
exec srun bash -c 'NODE_RANK="$SLURM_NODEID" exec bash "$0/launch.sh" "$@"' "$bundle" "$@"
"""


def readme(schedule: Schedule) -> str:
    """Return `README.md`: what each file is, and how to launch with several stacks."""
    workload, prediction = schedule.workload, schedule.prediction
    parallelism, provenance = workload.parallelism, schedule.provenance
    frequencies, launches = frequency_file_name(schedule.plan), launch_file_name(schedule.plan)
    sequential = any(
        instruction.execution is Execution.SEQUENTIAL
        for stage in schedule.stages
        for instruction in stage.instructions
    )
    notes = []
    if provenance.extrapolated:
        uncertainty = (
            ""
            if provenance.uncertainty is None
            else f" (assumed error {provenance.uncertainty:.0%})"
        )
        notes.append(
            f"- The simulator is extrapolated for {workload.gpu.name}, not calibrated on it"
            f"{uncertainty}."
        )
    if not provenance.static_power_measured:
        notes.append(
            f"- The static power of {provenance.static_power_w:g} W per GPU is an assumption."
        )
    if sequential:
        notes.append(
            "- Some instructions run sequentially (the microbatch is not split). The `scheds_` "
            "file cannot tell that from 'not overlapped'; `schedule.json` does (`execution`)."
        )
    tp_cp = parallelism.tp * parallelism.cp
    return f"""# Plan {schedule.plan} of study {provenance.study}

Method: {_METHODS[schedule.method]}. Numbers come from: {provenance.source}.

| | per iteration |
| --- | --- |
| time | {prediction.iteration_time_s:.4g} s |
| energy, one GPU of each stage | {prediction.pipeline.energy_j:.4g} J |
| energy, all {parallelism.num_gpus} GPUs | {prediction.job.energy_j:.4g} J |
| average power, all GPUs | {prediction.job.average_power_w:.4g} W |
| tokens | {prediction.tokens} |

Workload: {workload.model.name} on {workload.gpu.name}, tp {parallelism.tp}, cp {parallelism.cp}, \
pp {parallelism.pp}, dp {parallelism.dp}, {workload.num_microbatches} microbatches of \
{workload.microbatch_size} x {workload.seq_len} tokens, layers per stage \
{", ".join(str(layers) for layers in workload.stage_layers)}, recompute {workload.recompute}.
{chr(10).join(["", *notes]) if notes else ""}
## Files

- `schedule.json`: the whole schedule: workload, prediction, and per stage and instruction the
  clock, the execution and each partition's launch point and SM allocation. With
  {schedule.collective_backend.name.upper()}, SM allocation means
  {schedule.collective_backend.sm_allocation}.
- `{frequencies}`: the clock of every instruction, for a Zeus server.
- `{launches}`: launch point and SMs of every partition, one string each.
- `launch.sh`, `launch.sbatch`: start training under this schedule, by hand or with Slurm.
- `timeline.json`: the planned iteration; open it in https://ui.perfetto.dev.
- `manifest.json`: size and SHA-256 of every file. A changed file is refused.

## Launch with Kareus

    ./launch.sh --steps 100              # or: kareus launch . --steps 100
    sbatch launch.sbatch --steps 1000    # several nodes

Locking clocks needs root, SYS_ADMIN or the zeusd daemon; `kareus doctor` says what is missing.

## Launch with a Zeus pipeline frequency optimizer server

Zeus sets clocks only; launch points and SM allocations stay those of your training stack.

    ZEUS_PFO_SCHEDULER=PointSolution3D \\
    ZEUS_PFO_SCHEDULER_ARGS='{{"solution_path": "{frequencies}"}}' \\
    uvicorn zeus.optimizer.pipeline_frequency.server.router:app --port 7787

Register the job with pp_degree = {parallelism.pp}, dp_degree = {parallelism.dp} and
tp_degree = {tp_cp}: Zeus has no context-parallel degree, so register tp_degree = TP x CP, and give
each rank tp_rank = cp_rank x {parallelism.tp} + tp_rank.

## Launch with Megatron-LM

Use the same shape:

    --tensor-model-parallel-size {parallelism.tp} --context-parallel-size {parallelism.cp} \\
    --pipeline-model-parallel-size {parallelism.pp} \\
    --micro-batch-size {workload.microbatch_size} \\
    --global-batch-size {workload.microbatch_size * workload.num_microbatches * parallelism.dp} \\
    --seq-length {workload.seq_len}

with the layers per stage given above, and call the four hooks of
`zeus.optimizer.pipeline_frequency.PipelineFrequencyOptimizer` around the training step
(`on_step_begin`, `on_step_end`) and around each forward and backward of a microbatch
(`on_instruction_begin("forward")`, ...), pointed at the server above. Megatron-LM by itself does
not split microbatches into nanobatches: to follow the launch points too, use `kareus launch`.
"""
