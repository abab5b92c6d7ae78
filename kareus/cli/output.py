"""How the command line prints: one JSON document, aligned tables, progress on standard error."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from kareus import service

_PIPE_WIDTH = 200


def print_json(document: object) -> None:
    """Print one JSON document on standard output; a NaN in it is an error, never output."""
    click.echo(json.dumps(document, allow_nan=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print an aligned table; numbers to the right, an unknown value as a dash."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numeric = any(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("–" if cell is None else _text(cell) for cell in row))
    # A pipe has no width: rows stay whole there.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(highlight=False, width=width).print(table)


def _text(cell: object) -> str:
    """Four significant digits for measured numbers, everything else as it is."""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@contextmanager
def progress_bars() -> Iterator[service.ProgressCallback]:
    """Show a bar per partition on standard error while the block runs."""
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def show(progress: service.Progress) -> None:
        bars.start()
        for partition in progress.partitions:
            if partition.name not in tasks:
                tasks[partition.name] = bars.add_task(partition.name, total=partition.planned)
            bars.update(tasks[partition.name], completed=partition.done, total=partition.planned)

    # Started by the first report: bad input leaves one line on standard error and nothing else.
    try:
        yield show
    finally:
        if tasks:
            bars.stop()


@contextmanager
def counter() -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar with the name of what is measured, on standard error, while the block runs."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task: list[TaskID] = []

    def show(name: str, done: int, total: int) -> None:
        bar.start()
        if not task:
            task.append(bar.add_task(name, total=total))
        bar.update(task[0], description=name, completed=done, total=total)

    try:
        yield show
    finally:
        if task:
            bar.stop()
