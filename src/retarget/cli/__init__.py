"""The command line: `retarget run`, and one group of commands per noun."""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from retarget.cli.groups import Command, new_group
from retarget.cli.short_forms import (
    SHORT_FORMS,
    Interrupted,
    RootGroup,
    add_short_forms,
    describe_short_form,
)
from retarget.cli.terminal import print_error, print_result, print_status
from retarget.cli.typer_patch import patch_typer
from retarget.cli.usage_errors import describe_usage_error, is_missing_command, is_usage_error
from retarget.core.errors import Invalid, RetargetError


@dataclass(frozen=True, slots=True)
class _Group:
    module: str
    help: str
    short_name: str | None = None


_GROUPS = {
    "job": _Group("jobs", "Watch, stop, compare and download jobs."),
    "experiment": _Group("experiments", "Show experiments and their logged results."),
    "model": _Group("models", "Manage registered models and their versions."),
    "target": _Group("targets", "Manage targets: the places where jobs run."),
    "size": _Group("sizes", "Show the catalogue of sizes of nodes."),
    "environment": _Group("environments", "Manage Python environments.", "env"),
    "secret": _Group("secrets", "Manage secrets: values that jobs get and logs never show."),
    "server": _Group("server", "Manage this machine's server. It starts automatically."),
    "config": _Group("config", "Show and change the settings of this machine."),
}
_COMMANDS = ("run", "exec", "snapshot")
_NAMES = {
    *(name for key, group in _GROUPS.items() for name in (key, group.short_name) if name),
    *SHORT_FORMS,
}
_HELP = """Write the training script once. Run it on any compute target.

\b
  retarget run train.py                   run a script and show its output
  retarget run -d --name night train.py   run it in the background
  retarget job list                       list jobs and their states
"""
# commands of other tools, and the command that does the same here
_SYNONYMS = {
    "jobs": "job list",
    "queue": "job list",
    "submit": "run",
    "download": "job outputs",
    "version": "--version",
    "help": "--help",
}
_EXIT_INTERRUPTED = 130
# click must not refuse unknown options: `run` explains what to write instead
_LENIENT = {"ignore_unknown_options": True, "allow_extra_args": True}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit. Any error is one sentence on stderr."""
    args, script_args = _split(list(sys.argv[1:] if argv is None else argv))
    _escape_unencodable_output()
    try:
        patch_typer()
        _suggest_command(args)
        code = _app(args)(args, prog_name="retarget", obj=script_args, standalone_mode=False)
    except RetargetError as error:
        code = _report(error, 2 if isinstance(error, Invalid) else 1)
    except (KeyboardInterrupt, Interrupted, typer.Abort):
        print_status("interrupted", "dim")
        code = _EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  the outermost edge: users see no traceback
        code = _report_usage(error) if is_usage_error(error) else _report(error, 1)
    sys.exit(code if isinstance(code, int) else 0)


def _split(args: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the arguments of `run`, `exec` or `job rerun` at `--`: its own, and the script's."""
    if (args[:1] not in (["run"], ["exec"]) and args[:2] != ["job", "rerun"]) or "--" not in args:
        return args, None
    index = args.index("--")
    return args[:index], args[index + 1 :]


def _escape_unencodable_output() -> None:
    """Make stdout write characters that its encoding lacks as backslash escapes."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _suggest_command(args: Sequence[str]) -> None:
    """Raise Invalid with a suggestion if the first word is a script or a command of a group."""
    if not args or args[0].startswith("-") or args[0] in {*_COMMANDS, *_NAMES}:
        return
    line = shlex.join(args)
    if os.path.isfile(args[0]):
        raise Invalid(f"unknown command {args[0]!r}; did you mean `retarget run {line}`?")
    if args[0] in _SYNONYMS:
        line = shlex.join(args[1:])
        command = f"retarget {_SYNONYMS[args[0]]} {line}".rstrip()
        raise Invalid(f"unknown command {args[0]!r}; did you mean `{command}`?")
    for name, group in _GROUPS.items():
        commands = import_module(f"retarget.cli.{group.module}").app.registered_commands
        if args[0] in {command.name or command.callback.__name__ for command in commands}:
            raise Invalid(f"unknown command {args[0]!r}; did you mean `retarget {name} {line}`?")


def _app(args: Sequence[str]) -> typer.Typer:
    """Return the app with only the group that `args` name, or with all: imports take time."""
    app = new_group(completion=True, cls=RootGroup)
    app.callback(help=_HELP)(_root)
    named = args[0] if args and args[0] in {*_COMMANDS, *_NAMES} else None
    if named in (None, "run"):
        module = import_module("retarget.cli.run")
        app.command(cls=Command, context_settings=_LENIENT)(module.run)
    if named in (None, "exec"):
        module = import_module("retarget.cli.exec")
        app.command("exec", cls=Command, context_settings=_LENIENT)(module.exec_)
    if named in (None, "snapshot"):
        app.command()(import_module("retarget.cli.snapshot").snapshot)
    for name, group in _GROUPS.items():
        if named in (None, name, group.short_name):
            module = import_module(f"retarget.cli.{group.module}")
            app.add_typer(module.app, name=name, help=group.help)
            if group.short_name:
                shown = describe_short_form(name)
                app.add_typer(module.app, name=group.short_name, help=group.help, **shown)
    add_short_forms(app, named)
    return app


def _show_version(is_set: bool) -> None:
    if is_set:
        from retarget import __version__

        print_result(f"retarget {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options before a command."""


def _report(error: Exception, code: int) -> int:
    if os.environ.get("RETARGET_DEBUG"):
        raise error
    message = str(error) if isinstance(error, RetargetError) else _describe_bug(error)
    print_error(message)
    return code


def _report_usage(error: Any) -> int:
    if is_missing_command(error):
        error.show()
    else:
        print_error(describe_usage_error(error))
    return error.exit_code


def _describe_bug(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {error} (this is a bug in retarget; "
        "set RETARGET_DEBUG=1 to see the traceback)"
    )
