"""The command line: argument parsing and printing; everything else is asked of the service."""

import logging
import sys
from collections.abc import Sequence

import click

from kareus import __version__
from kareus.cli.lazy import LazyGroup
from kareus.errors import KareusError


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kareus")
def kareus() -> None:
    """Plan and run large-model training for less energy and time.

    Choose clock, SM allocation and launch point together: measure a workload's partitions, search
    them, compose an iteration's time-energy frontier, and export a schedule to train with.
    Times are in seconds, energies in joules, powers in watts, clocks in MHz.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input, 1 failed run, 130 interrupted.

    Every error is one line on standard error.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code = kareus.main(arguments, prog_name="kareus", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(_complain("interrupted", 130))
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        sys.exit(_complain(error.format_message(), 2))
    except KareusError as error:
        sys.exit(_complain(str(error), error.exit_code))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, code: int) -> int:
    """Print one line on standard error and return the exit code."""
    click.echo("kareus: " + " ".join(message.split()), err=True)
    return code
