"""The terminal: `retarget run`, and one group of commands a noun."""

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from retarget.cli.groups import new_group
from retarget.cli.quick import make_quick
from retarget.cli.terminal import say, tell
from retarget.core.errors import Invalid, RetargetError

_GROUPS = {
    "job": "Watch, stop and fetch jobs.",
    "experiment": "Groups of jobs and runs, and what they logged.",
    "model": "Models that jobs left, in versions.",
    "target": "Places to run.",
    "env": "Environments: what a script finds around it.",
    "server": "The server of this machine; the first command starts it.",
}
_HELP = """Write the training script once. Run it on any compute target.

\b
  retarget run train.py                   run it here, and see its output
  retarget run -d --name night train.py   go on without this terminal
  retarget job list                       what runs, waits and has ended
"""
_LENIENT = {"ignore_unknown_options": True, "allow_extra_args": True}  # `run` says what to do
_MODULES = {
    "job": "jobs",
    "experiment": "experiments",
    "model": "models",
    "target": "targets",
    "env": "environments",
    "server": "server",
}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit; whatever goes wrong is one sentence on stderr."""
    args = list(sys.argv[1:] if argv is None else argv)
    args, after = _split(args)
    _take_any_character()
    try:
        make_quick()
        _hint_at_command(args)
        _app(args)(args, prog_name="retarget", obj=after)
    except RetargetError as error:
        code = _failed(error, 2 if isinstance(error, Invalid) else 1)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001  the last edge: no traceback reaches a user
        code = _failed(error, 1)
    else:
        code = 0
    sys.exit(code)


def _take_any_character() -> None:
    """Have stdout write what its encoding lacks as a backslash and a number."""
    change = getattr(sys.stdout, "reconfigure", None)
    if change is not None:
        change(errors="backslashreplace")


def _split(args: list[str]) -> tuple[list[str], list[str] | None]:
    """Part what is ours from what the user's script or command gets."""
    if args[:1] != ["run"] or "--" not in args:
        return args, None
    at = args.index("--")
    return args[:at], args[at + 1 :]


def _hint_at_command(args: Sequence[str]) -> None:
    """Raise Invalid if the first word is no command, and what is meant can be guessed."""
    if not args or args[0].startswith("-") or args[0] in {"run", *_GROUPS}:
        return
    given = shlex.join(args)
    if os.path.isfile(args[0]):
        raise Invalid(f"there is no command {args[0]!r}; did you mean `retarget run {given}`?")
    for group, module in _MODULES.items():
        commands = import_module(f"retarget.cli.{module}").app.registered_commands
        if args[0] in {each.name or each.callback.__name__ for each in commands}:
            raise Invalid(
                f"there is no command {args[0]!r}; did you mean `retarget {group} {given}`?"
            )


def _app(args: Sequence[str]) -> typer.Typer:
    """Return the commands that `args` may mean: one group if they name it, else all."""
    app = new_group(completion=True)
    app.callback(help=_HELP)(_root)
    named = args[0] if args and args[0] in {"run", *_GROUPS} else None
    if named in (None, "run"):
        module = import_module("retarget.cli.run")
        app.command(context_settings=_LENIENT)(module.run)
    for name, text in _GROUPS.items():
        if named in (None, name):
            module = import_module(f"retarget.cli.{_MODULES[name]}")
            app.add_typer(module.app, name=name, help=text)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        from retarget import __version__

        tell(f"retarget {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that come before a command."""


def _failed(error: Exception, code: int) -> int:
    if os.environ.get("RETARGET_DEBUG"):
        raise error
    say(f"error: {error}" if isinstance(error, RetargetError) else _unexpected(error), "red")
    return code


def _unexpected(error: Exception) -> str:
    return (
        f"error: {type(error).__name__}: {error} (this is a fault of retarget; "
        "RETARGET_DEBUG=1 shows where it came from)"
    )
