"""`retarget environment …`: manage Python environments."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.completion import complete_environment, complete_target
from retarget.cli.groups import new_group
from retarget.cli.job_options import CondaFromPypi
from retarget.cli.lookup import AsJson
from retarget.cli.run import environment_from_options, image_options, resolve_environment
from retarget.cli.terminal import print_status, write_json
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.environment_registry import Environments
    from retarget.sdk.job import Job
    from retarget.sdk.workspace import Workspace

app = new_group()

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Name of an environment, such as torch or torch:3, or the start of its digest.",
        autocompletion=complete_environment,
    ),
]

BuildTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Target to build on. Default: that of the settings, or local.",
        autocompletion=complete_target,
    ),
]


@app.command("list")
def list_environments(as_json: AsJson = False) -> None:
    """List environments: registered ones, and those built for jobs."""
    environments = _environments().list()
    if as_json:
        write_json([asdict(environment) for environment in environments])
    else:
        from retarget.cli.show_environments import show_environments

        show_environments(environments)


@app.command()
def show(name: Name, as_json: AsJson = False) -> None:
    """Show the packages of an environment and where it is built."""
    environment = _environments()[name]
    if as_json:
        write_json(asdict(environment))
    else:
        from retarget.cli.show_environments import show_environment

        show_environment(environment)


@app.command()
def versions(name: Name, as_json: AsJson = False) -> None:
    """List the versions of a registered environment."""
    known = _environments().versions(name)
    if as_json:
        write_json([asdict(version) for version in known])
    else:
        from retarget.cli.show_environments import show_versions

        show_versions(known)


@app.command()
def update(name: Name, target: BuildTarget = None) -> None:
    """Resolve an environment again, as a new version, and build it.

    Earlier versions and the jobs that ran with them keep their packages.
    """
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    version = workspace.environments.update(name)
    print_status(f"{version.label}: resolving the versions again", "dim")
    code = _build_now(workspace, version, target)
    if code:
        print_status(
            f"{version.label} was not built; to return to the previous version, run "
            f"`retarget environment delete {version.label}`"
        )
    raise typer.Exit(code)


@app.command()
def build(  # noqa: PLR0913  one parameter per option
    definition: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|NAME",
            help="conda.yml, requirements.txt, pyproject.toml, or a registered environment.",
            autocompletion=complete_environment,
        ),
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option(metavar="PKG", help="Package to install; repeatable.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Container image to start from.")
    ] = None,
    dockerfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Dockerfile to build the image from.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Build context. Default: the Dockerfile's folder."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Register the environment under this name.")
    ] = None,
    target: BuildTarget = None,
    conda_from_pypi: CondaFromPypi = False,
) -> None:
    """Build an environment now, so that jobs do not wait for it.

    \b
    Examples:
      retarget environment build conda.yml --name torch
      retarget run -e torch train.py
    """
    images = image_options(image, dockerfile, context)
    environment = environment_from_options(
        definition, None, pip or [], images, conda_from_pypi=conda_from_pypi
    )
    if environment is None:
        raise Invalid("nothing to build; pass a file, a registered environment, --pip or --image")
    raise typer.Exit(_build(environment, name, target))


@app.command()
def delete(name: Name) -> None:
    """Delete an environment from the server and from its targets.

    NAME stands for all its versions, NAME:3 for one. An environment that a job uses is not
    deleted. If it has several names, only this name is removed.
    """
    targets = _environments().delete(name)
    print_status(f"deleted {name}" + (f" from {', '.join(targets)}" if targets else ""), "dim")


def _build(environment: Any, name: str | None, target: str | None) -> int:
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    environment = resolve_environment(workspace, environment)
    if name is not None and not isinstance(environment, str):
        environment = workspace.environments.register(name, environment)
        print_status(f"registered as {environment.label}", "dim")
    return _build_now(workspace, environment, target)


def _build_now(workspace: "Workspace", environment: Any, target: str | None) -> int:
    """Build with a job that is deleted unless it fails, because the user did not submit it."""
    from retarget.cli.watch import submit_and_watch
    from retarget.core.states import JobState

    jobs: list[Job] = []

    def submit() -> "Job":
        jobs.append(workspace.send(prepared))
        return jobs[0]

    prepared = workspace.prepare_build(environment, target=target)
    code = submit_and_watch(submit, detach=False, is_build=True)
    job = jobs[0].refresh()
    if job.state in (JobState.SUCCEEDED, JobState.CANCELED):
        job.delete()
        verb = "built" if job.state is JobState.SUCCEEDED else "canceled the build"
        print_status(f"{verb} on {job.target}", "dim")
    return code


def _environments() -> "Environments":
    from retarget.sdk.workspace import Workspace

    return Workspace().environments
