"""`retarget job rerun`: run the same code again, with other arguments or resources."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli import job_options as option
from retarget.cli.completion import complete_job, complete_target
from retarget.cli.lookup import find_job
from retarget.cli.run import environment_from_options, image_options, resolve_environment
from retarget.cli.tags import parse_tags
from retarget.cli.terminal import print_status
from retarget.cli.variables import describe_secrets, read_variables
from retarget.core.errors import Invalid

if TYPE_CHECKING:
    from retarget.sdk.job import Job


def rerun(  # noqa: PLR0913  one parameter per option
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME [-- ARGS]",
            help="Name or id of a job. Arguments after `--` go to its script.",
            autocompletion=complete_job,
        ),
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="NAME",
            help="Target to run on.",
            autocompletion=complete_target,
            rich_help_panel="Where to run",
        ),
    ] = None,
    cpus: option.Cpus = None,
    memory: option.Memory = None,
    gpus: option.Gpus = None,
    nodes: option.Nodes = None,
    processes_per_node: option.ProcessesPerNode = None,
    environment: option.EnvironmentName = None,
    python: option.Python = None,
    pip: option.Pip = None,
    image: option.Image = None,
    dockerfile: option.Dockerfile = None,
    build_context: option.BuildContext = None,
    conda_from_pypi: option.CondaFromPypi = False,
    variables: option.Variables = None,
    env_file: option.VariablesFile = None,
    secrets: option.SecretNames = None,
    new_name: option.Name = None,
    split_stderr: option.SplitStderr = False,
    experiment: option.Experiment = None,
    display_name: option.DisplayName = None,
    description: option.Description = None,
    tags: option.Tags = None,
    retries: option.Retries = None,
    timeout: option.Timeout = None,
    priority: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Jobs with a higher priority start first.",
            rich_help_panel="Limits",
        ),
    ] = None,
    detach: option.Detach = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --detach: print the new job as JSON.")
    ] = False,
) -> None:
    """Run the same code again, with other arguments or resources.

    Everything that no option changes stays the same. Arguments after `--` replace all arguments
    of the script; if the job runs a command instead of a script, they are the whole new command.
    Variables, secrets and tags are added to those of the job. Options for the environment replace
    the whole environment. The output is shown as with `retarget run`.

    \b
    Examples:
      retarget job rerun night
      retarget job rerun night --cpus 2 -- --lr 0.2
      retarget job rerun night -t gpu-box --name night-gpu
    """
    if as_json and not detach:
        raise Invalid("--json needs --detach, because the script's output goes to stdout")
    changes: dict[str, Any] = {
        "args": context.obj or None,
        "target": target,
        "environment": environment_from_options(
            environment,
            python,
            pip or [],
            image_options(image, dockerfile, build_context),
            conda_from_pypi=conda_from_pypi,
        ),
        "name": new_name,
        "experiment": experiment,
        "display_name": display_name,
        "description": description,
        "tags": parse_tags(tags) or None,
        "variables": read_variables(variables or [], env_file or []) or None,
        "cpus": cpus,
        "memory": memory,
        "gpus": gpus,
        "nodes": nodes,
        "processes_per_node": processes_per_node,
        "retries": retries,
        "timeout": timeout,
        "priority": priority,
        "secrets": secrets or None,
        "split_stderr": split_stderr or None,
    }
    raise typer.Exit(_rerun(find_job(name), changes, detach=detach, as_json=as_json))


def _rerun(job: "Job", changes: dict[str, Any], *, detach: bool, as_json: bool) -> int:
    from retarget.cli.log_writer import splits_stderr
    from retarget.cli.watch import submit_and_watch
    from retarget.sdk.workspace import Workspace

    changes["environment"] = resolve_environment(Workspace(), changes["environment"])
    if changes["args"] and job.to_json().get("arguments_index") is None:
        _check_command(job, changes["args"])
    if line := describe_secrets(changes["variables"] or {}):
        print_status(line, "dim")
    if not detach and changes["split_stderr"] is None:
        changed = {name: value for name, value in changes.items() if value is not None}
        changes["split_stderr"] = splits_stderr(job.to_json() | changed)
    return submit_and_watch(lambda: job.rerun(**changes), detach=detach, as_json=as_json)


def _check_command(job: "Job", command: list[str]) -> None:
    """Say that the whole command is replaced, or refuse one that is only options."""
    before = shlex.join(job.to_json()["command"])
    if command[0].startswith("-"):
        raise Invalid(
            f"{job.name} runs a command, not a script, so `--` must be followed by the whole new "
            f"command, such as: retarget job rerun {job.name} -- {before}"
        )
    print_status(f"running `{shlex.join(command)}` instead of the command `{before}`", "dim")
