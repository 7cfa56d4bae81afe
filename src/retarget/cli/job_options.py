"""The options that define a job, shared by `run` and `job rerun`."""

from typing import Annotated

import typer

from retarget.cli.completion import (
    complete_environment,
    complete_experiment,
    complete_secret,
    complete_target,
)

_WHERE, _ENVIRONMENT, _JOB, _LIMITS = "Where to run", "Environment", "Job", "Limits"

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        metavar="NAME",
        help="Target to run on. Default: that of the settings, or local.",
        autocompletion=complete_target,
        rich_help_panel=_WHERE,
    ),
]
Cpus = Annotated[
    float | None, typer.Option(metavar="N", help="CPUs per node.", rich_help_panel=_WHERE)
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory to reserve per node: 512m, 2g. Only a container limits a job to it.",
        rich_help_panel=_WHERE,
    ),
]
Gpus = Annotated[
    int | None, typer.Option(metavar="N", help="GPUs per node.", rich_help_panel=_WHERE)
]
Nodes = Annotated[
    int | None, typer.Option(metavar="N", help="Number of nodes.", rich_help_panel=_WHERE)
]
ProcessesPerNode = Annotated[
    int | None,
    typer.Option(metavar="N", help="Processes to start on each node.", rich_help_panel=_WHERE),
]
EnvironmentName = Annotated[
    str | None,
    typer.Option(
        "--environment",
        "-e",
        metavar="FILE|NAME",
        help="Environment to run in: conda.yml, requirements.txt, pyproject.toml, the folder of a "
        "project, or the name of a registered environment.",
        autocompletion=complete_environment,
        rich_help_panel=_ENVIRONMENT,
    ),
]
Python = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|VERSION",
        help="Path of an interpreter on the target, or the Python version to install.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
Pip = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PKG", help="Package to install; repeatable.", rich_help_panel=_ENVIRONMENT
    ),
]
AllowPip = Annotated[
    bool,
    typer.Option(
        "--allow-pip",
        help="Let `pip` in the job change the interpreter that it runs with. Default: the job has "
        "its own layer for packages.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
Image = Annotated[
    str | None,
    typer.Option(metavar="IMAGE", help="Container image to run in.", rich_help_panel=_ENVIRONMENT),
]
Dockerfile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Dockerfile to build the image from.", rich_help_panel=_ENVIRONMENT
    ),
]
BuildContext = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="DIR",
        help="Build context. Default: the Dockerfile's folder.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
CondaFromPypi = Annotated[
    bool,
    typer.Option(
        "--conda-from-pypi",
        help="Install conda packages from PyPI, and build without those that PyPI lacks.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="K=V|K",
        help="Set an environment variable; repeatable. K alone takes the value from your shell.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
VariablesFile = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE",
        help="Read environment variables from a file of K=V lines; repeatable. --env overrides it.",
        rich_help_panel=_ENVIRONMENT,
    ),
]
SecretNames = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME",
        help="Set an environment variable from a stored secret; repeatable.",
        autocompletion=complete_secret,
        rich_help_panel=_ENVIRONMENT,
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the job. Default: a generated one.",
        rich_help_panel=_JOB,
    ),
]
Experiment = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Experiment to add the job to.",
        autocompletion=complete_experiment,
        rich_help_panel=_JOB,
    ),
]
DisplayName = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Name for people; other jobs may have it too. Default: the name of the job.",
        rich_help_panel=_JOB,
    ),
]
Description = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What the job is for.", rich_help_panel=_JOB),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", metavar="K=V", help="Set a tag; repeatable.", rich_help_panel=_JOB),
]
Code = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder to send. Default: the current folder, or the script's folder if the script is "
        "elsewhere.",
        rich_help_panel=_JOB,
    ),
]
Include = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH|PATTERN",
        help="Send this file or folder, or what this pattern matches, although a rule excludes it; "
        "repeatable.",
        rich_help_panel=_JOB,
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        metavar="none|all|PATTERN",
        help="What to keep of files written outside outputs/; repeatable. Default: all, up to "
        "200 MiB.",
        rich_help_panel=_JOB,
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(metavar="N", help="How often to retry after a failure.", rich_help_panel=_LIMITS),
]
Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Stop the script after this time: 90s, 15m, 1h30m, or a number of seconds.",
        rich_help_panel=_LIMITS,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Jobs with a higher priority start first. Default: 0.",
        rich_help_panel=_LIMITS,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Profile of the project's retarget.toml to use.",
        rich_help_panel=_WHERE,
    ),
]
SplitStderr = Annotated[
    bool,
    typer.Option(
        "--split-stderr",
        help="Keep stdout and stderr of the script apart. Default: only if stdout is not a "
        "terminal.",
        rich_help_panel=_JOB,
    ),
]
Detach = Annotated[
    bool, typer.Option("--detach", "-d", help="Print the job's name and do not wait.")
]
