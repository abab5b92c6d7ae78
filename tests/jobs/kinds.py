"""Kinds of job for the tests, resolved by the worker exactly like the real ones."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, SourceKind
from kareus.jobs import JobContext
from kareus.store import PartitionProgress, Phase, Progress

KINDS = {
    "measure": f"{__name__}:measure",
    "fail": f"{__name__}:fail",
    "family": f"{__name__}:family",
    "stubborn": f"{__name__}:stubborn",
    "missing": "tests.jobs.absent:run",
    "no-function": f"{__name__}:KINDS",
    "echo": f"{__name__}:echo",
}


def measurement(index: int) -> Measurement:
    return Measurement(
        partition="fwd_attn",
        configuration=Configuration(clock_mhz=900 + index),
        time_s=0.01 + index / 1000,
        energy_j=1.0 + index,
        source=SourceKind.SIMULATOR,
    )


def measure(context: JobContext) -> None:
    """Measure `count` configurations, leaving out what is stored; dies once at `die_at`."""
    assert context.study is not None
    count = int(str(context.request["count"]))
    for index in range(context.store.count_measurements(context.study).get("fwd_attn", 0), count):
        context.check()
        time.sleep(float(str(context.request.get("pause_s", 0))))
        context.store.add_measurements(context.study, [measurement(index)], seed=0)
        context.progress(
            Progress(
                phase=Phase.MEASURING,
                done=index + 1,
                planned=count,
                partitions=(PartitionProgress(name="fwd_attn", done=index + 1, planned=count),),
            )
        )
        if index + 1 == context.request.get("die_at") and context.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    context.logger.info("measured %d configurations", count)


def fail(context: JobContext) -> None:
    raise ZeroDivisionError("a deliberate failure,\nin two lines")


def family(context: JobContext) -> None:
    """Start a child that starts a grandchild in a session of its own and dies, then wait."""
    place = Path(str(context.request["pids"]))
    grandchild = "import time; time.sleep(600)"
    child = (
        "import subprocess, sys, os, json, time\n"
        f"g = subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True)\n"
        f"part = {str(place)!r} + '.part'\n"
        "with open(part, 'w') as f: json.dump([os.getpid(), g.pid], f)\n"
        f"os.rename(part, {str(place)!r})\n"
        + ("os._exit(0)" if context.request.get("orphan") else "time.sleep(600)")
    )
    process = subprocess.Popen([sys.executable, "-c", child])
    if context.request.get("blocks"):
        process.wait()
        raise ChildProcessError("the child ended")
    while True:
        context.check()
        time.sleep(0.05)


def stubborn(context: JobContext) -> None:
    """Never look at `should_cancel`."""
    Path(str(context.request["started"])).touch()
    time.sleep(600)


def echo(context: JobContext) -> str:
    context.progress(Progress(phase=Phase.SOLVING, message="halfway"))
    return json.dumps(dict(context.request))
