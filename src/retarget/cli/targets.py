"""`retarget target …`: manage targets."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.completion import complete_kind, complete_target
from retarget.cli.groups import new_group
from retarget.cli.kind_commands import (
    KindCommand,
    TargetCommand,
    kind_options,
    name_option,
    reset_settings,
)
from retarget.cli.kind_options import values_of
from retarget.cli.lookup import AsJson
from retarget.cli.spinner import Spinner
from retarget.cli.terminal import print_result, print_status, write_json
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.records import Target
    from retarget.sdk.targets import Targets

app = new_group()

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of a target.", autocompletion=complete_target),
]
NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the new target.")]
Kind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Kind of the target; see `retarget target kinds`.",
        autocompletion=complete_kind,
    ),
]
NewTags = Annotated[list[str] | None, typer.Option(metavar="K=V", help="Set a tag; repeatable.")]
Tags = Annotated[
    list[str] | None,
    typer.Option(metavar="K=V", help="Set a tag; repeatable. K= removes the tag."),
]
Unset = Annotated[
    list[str] | None,
    typer.Option(metavar="OPTION", help="Reset an option to its default; repeatable."),
]


@app.command("list")
def list_targets(as_json: AsJson = False) -> None:
    """List targets, their resources and how much is in use."""
    targets = _targets().list()
    if as_json:
        write_json([asdict(target) for target in targets])
    else:
        from retarget.cli.show_targets import show_targets

        show_targets(targets)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show a target: state, nodes and settings, as of its last check."""
    _show(_targets()[name], as_json=as_json)


@app.command()
def kinds(as_json: AsJson = False) -> None:
    """List the kinds of target that this server supports.

    `needs` says what to install on the server first; `settings` are the options of `target attach`.
    """
    kinds = _targets().kinds()
    if as_json:
        write_json(kinds)
    else:
        from retarget.cli.show_targets import show_kinds

        show_kinds(kinds)


@app.command()
def check(name: Name, as_json: AsJson = False) -> None:
    """Ask a target now what it has, and update its inventory.

    The server logs in only if it has no open connection, so it may not notice that a login no
    longer works.
    """
    with Spinner() as spinner:
        spinner.work(f"checking {name} …")
        target = _targets().check(name)
    _show(target, as_json=as_json)


def new_target(
    ctx: typer.Context,
    name: NewName,
    kind: Kind = None,
    tag: NewTags = None,
    as_json: AsJson = False,
) -> None:
    config, tags = values_of(kind_options(ctx)), _tags({}, tag or [])
    with _checking(ctx, name):
        target = _targets().attach(name, kind=kind or "", tags=tags, **config)
    if as_json:
        write_json(asdict(target))
    else:
        from retarget.cli.show_targets import describe_target

        verb = "created" if ctx.info_name == "create" else "attached"
        print_result(f"{verb} {target.name}: {describe_target(target)}")
        for detail, value in (target.inventory or {}).get("details", {}).items():
            if detail.startswith("host key"):
                print_status(f"{detail}: {value}; Retarget accepts no other from now on", "dim")


for verb, summary in (
    ("attach", "Register an existing machine as a target. Retarget connects to it first."),
    ("create", "Create a target that does not exist yet, such as containers."),
):
    app.command(
        verb,
        cls=KindCommand,
        options_metavar="--kind KIND [--OPTION VALUE …]",
        help=f"""{summary}

    \b
    Each kind has its own options:
      retarget target kinds
      retarget target {verb} NAME --kind KIND --help
    """,
    )(new_target)


@app.command(cls=TargetCommand, options_metavar="[--OPTION VALUE …]")
def update(
    ctx: typer.Context, name: Name, unset: Unset = None, tag: Tags = None, as_json: AsJson = False
) -> None:
    """Change settings of a target.

    Retarget connects with the new settings first and keeps the old ones if that fails. Options
    that you do not pass keep their values.

    \b
    Each kind has its own options:
      retarget target update NAME --help
    """
    options = kind_options(ctx)
    if not options and not unset and tag is None:
        raise Invalid(f"nothing to change; see `retarget target update {name} --help`")
    defaults = reset_settings(ctx, unset or [])
    conflicts = [option.option for option in options if option.setting.name in defaults]
    if conflicts:
        raise Invalid(f"{conflicts[0]} cannot be set and unset at once")
    config = values_of(options) | defaults
    tags = _tags(_targets()[name].tags, tag) if tag else None
    with _checking(ctx, name):
        target = _targets().update(name, tags=tags, **config)
    _show(target, as_json=as_json)


@app.command()
def detach(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Detach even if the target has jobs. These jobs fail.")
    ] = False,
) -> None:
    """Remove a target from Retarget. Nothing on the machine is deleted.

    A target with running or queued jobs is removed only with --force.
    """
    with Spinner() as spinner:
        spinner.work(f"detaching {name} …")
        failed_jobs = _targets().detach(name, force=force)
    suffix = f"; failed jobs: {', '.join(failed_jobs)}" if failed_jobs else ""
    print_status(f"detached {name}{suffix}", "dim")


@contextmanager
def _checking(ctx: typer.Context, name: str) -> Generator[None]:
    """Show that a target is being checked; errors name options instead of settings."""
    try:
        with Spinner() as spinner:
            spinner.work(f"checking {name} …")
            yield
    except Invalid as error:
        raise name_option(ctx, error) from None


def _tags(present: dict[str, str], options: list[str]) -> dict[str, str]:
    """Return the tags after these changes; a tag without a value is removed."""
    pairs = [text.partition("=") for text in options]
    for text, (name, equals, _) in zip(options, pairs, strict=True):
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
