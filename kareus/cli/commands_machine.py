"""Commands about data and the machine: import, validate, calibrate, doctor."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kareus.cli.options import database_option, json_option, settings_from, workload_options
from kareus.cli.output import counter, print_json, print_table
from kareus.errors import ConfigError
from kareus.service import Service

EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@workload_options()
@database_option
@json_option
def import_(service: Service, path: Path, as_json: bool, **options: Any) -> None:
    """Load recorded measurements of a workload, for studies with --source replay."""
    report = service.import_measurements(path, settings_from(options))
    if as_json:
        print_json(report.as_document())
        return
    click.echo(
        f"Dataset {report.dataset}: {report.taken} rows taken, {report.repeated} repeated, "
        f"{report.refused} refused"
    )
    for refusal in report.refusals:
        click.echo(f"  {refusal.file}:{refusal.line}: {refusal.reason}", err=True)


@click.command()
@click.option("--frontiers", type=EXISTING_FILE, help="Recorded plans (CSV).")
@click.option("--frequencies", type=EXISTING_FILE, help="Their clocks (CSV).")
@click.option("--sweep", type=EXISTING_FILE, help="A recorded partition sweep (CSV).")
@click.option("--clock", type=int, help="Clock of the sweep in MHz (default: the top clock).")
@click.option("--calibration", help="Calibration file to validate (default: the GPU's own).")
@workload_options(required=False)
@json_option
def validate(
    frontiers: Path | None,
    frequencies: Path | None,
    sweep: Path | None,
    clock: int | None,
    calibration: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Hold the simulator against recorded plans, or against a recorded partition sweep."""
    service = Service()
    if sweep is not None:
        gpu = options["gpu"]
        settings = settings_from(options) if options["model"] else None
        figures = service.validate_sweep(
            sweep, gpu=gpu, clock_mhz=clock, settings=settings, calibration=calibration
        )
        if as_json:
            print_json(figures)
        else:
            print_table(tuple(figures), [tuple(figures.values())])
        return
    if frontiers is None or frequencies is None:
        raise ConfigError(
            "nothing to validate: give --frontiers CSV with --frequencies CSV, or --sweep CSV"
        )
    figures = service.validate_frontiers(frontiers, frequencies, calibration=calibration)
    if as_json:
        print_json(figures)
        return
    print_table(
        ("model", "cp", "tp", "microbatch", "seq len", "method", "plans", "time error (%)",
         "energy error (%)"),
        [
            (row["model"], row["cp"], row["tp"], row["microbatch_size"], row["seq_len"],
             row["method"], row["plans"], row["time_mape_pct"], row["energy_mape_pct"])
            for row in figures["rows"]
        ],
    )  # fmt: skip
    print_table(
        ("over all plans", "time error (%)", "energy error (%)"),
        [
            (method, errors["time_mape_pct"], errors["energy_mape_pct"])
            for method, errors in figures["overall"].items()
        ]
        + [
            (
                "nanobatching / sequential, fastest plans",
                figures["ratio"]["time_err_pct"],
                figures["ratio"]["energy_err_pct"],
            )
        ],
    )


@click.command()
@click.option("--frontiers", type=EXISTING_FILE, required=True, help="Recorded plans (CSV).")
@click.option("--frequencies", type=EXISTING_FILE, required=True, help="Their clocks (CSV).")
@click.option("--sweep", type=EXISTING_FILE, help="A recorded partition sweep (CSV).")
@click.option("--gpu", default="A100-SXM4-40GB", show_default=True, help="The GPU they ran on.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True)
@json_option
def calibrate(
    frontiers: Path, frequencies: Path, sweep: Path | None, gpu: str, out: Path, as_json: bool
) -> None:
    """Fit the simulator to recorded measurements; report fit and held-out errors."""
    report = Service().calibrate(frontiers, frequencies, sweep=sweep, gpu=gpu, out=out)
    if as_json:
        print_json(report)
        return
    print_table(
        ("method", "errors", "time (%)", "energy (%)"),
        [
            (method, kind.replace("_", " "), errors["time_mape_pct"], errors["energy_mape_pct"])
            for kind in ("fit", "leave_one_out")
            if report[kind] is not None
            for method, errors in report[kind]["overall"].items()
        ],
    )
    for warning in report["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"Calibration written to {out}")


@click.command()
@click.option("--release-clocks", is_flag=True, help="Reset GPU clocks that were left locked.")
@database_option
@json_option
def doctor(service: Service, release_clocks: bool, as_json: bool) -> None:
    """Say what this machine can do, and the remedy for what it lacks."""
    if release_clocks:
        released = service.release_clocks()
        if as_json:
            print_json([asdict(one) for one in released])
        else:
            print_table(
                ("GPU", "model", "released", "why"),
                [(one.index, one.name, one.released, one.reason) for one in released],
            )
        return
    checks = service.doctor()
    if as_json:
        print_json([check.as_document() for check in checks])
        return
    print_table(
        ("check", "state", "found", "remedy"),
        [(check.name, check.state, check.found, check.remedy) for check in checks],
    )


@click.command()
@workload_options()
@click.option("--partition", "partitions", multiple=True, help="A unit to measure (default: all).")
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="What to measure on (default: cuda)."
)
@click.option("--budget", type=int, help="Configurations per unit (default: 24).")
@click.option(
    "--window",
    "window_s",
    type=float,
    default=5.0,
    show_default=True,
    help="Measuring window (s).",
)
@click.option(
    "--cooldown",
    "cooldown_s",
    type=float,
    default=5.0,
    show_default=True,
    help="Rest before each measurement (s).",
)
@click.option("--static-power", is_flag=True, help="Measure the power while blocked, nothing else.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the records."
)
@json_option
def profile(
    partitions: tuple[str, ...],
    device: str | None,
    budget: int | None,
    window_s: float,
    cooldown_s: float,
    static_power: bool,
    out: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure a workload's partitions on this machine and write the records down."""
    service, settings = Service(), settings_from(options)
    if static_power:
        ranks = max(settings.tp * settings.cp, 2)
        found = service.measure_static_power(num_gpus=ranks, window_s=window_s)
        if as_json:
            print_json(found.as_document())
        else:
            click.echo(f"Static power: {found.static_power_w:.1f} W")
        return
    if out is None:
        raise ConfigError("name a folder for the records: --out DIR")
    with counter() as show:
        report = service.profile(
            settings,
            partitions=partitions,
            device=device,
            budget=budget,
            window_s=window_s,
            cooldown_s=cooldown_s,
            out=out,
            on_progress=None if as_json else lambda one: show(one.partition, one.done, one.total),
        )
    document = report.as_document()
    if as_json:
        print_json(document)
        return
    print_table(
        ("partition", "measurements", "energy from"),
        [
            (name, found["measurements"], found["energy_source"])
            for name, found in document["partitions"].items()
        ],
    )
    click.echo(f"Records written to {document['folder']}")


COMMANDS = (import_, validate, calibrate, doctor, profile)
