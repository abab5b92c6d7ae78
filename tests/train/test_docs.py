"""The documented loop works as it stands."""

from pathlib import Path

import torch
from torch.distributed.pipelining import Schedule1F1B

from kareus.schedule.bundle import write_bundle
from tests.execute.world import run_world
from tests.train.sample import make_schedule, make_workload

DOCUMENT = Path(__file__).parents[2] / "docs" / "training.md"
WORKLOAD = make_workload(pp=2)


def documented():
    """What the document's Python block defines."""
    text = DOCUMENT.read_text()
    code = text.split("```python\n")[1].split("```")[0]
    namespace = {"__name__": "documented"}
    exec(compile(code, str(DOCUMENT), "exec"), namespace)
    return namespace


def train_documented_loop(bundle):
    from torch import distributed as dist

    from kareus.train.clocks import RecordedClocks

    clocks = RecordedClocks()
    loop = documented()
    loop["make_runtime"].__globals__["ClockProcess"] = lambda **_: clocks
    loop["make_runtime"].__globals__["ClockInStreamOrder"] = lambda sink: sink
    rank = dist.get_rank()
    runtime, clock = loop["make_runtime"](
        Path(bundle), pp_rank=rank, pp_degree=2, num_microbatches=4, local_rank=rank, log="unused"
    )
    torch.manual_seed(0)
    example = (torch.empty(2, 8, device="meta", requires_grad=rank > 0),)
    output = (torch.empty(2, 8, device="meta", requires_grad=True),)
    module = torch.nn.Linear(8, 8)
    stage = loop["ScheduledStage"](
        module, rank, 2, torch.device("cpu"), input_args=example, output_args=output
    )
    stage.runtime = runtime
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    data = torch.randn(8, 8)
    for _ in range(2):
        loop["train_step"](
            runtime, schedule, optimizer, *([data] if rank == 0 else []),
            target=data if rank == 1 else None,
        )  # fmt: skip
    clock.close()
    return clocks.requests_mhz


def test_the_documented_loop_follows_the_schedule(tmp_path):
    schedule = make_schedule(WORKLOAD)
    bundle = write_bundle(tmp_path / "bundle.zip", schedule)
    for rank, requests in enumerate(run_world(2, train_documented_loop, str(bundle))):
        clocks = [i.clock_mhz for i in schedule.stages[rank].instructions] * 2
        changes = [c for before, c in zip([None, *clocks], clocks, strict=False) if c != before]
        assert requests == changes


def test_the_document_names_every_cause():
    from kareus.train.deviations import Cause

    text = DOCUMENT.read_text()
    for cause in Cause:
        assert f"| {cause} |" in text
