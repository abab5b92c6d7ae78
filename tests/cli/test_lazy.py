import sys

import click
import pytest

from kareus.cli import kareus
from kareus.cli.lazy import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_summary_is_the_commands_own(name: str) -> None:
    command = kareus.get_command(click.Context(kareus), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name][1]


def test_every_command_of_a_module_is_reachable() -> None:
    context = click.Context(kareus)
    for module in {place for place, _ in COMMANDS.values()}:
        names = {name for name, (place, _) in COMMANDS.items() if place == module}
        for name in names:
            kareus.get_command(context, name)
        commands = sys.modules[f"kareus.cli.commands_{module}"].COMMANDS
        assert {command.name for command in commands} == names
