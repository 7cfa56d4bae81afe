"""`retarget target …`: places to run."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.complete import complete_target
from retarget.cli.groups import new_group
from retarget.cli.terminal import write_json

if TYPE_CHECKING:
    from retarget.sdk.targets import Targets

app = new_group()

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A target's name.", autocompletion=complete_target),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_targets(as_json: AsJson = False) -> None:
    """List targets, what they have and how much of it is used."""
    targets = _targets().list()
    if as_json:
        write_json([asdict(target) for target in targets])
    else:
        from retarget.cli.show_targets import show_targets

        show_targets(targets)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a target: its settings, machines, and what it said when it was last checked."""
    target = _targets()[name]
    if as_json:
        write_json(asdict(target))
    else:
        from retarget.cli.show_targets import show_target

        show_target(target)


@app.command()
def kinds(as_json: AsJson = False) -> None:
    """List the kinds of target this server can use, and what each needs to be told."""
    found = _targets().kinds()
    if as_json:
        write_json(found)
    else:
        from retarget.cli.show_targets import show_kinds

        show_kinds(found)


@app.command()
def check(name: Name, as_json: AsJson = False) -> None:
    """Ask a target now what it has; fails with what to do if it does not answer."""
    target = _targets().check(name)
    if as_json:
        write_json(asdict(target))
    else:
        from retarget.cli.show_targets import show_target

        show_target(target)


def _targets() -> "Targets":
    from retarget.sdk.workspace import Workspace

    return Workspace().targets
