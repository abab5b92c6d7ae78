"""The commands by name. A command's module is imported when it is used, so that help comes at once.

The summaries are the first sentences of the commands' own help; a test holds the two together.
"""

import importlib
from collections.abc import Mapping

import click

COMMANDS: Mapping[str, tuple[str, str]] = {
    "calibrate": (
        "machine",
        "Fit the simulator to recorded measurements; report fit and held-out errors.",
    ),
    "compare": (
        "studies",
        "Compare Kareus with Megatron-LM, Perseus and nanobatching + Perseus.",
    ),
    "doctor": ("machine", "Say what this machine can do, and the remedy for what it lacks."),
    "explore": (
        "explore",
        "Find the parallelism too: one joint frontier over all layouts on a number of GPUs.",
    ),
    "export": ("studies", "Write the schedule bundle of one plan."),
    "frontier": ("studies", "Print a method's time-energy frontier, fastest plan first."),
    "import": (
        "machine",
        "Load recorded measurements of a workload, for studies with --source replay.",
    ),
    "jobs": ("jobs", "List, cancel, resume and read background jobs."),
    "launch": (
        "train",
        "Train under a bundle's schedule with torchrun, and say whether it was followed.",
    ),
    "optimize": ("studies", "Run a whole study: measure, search, compose, solve, compare."),
    "profile": (
        "machine",
        "Measure a workload's partitions on this machine and write the records down.",
    ),
    "replan": ("studies", "Plan a finished study again under constraints; nothing is measured."),
    "show": ("studies", "Show one study: workload, source, state, assumptions."),
    "studies": ("studies", "List the studies, newest first."),
    "track": ("train", "Hold a training log against the plan it trained under."),
    "validate": (
        "machine",
        "Hold the simulator against recorded plans, or against a recorded partition sweep.",
    ),
}
"""Per command, the module `kareus.cli.commands_...` that has it, and its summary."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and summaries without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names, in the order of the help."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command's module and return the command; None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kareus.cli.commands_{COMMANDS[cmd_name][0]}")
        found: Mapping[str | None, click.Command] = {one.name: one for one in module.COMMANDS}
        return found[cmd_name]

    def format_commands(
        self,
        ctx: click.Context,  # noqa: ARG002
        formatter: click.HelpFormatter,
    ) -> None:
        """Write the summaries into the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])
