"""`retarget run`: submit a job, show its output, exit with its exit code."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli import job_options as option
from retarget.cli.snapshot import report_content, report_scan
from retarget.cli.tags import parse_tags
from retarget.cli.terminal import print_status, write_json
from retarget.cli.variables import describe_secrets, read_variables
from retarget.core.errors import Invalid, NotFound

if TYPE_CHECKING:
    from retarget.sdk.workspace import Workspace

_DEFINITIONS = (".yml", ".yaml", ".txt", ".toml")  # files that define an environment


def run(  # noqa: PLR0913  one parameter per option
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT [-- ARGS]",
            help="A .py, .sh, .ipynb or executable file. Arguments after `--` go to it.",
        ),
    ] = None,
    target: option.Target = None,
    cpus: option.Cpus = None,
    memory: option.Memory = None,
    gpus: option.Gpus = None,
    nodes: option.Nodes = None,
    processes_per_node: option.ProcessesPerNode = None,
    environment: option.EnvironmentName = None,
    python: option.Python = None,
    pip: option.Pip = None,
    allow_pip: option.AllowPip = False,
    image: option.Image = None,
    dockerfile: option.Dockerfile = None,
    build_context: option.BuildContext = None,
    conda_from_pypi: option.CondaFromPypi = False,
    variables: option.Variables = None,
    env_file: option.VariablesFile = None,
    secrets: option.SecretNames = None,
    code: option.Code = None,
    include: option.Include = None,
    keep: option.Keep = None,
    split_stderr: option.SplitStderr = False,
    name: option.Name = None,
    experiment: option.Experiment = None,
    display_name: option.DisplayName = None,
    description: option.Description = None,
    tags: option.Tags = None,
    retries: option.Retries = None,
    timeout: option.Timeout = None,
    priority: option.Priority = None,
    profile: option.Profile = None,
    detach: option.Detach = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be started; start nothing.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="With --detach or --dry-run: print the job or plan as JSON."),
    ] = False,
) -> None:
    """Run a script, or a command after `--`, on a target.

    Retarget sends the folder as it is now, shows the output as it is written, and exits with the
    job's exit code: 130 if the job was canceled, 124 if it timed out. On Ctrl-C you can detach,
    cancel or keep waiting; a second Ctrl-C cancels. A job has no stdin.

    \b
    Examples:
      retarget run train.py                      this folder, on this machine
      retarget run --cpus 2 --gpus 1 train.py    waits until they are free
      retarget run -e conda.yml train.py -- --lr 0.1
      retarget run --pip scikit-learn --secret HF_TOKEN train.py
      retarget run --image python:3.12-slim train.py
      retarget run study.ipynb -- -p lr 0.1      keeps outputs/study.ipynb
      retarget run -d --name night train.py      does not wait
      retarget run -- nvidia-smi                 a command, not a script
    """
    if as_json and not (dry_run or detach):
        raise Invalid(
            "--json needs --detach or --dry-run, because the script's output goes to stdout"
        )
    work, args = _work(script, context)
    options: dict[str, Any] = {
        "code": code,
        "target": target,
        "args": args,
        "environment": environment_from_options(
            environment,
            python,
            pip or [],
            image_options(image, dockerfile, build_context),
            conda_from_pypi=conda_from_pypi,
        ),
        "name": name,
        "experiment": experiment,
        "display_name": display_name,
        "description": description,
        "tags": parse_tags(tags) or None,
        "variables": read_variables(variables or [], env_file or []),
        "cpus": cpus,
        "memory": memory,
        "gpus": gpus,
        "nodes": nodes,
        "processes_per_node": processes_per_node,
        "retries": retries,
        "timeout": timeout,
        "priority": priority,
        "allow_pip": allow_pip or None,
        "include": include,
        "profile": profile,
        "secrets": secrets,
        "keep": keep,
        "split_stderr": split_stderr or None,
    }
    if dry_run:
        _show_plan(work, options, as_json=as_json)
        return
    raise typer.Exit(_submit(work, options, detach=detach, as_json=as_json))


def image_options(image: str | None, dockerfile: str | None, context: str | None) -> dict[str, str]:
    """Return the options about an image that are set; an empty one is refused later."""
    options = {"image": image, "dockerfile": dockerfile, "context": context}
    return {name: value for name, value in options.items() if value is not None}


def environment_from_options(
    name: str | None,
    python: str | None,
    packages: Sequence[str],
    image: dict[str, str] | None = None,
    *,
    conda_from_pypi: bool = False,
) -> Any:
    """Return the environment that the options define, or the name of a registered one."""
    import os
    from dataclasses import replace

    from retarget.sdk.environments import Environment
    from retarget.sdk.local_paths import is_folder, with_extras

    if python is not None and not python.strip():
        raise Invalid("--python is empty; pass the path of an interpreter, or omit the option")
    if conda_from_pypi:
        _check_conda_file(name)
    more: dict[str, Any] = {"packages": packages or None, **(image or {})}
    if name is None:
        is_defined = python or packages or image
        return Environment(python=python, **more) if is_defined else None
    if os.path.isfile(name) or is_folder(name) or with_extras(name):
        environment = Environment.from_file(name, python=python)
        more["packages"] = [*(environment.packages or ()), *packages] or None
        return replace(environment, conda_from_pypi=conda_from_pypi, **more)
    if python or packages:
        raise Invalid(f"--python and --pip need an environment file; {name!r} is not a file")
    if image:
        raise Invalid(f"--{next(iter(image))} needs an environment file; {name!r} is not a file")
    if "/" in name or name.endswith(_DEFINITIONS):
        raise Invalid(f"environment file {name!r} not found{_similar_file(name)}")
    return name


def _similar_file(name: str) -> str:
    import os
    from difflib import get_close_matches

    folder, base = os.path.split(name)
    try:
        files = [file for file in os.listdir(folder or ".") if file.endswith(_DEFINITIONS)]
    except OSError:
        return ""
    matches = get_close_matches(base, files, n=1)
    return f"; did you mean {os.path.join(folder, matches[0])!r}?" if matches else ""


def _check_conda_file(name: str | None) -> None:
    if name is None or not name.endswith((".yml", ".yaml")):
        raise Invalid("--conda-from-pypi needs a conda file; pass it with --environment")


def resolve_environment(workspace: "Workspace", environment: Any) -> Any:
    """Look up an environment by name; raise Invalid if no environment has this name."""
    if not isinstance(environment, str):
        return environment
    try:
        return workspace.environments[environment]
    except NotFound as error:
        if ":" in environment:  # the server says which versions there are
            raise
        raise Invalid(
            f"{environment!r} is neither a file nor a registered environment; "
            "`retarget environment list` shows the registered ones",
            field="environment",
        ) from error


def _work(script: str | None, context: typer.Context) -> tuple[str | list[str], list[str]]:
    """Return the script and its arguments, or a whole command."""
    extra: Sequence[str] = context.args
    script_args: Sequence[str] | None = context.obj
    if script is not None and script.startswith("-"):
        raise _unexpected_argument("SCRIPT", [script, *extra], context)
    if script is not None and extra:
        _suggest_correction(script, extra)
    if extra:
        raise _unexpected_argument(script or "SCRIPT", extra, context)
    if script is not None:
        _check_script(script)
        return script, list(script_args or [])
    if not script_args:
        raise Invalid("nothing to run; pass a script, or a command after `--` (see --help)")
    if len(script_args) == 1:
        _check_program(script_args[0])
    return list(script_args), []


def _suggest_correction(script: str, extra: Sequence[str]) -> None:
    """Raise Invalid if these words are a command, or one file name with spaces in it."""
    import os
    import shlex

    for end in range(1, len(extra) + 1):
        name = " ".join([script, *extra[:end]])
        if os.path.isfile(name):
            args = f" -- {shlex.join(extra[end:])}" if extra[end:] else ""
            raise Invalid(f"quote a name with spaces: retarget run {shlex.quote(name)}{args}")
    if _is_program(script) and not os.path.isfile(script):
        command = shlex.join([script, *extra])
        raise Invalid(f"script {script!r} not found; to run a command: retarget run -- {command}")


def _check_script(script: str) -> None:
    """Raise Invalid if the name of a script is a whole command: "python train.py"."""
    import os

    program, _, rest = script.strip().partition(" ")
    if rest and not os.path.isfile(script) and _is_program(program):
        raise Invalid(f"script {script!r} not found; to run a command: retarget run -- {script}")


def _check_program(program: str) -> None:
    """Raise Invalid if the name of a program is a whole command or a line for a shell."""
    import os
    import shlex

    first, _, rest = program.strip().partition(" ")
    if not rest or os.path.isfile(program) or not _is_program(first):
        return
    needs_shell = any(sign in program for sign in "&|;<>$`*~")
    line = f"bash -c {shlex.quote(program)}" if needs_shell else program.strip()
    raise Invalid(f"program {program!r} not found; write: retarget run -- {line}")


def _is_program(name: str) -> bool:
    import shutil

    # a job has a `python`, even where this machine has only `python3`
    return name == "python" or shutil.which(name) is not None


def _unexpected_argument(script: str, arguments: Sequence[str], context: typer.Context) -> Invalid:
    import shlex
    from difflib import get_close_matches

    if script == "SCRIPT" and arguments[0] == "-m" and len(arguments) > 1:
        command = shlex.join(["python", *arguments])
        return Invalid(f"to run a module, use: retarget run -- {command}")
    options = [name for param in context.command.params for name in param.opts]
    matches = get_close_matches(arguments[0].partition("=")[0], options, 1, 0.8)
    if matches:
        return Invalid(f"`retarget run` has no option {arguments[0]!r}; did you mean {matches[0]}?")
    return Invalid(
        f"`retarget run` has no option or argument {arguments[0]!r}; arguments of the script go "
        f"after `--`: retarget run {script} -- {shlex.join(arguments)}"
    )


def _show_plan(work: str | list[str], options: dict[str, Any], *, as_json: bool) -> None:
    from retarget.cli.progress import FolderProgress
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    options["environment"] = resolve_environment(workspace, options["environment"])
    with FolderProgress() as progress:
        plan = workspace.plan(
            work,
            reading=progress.reading,
            scanned=progress.report(report_content),  # the plan itself has what is excluded
            **options,
        )
    if as_json:
        write_json(plan)
        return
    from retarget.cli.show import show_plan

    show_plan(plan)


def _submit(work: str | list[str], options: dict[str, Any], *, detach: bool, as_json: bool) -> int:
    from retarget.cli.log_writer import splits_stderr
    from retarget.cli.progress import FolderProgress
    from retarget.cli.watch import submit_and_watch
    from retarget.sdk.workspace import Workspace

    workspace = Workspace()
    options["environment"] = resolve_environment(workspace, options["environment"])
    with FolderProgress() as progress:
        prepared = workspace.prepare(
            work,
            reading=progress.reading,
            scanned=progress.report(report_scan),
            progress=progress.sending,
            **options,
        )
    if line := describe_secrets(prepared.spec.get("variables", {})):
        print_status(line, "dim")
    if line := _describe_python(prepared.spec):
        print_status(line, "dim")
    if not detach:
        prepared.spec.setdefault("split_stderr", splits_stderr(prepared.spec))
    return submit_and_watch(
        lambda: workspace.send(prepared), detach=detach, as_json=as_json, code=prepared.folder
    )


def _describe_python(spec: dict[str, Any]) -> str:
    """Return a line if a job here runs with a Python other than that of the shell; else nothing."""
    from retarget.sdk.interpreter import activated_interpreter

    environment, own = spec["environment"], None
    if spec["target"] == "local" and not environment.get("python"):
        own = environment.get("prefer")  # of an interpreter that was not chosen
    activated = activated_interpreter()
    if own is None or activated is None:
        return ""
    return f"runs with {own}, not with the activated environment; to use that: --python {activated}"
