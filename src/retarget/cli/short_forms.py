"""Short forms of frequent commands: `retarget ps` is `retarget job list`."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperGroup

from retarget.cli.groups import Command

_HEADING = "Short forms"
# short form: the command of `retarget job` that it runs
SHORT_FORMS: Mapping[str, str] = MappingProxyType(
    {"ps": "list", "ls": "list", "logs": "logs", "stop": "cancel", "rm": "delete"}
)


class Interrupted(Exception):
    """The user pressed Ctrl-C. Typer would make it the exit code of a job that was canceled."""


class RootGroup(TyperGroup):
    """The commands of `retarget`; its help lists the short forms under their own heading."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the short forms."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.commands[name]
            heading = getattr(command, "rich_help_panel", None)
            text = command.get_short_help_str(formatter.width)
            sections.setdefault(heading or "Commands", []).append((name, text))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def add_short_forms(app: typer.Typer, named: str | None) -> None:
    """Add the short form with this name, or all."""
    for short_form, name in SHORT_FORMS.items():
        if named in (None, short_form):
            callback = _callbacks()[name]
            app.command(short_form, cls=Command, **describe_short_form(f"job {name}"))(callback)


def describe_short_form(command: str) -> dict[str, Any]:
    """Return how the help of `retarget` shows a short form of this command."""
    return {"short_help": f"Short for `retarget {command}`.", "rich_help_panel": _HEADING}


def _callbacks() -> dict[str, Any]:
    commands = import_module("retarget.cli.jobs").app.registered_commands
    return {command.name or command.callback.__name__: command.callback for command in commands}
