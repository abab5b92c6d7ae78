"""Commands that train under a schedule, and hold a training log against its plan.

They go to `kareus.train` directly: a training node needs no database. Only planning again with what
a run measured does, as it needs the study's own measurements.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from kareus.cli.options import existing_database_option, json_option
from kareus.cli.output import print_json, print_table
from kareus.profiling.replay import write_recorded
from kareus.schedule.bundle import read_bundle
from kareus.service import Service
from kareus.service.views import document_of
from kareus.train import launcher
from kareus.train import track as tracking
from kareus.train.checks import JobShape, Nodes
from kareus.train.deviations import TrackReport
from kareus.train.settings import TrainingSettings, training_settings

Command = TypeVar("Command", bound=Callable[..., Any])

# What stands behind an option whose text the settings read.
_METAVARS: dict[Any, str] = {int: "INTEGER", float: "NUMBER"}
BUNDLE = click.Path(path_type=Path, exists=True)


def training_options(command: Command) -> Command:
    """Add an option for every training setting that has a default."""
    for setting in reversed(fields(TrainingSettings)):
        if setting.default is MISSING:
            continue
        flag = f"--{setting.name.replace('_', '-')}"
        text = setting.metadata["help"]
        if setting.default is False:
            command = click.option(flag, is_flag=True, help=text)(command)
        else:
            command = click.option(
                flag,
                type=str,
                metavar=_METAVARS.get(setting.type),
                default=None if setting.default is None else str(setting.default),
                show_default=setting.default is not None,
                help=text,
            )(command)
    return command


@click.command()
@click.argument("bundle", type=BUNDLE)
@training_options
@click.option("--log", type=click.Path(path_type=Path, file_okay=False), help="Folder of the logs.")
@click.option("--nnodes", type=int, default=1, show_default=True, help="Machines of the job.")
@click.option("--node-rank", type=int, default=0, show_default=True, help="Which this one is.")
@click.option("--rdzv-endpoint", help="host:port of node 0, with several nodes.")
@click.option("--nproc-per-node", type=int, help="Processes here (default: shared out evenly).")
@click.option("--pp", type=int, help="Stages the job must have; refused if the bundle has others.")
@click.option("--tp", type=int, help="Tensor-parallel degree, likewise.")
@click.option("--cp", type=int, help="Context-parallel degree, likewise.")
@click.option("--dp", type=int, help="Data-parallel replicas, likewise.")
@click.option("--num-microbatches", type=int, help="Microbatches, likewise.")
@json_option
def launch(bundle: Path, log: Path | None, as_json: bool, **options: Any) -> None:
    """Train under a bundle's schedule with torchrun, and say whether it was followed."""
    nodes = Nodes(
        count=options.pop("nnodes"),
        rank=options.pop("node_rank"),
        rendezvous=options.pop("rdzv_endpoint"),
        processes=options.pop("nproc_per_node"),
    )
    job = JobShape(
        **{name: options.pop(name) for name in ("pp", "tp", "cp", "dp", "num_microbatches")}
    )
    folder = log or launcher.default_log_folder(bundle, nodes=nodes.count)
    settings = training_settings({"bundle": bundle, "log": folder, **options})
    report = launcher.launch(settings, nodes=nodes, job=job)
    if as_json:
        print_json(report.as_document())
        return
    followed = {True: "followed", False: "not followed", None: "not to be seen from here"}
    print_table(
        ("", "actual", "planned"),
        [
            ("time of a step (s)", report.step_time_s, report.planned_time_s),
            ("energy of a step, all GPUs (J)", report.energy_j, report.planned_energy_j),
        ],
    )
    click.echo(f"{report.steps} steps, loss {report.losses[0]:.4f} to {report.losses[-1]:.4f}")
    click.echo(f"Schedule {followed[report.schedule_followed]}. Logs in {report.log}")
    for mismatch in report.mismatches:
        click.echo(f"mismatch: {mismatch}", err=True)
    for note in report.notes:
        click.echo(f"note: {note}")
    if report.timeline is not None:
        click.echo(f"Planned and actual timeline, for Perfetto: {report.timeline}")


@click.command()
@click.argument("bundle", type=BUNDLE)
@click.argument("log", type=BUNDLE)
@click.option(
    "--threshold",
    type=float,
    default=tracking.DEFAULT_THRESHOLD,
    show_default=True,
    help="Share of deviation beyond which causes are named and the alarm is raised.",
)
@click.option(
    "--measurements",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write what the run measured of its partitions here, to plan again with (kareus import).",
)
@click.option(
    "--replan",
    is_flag=True,
    help="Plan the bundle's study again with what the run measured, as a background job.",
)
@existing_database_option
@json_option
def track(
    service: Service,
    bundle: Path,
    log: Path,
    threshold: float,
    measurements: Path | None,
    replan: bool,
    as_json: bool,
) -> None:
    """Hold a training log against the plan it trained under."""
    report = tracking.track(bundle, log, threshold=threshold)
    if measurements is not None and report.measurements:
        workload = read_bundle(bundle).workload
        write_recorded(measurements, report.measurements, workload=workload)
    handle = service.replan_with_measurements(bundle, log) if replan else None
    if as_json:
        replanned = {} if handle is None else {"replanned": document_of(handle)}
        print_json(report.as_document() | replanned)
        return
    _print_track(report)
    if measurements is not None:
        click.echo(
            f"{len(report.measurements)} measurements written to {measurements}"
            if report.measurements
            else "No measurements to write: see the notes"
        )
    if handle is not None:
        click.echo(f"Study {handle.study} plans again with them, in job {handle.job}")


def _print_track(report: TrackReport) -> None:
    """Print stages, the instructions that deviate, and the alarm."""
    print_table(
        ("stage", "busy (s)", "planned (s)", "deviation (%)", "likely cause"),
        [
            (one.stage, one.busy_s, one.planned_busy_s, 100 * one.deviation, one.cause)
            for one in report.stages
        ],
    )
    print_table(
        ("step", "time (s)", "planned (s)", "energy (J)", "planned (J)", "loss"),
        [
            (one.step, one.pipeline_s, one.planned_time_s, one.energy_j, one.planned_energy_j,
             one.loss)
            for one in report.steps
        ],
    )  # fmt: skip
    drift = report.drift
    if drift.raised:
        click.echo(f"Drift alarm: {drift.reason}")
    elif drift.raised is False:
        click.echo(f"No drift: {100 * drift.time_deviation:.1f} % in time")
    for line in (*report.mismatches, *report.notes):
        click.echo(line)


COMMANDS = (launch, track)
