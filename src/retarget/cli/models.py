"""`retarget model …`: the registry of models."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.complete import complete_job, complete_model
from retarget.cli.find import AsJson, find_job, nearest
from retarget.cli.groups import new_group
from retarget.cli.terminal import say, tell, visible, write_json
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.models import Model, ModelVersion

app = new_group()

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A model's name.", autocompletion=complete_model)
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="NAME[:VERSION]",
        help="A model's name, NAME:3 or NAME@ALIAS.",
        autocompletion=complete_model,
    ),
]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List models, each with its newest version.

    \b
    Example:
      retarget model register iris --job night --path outputs/model.pkl
      retarget model list
    """
    from retarget.sdk.workspace import Workspace

    found = Workspace().models()
    if as_json:
        write_json([each.to_json() for each in found])
    else:
        from retarget.cli.show_models import show_models

        show_models(found)


@app.command()
def show(
    name: Reference,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="A number or an alias.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a model, or one version of it.

    Of a model its versions are shown; of a version its files, and what it came from.

    \b
    Examples:
      retarget model show iris
      retarget model show iris 3
      retarget model show iris@champion
    """
    name, chosen = _parsed(name)
    if version is not None and chosen is not None:
        raise Invalid(f"a version was given twice: {chosen!r} and {version!r}")
    model, chosen = _model(name), chosen or version
    found = model if chosen is None else _version(model, chosen)
    from retarget.sdk.models import Model

    if as_json:
        told = found.to_json()
        if not isinstance(found, Model):
            told["files"] = [asdict(each) for each in found.files()]
        write_json(told)
        return
    from retarget.cli.show_models import show_model, show_version

    show_model(found) if isinstance(found, Model) else show_version(found)


@app.command()
def register(
    name: Name,
    job: Annotated[
        str,
        typer.Option(metavar="JOB", help="The job that left it.", autocompletion=complete_job),
    ],
    path: Annotated[
        str, typer.Option(metavar="PATH", help="What it left: a file, a folder, a logged model.")
    ],
    description: Annotated[str, typer.Option(metavar="TEXT", help="About this version.")] = "",
    tag: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A tag; repeatable.")] = None,
) -> None:
    """Make a version of a model of what a job left.

    The model is made if there is none. The version keeps its files when the job is deleted. It
    prints NAME:VERSION.

    \b
    Example:
      retarget model register iris --job night --path outputs/model.pkl
    """
    tags = dict(_pair(each) for each in tag or [])
    made = find_job(job).register_model(name, path, description=description, tags=tags)
    tell(f"{made.name}:{made.version}")


@app.command()
def download(
    name: Reference,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="Where to; else to NAME-VERSION."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch the files of a version, and print where they are.

    The newest is taken if none is named.

    \b
    Examples:
      retarget model download iris -o models/iris
      retarget model download iris@champion
    """
    name, version = _parsed(name)
    found = _version(_model(name), version or "latest")
    folder = f"{found.name}-{found.version}" if output is None else output
    paths = [str(each) for each in found.download(folder)]
    write_json(paths) if as_json else [tell(each) for each in paths]


@app.command()
def alias(
    name: Name,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Such as champion.")],
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="A number, or another alias.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
) -> None:
    """Point an alias at a version; it leaves the one that had it before.

    \b
    Examples:
      retarget model alias iris champion 3
      retarget model alias iris champion --remove
    """
    if remove == (version is not None):
        raise Invalid("give the version that the alias is to point at, or --remove")
    model = _model(name)
    if version is None:
        if alias not in model.aliases:
            raise NotFound(f"{name!r} has no alias {alias!r}; it has {_names(model.aliases)}")
        model.remove_alias(alias)
        say(f"{name}@{alias} is removed", "dim")
        return
    found = _version(model, version.removeprefix(f"{name}:"))
    found.alias(alias)
    say(f"{name}@{alias} is version {found.version}", "dim")


@app.command()
def delete(
    name: Reference,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a version with its files, or a model with all its versions.

    Without a terminal it does not ask.

    \b
    Examples:
      retarget model delete iris:3
      retarget model delete iris --yes
    """
    name, version = _parsed(name)
    model = _model(name)
    chosen = None if version is None else _version(model, version)
    what = _all_of(model) if chosen is None else f"{name}:{chosen.version}"
    if not yes and sys.stdin.isatty():
        typer.confirm(visible(f"Remove {what} and the files?"), abort=True, err=True)
    (chosen or model).delete()
    say(f"removed {what}", "dim")


def _parsed(reference: str) -> tuple[str, str | None]:
    """Part NAME:VERSION or NAME@ALIAS."""
    for sign in ":@":
        if sign in reference:
            name, _, version = reference.rpartition(sign)
            if not name or not version:
                raise Invalid(f"{reference!r} names no version; write NAME:3 or NAME@ALIAS")
            return name, version
    return reference, None


def _model(name: str) -> "Model":
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    try:
        return workspace.model(name)
    except NotFound as error:
        near = nearest(name, [each.name for each in workspace.models()])
        hint = "`retarget model list` shows them" if near is None else f"did you mean {near!r}?"
        raise NotFound(f"no model named {name!r}; {hint}") from error


def _version(model: "Model", wanted: str) -> "ModelVersion":
    try:
        return model[wanted]
    except (NotFound, Invalid) as error:
        known = _names(str(each.version) for each in model.versions())
        also = f" and the aliases {_names(model.aliases)}" if model.aliases else ""
        message = f"{model.name!r} has no version {wanted!r}; it has {known}{also}"
        raise NotFound(message) from error


def _names(known: Iterable[str]) -> str:
    return ", ".join(known) or "none"


def _all_of(model: "Model") -> str:
    count = len(model.versions())
    return f"{model.name} with {count} version{'s' * (count != 1)}"


def _pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise Invalid(f"--tag {text!r}: write K=V")
    return key, value
