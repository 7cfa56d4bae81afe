"""`retarget run`: submit, show what happens, end with the job's exit code."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from retarget.cli.complete import complete_environment, complete_target
from retarget.cli.terminal import write_json
from retarget.core.errors import Invalid

Target = Annotated[
    str, typer.Option("--target", "-t", help="Where to run.", autocompletion=complete_target)
]


def run(  # noqa: PLR0913  one parameter an option
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="The script; its arguments follow after `--`.")
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
    name: Annotated[str | None, typer.Option(help="A name for the job.")] = None,
    experiment: Annotated[str | None, typer.Option(help="What the job belongs to.")] = None,
    set_env: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="A variable to set; repeatable.")
    ] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs a node.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory a node: 512m, 2g.")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs a node.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Machines.")] = None,
    processes_per_node: Annotated[int | None, typer.Option(help="Processes on each.")] = None,
    retries: Annotated[int | None, typer.Option(help="Further tries if it fails.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long it may run: 90s, 1h30m.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher ones go first; 0 is usual.")] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Print the job's name and do not wait.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")
    ] = False,
) -> None:
    """Run a script, or a command after `--`, on a target.

    The folder is sent as it is now, the output comes as it is written, and the exit code is the
    job's: 130 when it was canceled, 124 when it ran out of time. Ctrl-C asks whether to detach or
    cancel; a second one cancels.

    \b
    Examples:
      retarget run train.py                      this folder, on this machine
      retarget run --cpus 2 --gpus 1 train.py    what it needs; it waits until that is free
      retarget run --env conda.yml train.py -- --lr 0.1
      retarget run --pip scikit-learn train.py
      retarget run -d --name night train.py      do not wait; later: retarget job logs night -f
      retarget run -- nvidia-smi                 a command instead of a script
    """
    what, args = _what(script, context.args, context.obj)
    options: dict[str, Any] = {
        "code": code,
        "target": target,
        "args": args,
        "environment": chosen_environment(environment, python, pip or []),
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
        _show_plan(what, options)
        return
    raise typer.Exit(_submit(what, options, detach=detach))


def chosen_environment(name: str | None, python: str | None, packages: Sequence[str]) -> Any:
    """Return the environment that the options mean; a registered one by its name."""
    from dataclasses import replace
    from pathlib import Path

    from retarget.sdk.environments import Environment

    if name is None:
        return Environment(python=python, packages=packages) if python or packages else None
    if Path(name).is_file():
        return replace(Environment.from_file(name, python=python), packages=packages)
    if python or packages:
        raise Invalid(f"--python and --pip go with a file, and there is no file {name!r}")
    if "/" in name or name.endswith((".yml", ".yaml", ".txt", ".toml")):
        raise Invalid(f"there is no environment file {name!r}")
    return name


def _what(
    script: str | None, extra: Sequence[str], after: Sequence[str] | None
) -> tuple[str | list[str], list[str]]:
    """Return the script and its arguments, or a whole command."""
    if script is not None and script.startswith("-"):
        raise _stray("SCRIPT", [script, *extra])
    if extra:
        raise _stray(script or "SCRIPT", extra)
    if script is not None:
        return script, list(after or [])
    if not after:
        raise Invalid("what to run? name a script, or a command after `--`; see --help")
    return list(after), []


def _stray(script: str, words: Sequence[str]) -> Invalid:
    return Invalid(
        f"`retarget run` has no option or argument {words[0]!r}; what is for the script goes "
        f"after `--`: retarget run {script} -- {' '.join(words)}"
    )


def _variables(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (name, equals, _) in zip(given, pairs, strict=True):
        if not equals or not name:
            raise Invalid(f"--set-env {text!r} is not K=V")
    return {name: value for name, _, value in pairs}


def _show_plan(what: str | list[str], options: dict[str, Any]) -> None:
    from retarget.sdk.workspace import Workspace

    write_json(Workspace().plan(what, **options))


def _submit(what: str | list[str], options: dict[str, Any], *, detach: bool) -> int:
    from retarget.cli.progress import UploadBar
    from retarget.cli.submit import show_submitted
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    with UploadBar() as bar:
        prepared = workspace.prepare(what, progress=bar, **options)
    return show_submitted(lambda: workspace.send(prepared), detach=detach)
