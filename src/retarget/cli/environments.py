"""`retarget env …`: what a script finds around it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.complete import complete_environment, complete_target
from retarget.cli.groups import new_group
from retarget.cli.run import chosen_environment, in_container, known_environment
from retarget.cli.terminal import say, write_json
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.registry import Environments

app = new_group()

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="A name, or a digest's start.", autocompletion=complete_environment
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_environments(as_json: AsJson = False) -> None:
    """List environments: those with a name, and those that were built for some job."""
    found = _environments().list()
    if as_json:
        write_json([asdict(each) for each in found])
    else:
        from retarget.cli.show_environments import show_environments

        show_environments(found)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show what an environment is made of, and where it is built."""
    found = _environments()[name]
    if as_json:
        write_json(asdict(found))
    else:
        from retarget.cli.show_environments import show_environment

        show_environment(found)


@app.command()
def build(  # noqa: PLR0913  one parameter an option
    definition: Annotated[
        str | None,
        typer.Argument(metavar="FILE|NAME", help="conda.yml, requirements.txt, pyproject.toml."),
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option(metavar="PKG", help="A package to install; repeatable.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="A container image to begin with.")
    ] = None,
    dockerfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="A Dockerfile to build that image from.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(metavar="DIR", help="The folder it is built in: the file's own.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Register it under this name.")
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--target", "-t", metavar="NAME", help="Where.", autocompletion=complete_target
        ),
    ] = "local",
) -> None:
    """Build an environment before a job needs it; jobs then find it ready.

    \b
    Examples:
      retarget env build conda.yml --name torch
      retarget run -e torch train.py
    """
    container = in_container(image, dockerfile, context)
    environment = chosen_environment(definition, None, pip or [], container)
    if environment is None:
        raise Invalid("what to build? name a file, a registered environment, --pip or --image")
    raise typer.Exit(_build(environment, name, target))


@app.command()
def delete(name: Name) -> None:
    """Forget an environment and remove it where it is built. Refused while a job uses it.

    Of one that has another name, too, only this name is forgotten.
    """
    removed = _environments().delete(name)
    say(f"removed {name}" + (f" from {', '.join(removed)}" if removed else ""), "dim")


def _build(environment: Any, name: str | None, target: str) -> int:
    from retarget.cli.submit import show_submitted
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    environment = known_environment(workspace, environment)
    if name is not None and not isinstance(environment, str):
        environment = workspace.environments.register(name, environment)
    prepared = workspace.prepare_build(environment, target=target)
    return show_submitted(lambda: workspace.send(prepared), detach=False)


def _environments() -> "Environments":
    from retarget.sdk.workspace import Workspace

    return Workspace().environments
