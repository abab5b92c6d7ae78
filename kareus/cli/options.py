"""Options that several commands share, and how they become a service and a workload."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kareus.core.workload import Recompute
from kareus.service import Service, WorkloadSettings

Command = TypeVar("Command", bound=Callable[..., Any])

DATABASE_HELP = "Database file (default: kareus.db in $KAREUS_HOME, else in runs/)."


class NumberList(click.ParamType[tuple[int, ...]]):
    """A comma-separated list of whole numbers, such as `15,13`."""

    name = "N,N,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the numbers; refuse anything that is not whole numbers between commas."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"'{value}' is not a list of whole numbers: write it as 15,13", param, ctx)


class StageValues(click.ParamType[tuple[int | None, tuple[int, ...]]]):
    """Numbers for all stages, or `STAGE:N,N,...` for one."""

    name = "[STAGE:]MHZ,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, tuple[int, ...]]:
        """Return the stage (None for all) and the numbers."""
        stage, colon, numbers = str(value).rpartition(":")
        try:
            return (
                int(stage) if colon else None,
                tuple(int(number) for number in numbers.split(",")),
            )
        except ValueError:
            self.fail(f"'{value}' is not [STAGE:]MHZ,MHZ,...: write 900 or 0:900,1200", param, ctx)


def database_option(command: Command) -> Command:
    """Add --db and pass a `Service` as `service`; a database that is not there is made."""
    return _database_option(command, exists=False)


def existing_database_option(command: Command) -> Command:
    """Add --db for commands that only read: a file that is not there is refused, not made."""
    return _database_option(command, exists=True)


def _database_option(command: Command, *, exists: bool) -> Command:
    """Add --db; a command's own --db goes before its group's."""

    def open_service(ctx: click.Context, _param: click.Parameter, path: Path | None) -> Service:
        if path is None and ctx.parent is not None and "service" in ctx.parent.params:
            inherited: Service = ctx.parent.params["service"]
            return inherited
        return Service(path)

    return click.option(
        "--db",
        "service",
        type=click.Path(path_type=Path, dir_okay=False, exists=exists),
        callback=open_service,
        help=DATABASE_HELP,
    )(command)


def json_option(command: Command) -> Command:
    """Add --json and pass it as `as_json`; a group's --json holds for its commands, too."""

    def inherit(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        return value or (ctx.parent is not None and bool(ctx.parent.params.get("as_json")))

    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        callback=inherit,
        help="Print one JSON document and nothing else.",
    )(command)


def workload_options(*, required: bool = True) -> Callable[[Command], Command]:
    """Add the workload options; `settings_from` gathers them."""

    def decorate(command: Command) -> Command:
        options = (
            click.option(
                "--model",
                required=required,
                help="Catalogue name such as llama3.2-3b, or path of a Hugging Face config.json.",
            ),
            click.option("--gpu", default="A100-SXM4-40GB", show_default=True, help="GPU name."),
            click.option(
                "--tp", type=int, default=1, show_default=True, help="Tensor-parallel degree."
            ),
            click.option(
                "--cp", type=int, default=1, show_default=True, help="Context-parallel degree."
            ),
            click.option("--pp", type=int, default=1, show_default=True, help="Pipeline stages."),
            click.option(
                "--dp", type=int, default=1, show_default=True, help="Data-parallel degree."
            ),
            click.option(
                "--microbatch-size",
                type=int,
                default=8,
                show_default=True,
                help="Sequences per microbatch.",
            ),
            click.option(
                "--seq-len", type=int, default=4096, show_default=True, help="Tokens per sequence."
            ),
            click.option(
                "--num-microbatches",
                type=int,
                default=8,
                show_default=True,
                help="Microbatches per iteration.",
            ),
            click.option(
                "--stage-layers",
                type=NumberList(),
                help="Layers of each stage, as 15,13 (default: even, remainder on early stages).",
            ),
            click.option(
                "--recompute",
                type=click.Choice([choice.value for choice in Recompute]),
                default=Recompute.FULL.value,
                show_default=True,
                help="Recompute activations in the backward.",
            ),
        )
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def settings_from(options: dict[str, Any]) -> WorkloadSettings:
    """Take the workload options out of a command's keyword arguments."""
    return WorkloadSettings(
        model=options.pop("model"),
        gpu=options.pop("gpu"),
        tp=options.pop("tp"),
        cp=options.pop("cp"),
        pp=options.pop("pp"),
        dp=options.pop("dp"),
        microbatch_size=options.pop("microbatch_size"),
        seq_len=options.pop("seq_len"),
        num_microbatches=options.pop("num_microbatches"),
        stage_layers=options.pop("stage_layers"),
        recompute=Recompute(options.pop("recompute")),
    )
