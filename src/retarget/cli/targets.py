"""`retarget target …`: places to run."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.complete import complete_kind, complete_target
from retarget.cli.groups import new_group
from retarget.cli.kinds import OfKind, OfTarget, defaults_of, given_to, in_options
from retarget.cli.settings import values_of
from retarget.cli.spinner import Spinner
from retarget.cli.terminal import say, write_json
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.records import Target
    from retarget.sdk.targets import Targets

app = new_group()

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A target's name.", autocompletion=complete_target),
]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="What to call it.")]
Kind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND", help="What it is; `target kinds` shows them.", autocompletion=complete_kind
    ),
]
Tags = Annotated[
    list[str] | None, typer.Option(metavar="K=V", help="A label; repeatable. K= removes it.")
]
Unset = Annotated[
    list[str] | None,
    typer.Option(metavar="OPTION", help="Set this back to its default; repeatable."),
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
    _show(_targets()[name], as_json=as_json)


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
    with Spinner() as spinner:
        spinner.work(f"checking {name} …")
        target = _targets().check(name)
    _show(target, as_json=as_json)


def new_target(
    ctx: typer.Context,
    name: NewName,
    kind: Kind = None,
    tag: Tags = None,
    as_json: AsJson = False,
) -> None:
    config, tags = values_of(given_to(ctx)), _tags({}, tag or [])
    with _asking(ctx, name):
        target = _targets().attach(name, kind=kind or "", tags=tags, **config)
    _show(target, as_json=as_json)


for verb, does in (
    ("attach", "Make a place that is there a target, once it has answered."),
    ("create", "Make a target, as `attach` does, of what is not there yet."),
):
    app.command(
        verb,
        cls=OfKind,
        options_metavar="--kind KIND [--OPTION VALUE …]",
        help=f"""{does}

    \b
    Every kind has options of its own:
      retarget target kinds
      retarget target {verb} NAME --kind KIND --help
    """,
    )(new_target)


@app.command(cls=OfTarget, options_metavar="[--OPTION VALUE …]")
def update(
    ctx: typer.Context, name: Name, unset: Unset = None, tag: Tags = None, as_json: AsJson = False
) -> None:
    """Change settings of a target, if it answers with them; the others stay.

    \b
    Every kind has options of its own:
      retarget target update NAME --help
    """
    given = given_to(ctx)
    if not given and not unset and tag is None:
        raise Invalid(f"what is to change? `retarget target update {name} --help` shows it")
    defaults = defaults_of(ctx, unset or [])
    if twice := [each.option for each in given if each.setting.name in defaults]:
        raise Invalid(f"{twice[0]} is given a value, and unset, too")
    config = values_of(given) | defaults
    tags = _tags(_targets()[name].tags, tag) if tag else None
    with _asking(ctx, name):
        target = _targets().update(name, tags=tags, **config)
    _show(target, as_json=as_json)


@app.command()
def detach(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Even with jobs on it, or waiting: they fail.")
    ] = False,
) -> None:
    """Have a target no longer. What is there stays there; refused while it has jobs."""
    with Spinner() as spinner:
        spinner.work(f"detaching {name} …")
        failed = _targets().detach(name, force=force)
    ended = f"; failed with it: {', '.join(failed)}" if failed else ""
    say(f"detached {name}{ended}", "dim")


@contextmanager
def _asking(ctx: typer.Context, name: str) -> Generator[None]:
    """Show that a target is being asked, and tell what is wrong in the words of the command."""
    try:
        with Spinner() as spinner:
            spinner.work(f"checking {name} …")
            yield
    except Invalid as error:
        raise in_options(ctx, error) from None


def _tags(present: dict[str, str], given: list[str]) -> dict[str, str]:
    """Return the tags there are then; one without a value is removed."""
    pairs = [text.partition("=") for text in given]
    for text, (name, equals, _) in zip(given, pairs, strict=True):
        if not equals or not name:
            raise Invalid(f"--tag {text!r} is not K=V")
    tags = present | {name: value for name, _, value in pairs}
    return {name: value for name, value in tags.items() if value}


def _show(target: "Target", *, as_json: bool) -> None:
    if as_json:
        write_json(asdict(target))
    else:
        from retarget.cli.show_targets import show_target

        show_target(target)


def _targets() -> "Targets":
    from retarget.sdk.workspace import Workspace

    return Workspace().targets
