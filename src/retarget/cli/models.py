"""`retarget model …`: manage registered models and their versions."""

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from retarget.cli.completion import complete_job, complete_model
from retarget.cli.groups import new_group
from retarget.cli.lookup import AsJson, Force, closest_name, find_job
from retarget.cli.tags import parse_tags
from retarget.cli.terminal import (
    confirm_deletion,
    print_result,
    print_status,
    printable,
    write_json,
)
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.models import Model, ModelVersion

app = new_group()

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a model.", autocompletion=complete_model)
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="NAME[:VERSION]",
        help="Name of a model, NAME:3 or NAME@ALIAS.",
        autocompletion=complete_model,
    ),
]


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List models and their newest versions.

    \b
    Example:
      retarget model register iris --job night --path outputs/model.pkl
      retarget model list
    """
    from retarget.sdk.workspace import Workspace

    models = Workspace().models.list()
    if as_json:
        write_json([model.to_json() for model in models])
    else:
        from retarget.cli.show_models import show_models

        show_models(models)


@app.command()
def show(
    name: Reference,
    version: Annotated[
        str | None, typer.Argument(metavar="VERSION", help="Number or alias of a version.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a model and its versions, or one version.

    A version is shown with its files and the job, code and environment that it came from.

    \b
    Examples:
      retarget model show iris
      retarget model show iris 3
      retarget model show iris@champion
    """
    name, referenced = _parse_reference(name)
    if version is not None and referenced is not None:
        raise Invalid(f"got two versions, {referenced!r} and {version!r}; pass only one")
    model, chosen = _model(name), referenced or version
    item = model if chosen is None else _version(model, chosen)
    from retarget.sdk.models import Model

    if as_json:
        view = item.to_json()
        if not isinstance(item, Model):
            view["files"] = [asdict(file) for file in item.files()]
        write_json(view)
        return
    from retarget.cli.show_models import show_model, show_version

    show_model(item) if isinstance(item, Model) else show_version(item)


@app.command()
def register(
    name: Name,
    job: Annotated[
        str,
        typer.Option(metavar="JOB", help="Job that wrote the model.", autocompletion=complete_job),
    ],
    path: Annotated[
        str,
        typer.Option(metavar="PATH", help="File or folder of the job, or a model it logged."),
    ],
    description: Annotated[
        str, typer.Option(metavar="TEXT", help="Description of this version.")
    ] = "",
    tag: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Set a tag; repeatable.")
    ] = None,
) -> None:
    """Register files of a job as a new version of a model.

    The model is created if it does not exist. The version keeps its files if the job is deleted.
    Prints NAME:VERSION.

    \b
    Example:
      retarget model register iris --job night --path outputs/model.pkl
    """
    tags = parse_tags(tag)
    version = find_job(job).register_model(name, path, description=description, tags=tags)
    print_result(f"{version.name}:{version.version}")


@app.command()
def download(
    name: Reference,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder to write to. Default: NAME-VERSION."
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Download the files of a version and print their paths.

    Default: the newest version.

    \b
    Examples:
      retarget model download iris -o models/iris
      retarget model download iris@champion
    """
    from retarget.cli.live_bar import Transfer

    name, referenced = _parse_reference(name)
    version = _version(_model(name), referenced or "latest")
    folder = f"{version.name}-{version.version}" if output is None else output
    label = f"{version.name}:{version.version}"
    with Transfer(f"downloading {label}", f"downloaded {label}") as transfer:
        files = version.download(folder, overwrite=force, progress=transfer.update)
    paths = [str(path) for path in files]
    write_json(paths) if as_json else [print_result(path) for path in paths]


@app.command()
def alias(
    name: Name,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Alias, such as champion.")],
    version: Annotated[
        str | None,
        typer.Argument(metavar="VERSION", help="Number, or another alias, of a version."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
) -> None:
    """Point an alias at a version of a model.

    An alias points at one version; setting it again moves it.

    \b
    Examples:
      retarget model alias iris champion 3
      retarget model alias iris champion --remove
    """
    if remove == (version is not None):
        raise Invalid("missing version; pass its number, or use --remove")
    model = _model(name)
    if version is None:
        if alias not in model.aliases:
            raise NotFound(f"{name!r} has no alias {alias!r}; it has {_join(model.aliases)}")
        model.remove_alias(alias)
        print_status(f"removed {name}@{alias}", "dim")
        return
    chosen = _version(model, version.removeprefix(f"{name}:"))
    chosen.alias(alias)
    print_status(f"{name}@{alias} is version {chosen.version}", "dim")


@app.command()
def delete(
    name: Reference,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a version and its files, or a model and all its versions.

    The command asks first, unless it runs without a terminal.

    \b
    Examples:
      retarget model delete iris:3
      retarget model delete iris --yes
    """
    name, referenced = _parse_reference(name)
    model = _model(name)
    version = None if referenced is None else _version(model, referenced)
    label = _describe(model) if version is None else f"{name}:{version.version}"
    if not yes and sys.stdin.isatty():
        confirm_deletion(printable(f"Delete {label} and its files?"))
    aliases = version.aliases if version is not None else ()
    (version or model).delete()
    names = f" and its alias{'es' * (len(aliases) > 1)} {', '.join(aliases)}" if aliases else ""
    print_status(f"deleted {label}{names}", "dim")
    if version is not None and not _model(name).versions():
        print_status(f"{name} has no versions left; delete it with: retarget model delete {name}")


def _parse_reference(reference: str) -> tuple[str, str | None]:
    """Split NAME:VERSION or NAME@ALIAS."""
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
        return workspace.models[name]
    except NotFound as error:
        suggestion = closest_name(name, [model.name for model in workspace.models])
        hint = (
            "see `retarget model list`" if suggestion is None else f"did you mean {suggestion!r}?"
        )
        raise NotFound(f"no model named {name!r}; {hint}") from error


def _version(model: "Model", name: str) -> "ModelVersion":
    try:
        return model[name]
    except (NotFound, Invalid) as error:
        versions = _join(str(version.version) for version in model.versions())
        aliases = f" and the aliases {_join(model.aliases)}" if model.aliases else ""
        message = f"{model.name!r} has no version {name!r}; it has {versions}{aliases}"
        raise NotFound(message) from error


def _join(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _describe(model: "Model") -> str:
    count = len(model.versions())
    return f"{model.name} with {count} version{'s' * (count != 1)}"
