"""`retarget run`: submit, show what happens, end with the job's exit code."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.complete import complete_environment, complete_target
from retarget.cli.terminal import write_json
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.workspace import Workspace

Target = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="NAME", help="Where to run.", autocompletion=complete_target
    ),
]


def run(  # noqa: PLR0913  one parameter an option
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT [-- ARGS]",
            help="A .py, .sh or executable file; what follows `--` is for it.",
        ),
    ] = None,
    target: Target = "local",
    code: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The folder to send: this one, or the script's own."),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(
            "--env",
            "-e",
            metavar="FILE|NAME",
            help="conda.yml, requirements.txt, pyproject.toml, or a registered name.",
            autocompletion=complete_environment,
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="An interpreter, used as it is; with --env or --pip, the version to build with.",
        ),
    ] = None,
    pip: Annotated[
        list[str] | None, typer.Option(metavar="PKG", help="A package to install; repeatable.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="A container image to run in.")
    ] = None,
    dockerfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="A Dockerfile to build that image from.")
    ] = None,
    build_context: Annotated[
        str | None,
        typer.Option("--context", metavar="DIR", help="The folder it is built in: the file's own."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="A name for the job.")] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the job belongs to.")
    ] = None,
    set_env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable to set; repeatable.")
    ] = None,
    cpus: Annotated[float | None, typer.Option(metavar="N", help="CPUs a node.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory a node: 512m, 2g.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="N", help="GPUs a node.")] = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Machines.")] = None,
    processes_per_node: Annotated[
        int | None, typer.Option(metavar="N", help="Processes on each.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(metavar="N", help="Further tries if it fails.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long it may run: 90s, 15m, 1h30m; a plain number is seconds.",
        ),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(metavar="N", help="Higher ones go first; 0 is usual.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the job's name and do not wait.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print the whole plan as JSON.")
    ] = False,
) -> None:
    """Run a script, or a command after `--`, on a target.

    The folder is sent as it is now, the output comes as it is written, and the exit code is the
    job's: 130 when it was canceled, 124 when it ran out of time. Ctrl-C asks whether to detach,
    cancel or keep waiting; a second one at the question cancels. A job gets no stdin.

    \b
    Examples:
      retarget run train.py                    this folder, on this machine
      retarget run --cpus 2 --gpus 1 train.py  it waits until they are free
      retarget run --env conda.yml train.py -- --lr 0.1
      retarget run --pip scikit-learn train.py
      retarget run --image python:3.12-slim train.py
      retarget run -d --name night train.py    do not wait
      retarget run -- nvidia-smi               a command instead of a script
    """
    if as_json and not dry_run:
        raise Invalid("--json goes with --dry-run; `retarget job show NAME --json` tells of a job")
    what, args = _what(script, context.args, context.obj)
    options: dict[str, Any] = {
        "code": code,
        "target": target,
        "args": args,
        "environment": chosen_environment(
            environment, python, pip or [], in_container(image, dockerfile, build_context)
        ),
        "name": name,
        "experiment": experiment,
        "env": _variables(set_env or []),
        "cpus": cpus,
        "memory": memory,
        "gpus": gpus,
        "nodes": nodes,
        "processes_per_node": processes_per_node,
        "retries": retries,
        "timeout": timeout,
        "priority": priority,
    }
    if dry_run:
        _show_plan(what, options, as_json=as_json)
        return
    raise typer.Exit(_submit(what, options, detach=detach))


def in_container(image: str | None, dockerfile: str | None, context: str | None) -> dict[str, str]:
    """Return what the options say of an image; an empty one is an error in its own words."""
    told = {"image": image, "dockerfile": dockerfile, "context": context}
    return {name: value for name, value in told.items() if value is not None}


def chosen_environment(
    name: str | None,
    python: str | None,
    packages: Sequence[str],
    container: dict[str, str] | None = None,
) -> Any:
    """Return the environment that the options mean; a registered one by its name."""
    import os
    from dataclasses import replace

    from retarget.sdk.environments import Environment

    if python is not None and not python.strip():
        raise Invalid("--python is empty; name an interpreter's path, or leave it out")
    more: dict[str, Any] = {"packages": packages, **(container or {})}
    if name is None:
        wanted = python or packages or container
        return Environment(python=python, **more) if wanted else None
    if os.path.isfile(name):
        return replace(Environment.from_file(name, python=python), **more)
    if python or packages:
        raise Invalid(f"--python and --pip go with a file, and there is no file {name!r}")
    if container:
        raise Invalid(f"--{next(iter(container))} goes with a file, and there is no file {name!r}")
    if "/" in name or name.endswith((".yml", ".yaml", ".txt", ".toml")):
        raise Invalid(f"there is no environment file {name!r}")
    return name


def known_environment(workspace: "Workspace", environment: Any) -> Any:
    """Return what a server knows under a name; Invalid if that is neither a name nor a file."""
    if not isinstance(environment, str):
        return environment
    try:
        return workspace.environments[environment]
    except NotFound as error:
        raise Invalid(
            f"{environment!r} is neither a file here nor a registered environment; "
            "`retarget env list` shows those",
            field="environment",
        ) from error


def _what(
    script: str | None, extra: Sequence[str], after: Sequence[str] | None
) -> tuple[str | list[str], list[str]]:
    """Return the script and its arguments, or a whole command."""
    if script is not None and script.startswith("-"):
        raise _stray("SCRIPT", [script, *extra])
    if script is not None and extra:
        _hint_at_another(script, extra)
    if extra:
        raise _stray(script or "SCRIPT", extra)
    if script is not None:
        return script, list(after or [])
    if not after:
        raise Invalid("what to run? name a script, or a command after `--`; see --help")
    return list(after), []


def _hint_at_another(script: str, extra: Sequence[str]) -> None:
    """Raise Invalid if these words are a command, or one name with blanks in it."""
    import os
    import shlex
    import shutil

    for end in range(1, len(extra) + 1):
        name = " ".join([script, *extra[:end]])
        if os.path.isfile(name):
            after = f" -- {shlex.join(extra[end:])}" if extra[end:] else ""
            raise Invalid(f"quote a name with blanks: retarget run {shlex.quote(name)}{after}")
    if not os.path.isfile(script) and shutil.which(script):
        command = shlex.join([script, *extra])
        raise Invalid(f"{script!r} is no script here; to run a command: retarget run -- {command}")


def _stray(script: str, words: Sequence[str]) -> Invalid:
    import shlex
    from difflib import get_close_matches

    known = ["--" + name.replace("_", "-") for name in run.__annotations__]
    close = get_close_matches(words[0].partition("=")[0], known, 1, 0.8)
    if close:
        return Invalid(f"`retarget run` has no option {words[0]!r}; did you mean {close[0]}?")
    return Invalid(
        f"`retarget run` has no option or argument {words[0]!r}; what is for the script goes "
        f"after `--`: retarget run {script} -- {shlex.join(words)}"
    )


def _variables(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (name, equals, _) in zip(given, pairs, strict=True):
        if not equals or not name:
            raise Invalid(f"--set-env {text!r} is not K=V")
    return {name: value for name, _, value in pairs}


def _show_plan(what: str | list[str], options: dict[str, Any], *, as_json: bool) -> None:
    from retarget.cli.progress import FolderProgress
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    options["environment"] = known_environment(workspace, options["environment"])
    with FolderProgress() as progress:
        plan = workspace.plan(what, reading=progress.reading, **options)
    if as_json:
        write_json(plan)
        return
    from retarget.cli.show import show_plan

    show_plan(plan)


def _submit(what: str | list[str], options: dict[str, Any], *, detach: bool) -> int:
    from retarget.cli.progress import FolderProgress
    from retarget.cli.submit import show_submitted
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    options["environment"] = known_environment(workspace, options["environment"])
    with FolderProgress() as progress:
        prepared = workspace.prepare(
            what, reading=progress.reading, progress=progress.sending, **options
        )
    return show_submitted(lambda: workspace.send(prepared), detach=detach)
