"""Turns a script or command and its options into the request that a server accepts."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from retarget.core.errors import Invalid
from retarget.core.units import parse_duration, parse_memory
from retarget.sdk import arguments, notebooks
from retarget.sdk.code_folder import describe_too_much, is_too_much
from retarget.sdk.environments import Environment
from retarget.sdk.records import KnownEnvironment

Script = str | os.PathLike[str] | Sequence[str]
EnvironmentLike = Environment | KnownEnvironment | Mapping[str, Any] | str
UploadProgress = Callable[[int, int], None]  # bytes sent, total bytes
# the folder, and how many of its files and bytes have been read
ScanProgress = Callable[[Path, int, int], None]
# `python` is that of the job's environment
_INTERPRETERS = {".py": ("python",), ".sh": ("bash",), notebooks.SUFFIX: notebooks.PROGRAM}
_PROGRAMS = {".R": "Rscript", ".r": "Rscript", ".jl": "julia", ".js": "node", ".pl": "perl"}
_SIMPLE_OPTIONS = {
    "name": (str, arguments.TEXT),
    "experiment": (str, arguments.TEXT),
    "display_name": (str, arguments.TEXT),
    "description": (str, arguments.TEXT),
    "cpus": (float, arguments.NUMBER),
    "gpus": (int, arguments.COUNT),
    "nodes": (int, arguments.COUNT),
    "processes_per_node": (int, arguments.COUNT),
    "retries": (int, arguments.COUNT),
    "priority": (int, arguments.COUNT),
    "allow_pip": (bool, arguments.SWITCH),
    "split_stderr": (bool, arguments.SWITCH),
}


class Options(TypedDict, total=False):
    """The options of a job, apart from its code and target; None means the default."""

    args: Sequence[str | float] | None
    environment: EnvironmentLike | None
    name: str | None
    experiment: str | None
    display_name: str | None
    description: str | None
    tags: Mapping[str, Any] | None
    properties: Mapping[str, Any] | None
    variables: Mapping[str, Any] | None
    cpus: float | None
    memory: int | str | None
    gpus: int | None
    nodes: int | None
    processes_per_node: int | None
    retries: int | None
    timeout: float | str | None
    priority: int | None
    allow_pip: bool | None
    split_stderr: bool | None
    include: Sequence[str] | None
    profile: str | None
    secrets: Sequence[str] | None
    keep: str | Sequence[str] | None


_NOT_SENT = ("args", "environment", "include")  # they become other fields of the request


@dataclass(frozen=True, slots=True)
class JobCode:
    """A command and the folder it runs in."""

    folder: Path
    command: tuple[str, ...]
    script: str | None = None  # its path in the folder; None for a command
    arguments_index: int | None = None  # index in the command; None for a command without `args`
    required_packages: tuple[str, ...] = ()  # beside those of the environment


def resolve_code(
    script: Script, code: str | os.PathLike[str] | None, args: Sequence[str | float] | None = None
) -> JobCode:
    """Find the script and the code folder; raise Invalid if either does not exist."""
    script_args = (
        () if args is None else arguments.strings("args", args, "a list, such as ['--epochs', '3']")
    )
    if code is not None:
        _check_folder(code)
    if not isinstance(script, str | os.PathLike):
        command = arguments.strings(
            "script", script, "a script, or a list such as ['python', 'x.py']"
        )
        if not command:
            raise Invalid("script: the command is empty", field="script")
        folder = _current_folder() if code is None else Path(code).absolute()
        arguments_index = len(command) if script_args else None
        return JobCode(folder, (*command, *script_args), arguments_index=arguments_index)
    if not str(script).strip():
        raise Invalid(f"script: {str(script)!r} is not the path of a script", field="script")
    path = _find_script(Path(script), None if code is None else Path(code))
    folder = _folder_of(path) if code is None else Path(code).absolute()
    inside = _path_in(folder, path)
    if inside is None:
        raise Invalid(f"the script {str(script)!r} is not in the code folder {folder}")
    command = _command(inside, path)
    required: tuple[str, ...] = ()
    if path.suffix == notebooks.SUFFIX:
        notebooks.check_notebook(path)
        required = notebooks.PACKAGES
    return JobCode(folder, (*command, *script_args), str(inside), len(command), required)


def job_options(options: Options) -> dict[str, Any]:
    """Return the checked options as the fields of a request, without code and environment."""
    _check_names(options)
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, (kind, rule) in _SIMPLE_OPTIONS.items():
        if name in fields:
            arguments.check(name, fields[name], rule)
            fields[name] = kind(fields[name])  # numbers of NumPy become numbers of Python
    for name, convert in _CONVERTED.items():
        if name in fields:
            fields[name] = convert(fields[name])
    return {name: value for name, value in fields.items() if name not in _NOT_SENT}


def _memory(value: Any) -> int:
    arguments.check("memory", value, arguments.MEMORY)
    return parse_memory(value)


def _timeout(value: Any) -> float:
    arguments.check("timeout", value, arguments.DURATION)
    return parse_duration(value)


def _secrets(value: object) -> list[str]:
    return list(arguments.strings("secrets", value, "a list of names, such as ['HF_TOKEN']"))


_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "memory": _memory,
    "timeout": _timeout,
    "variables": arguments.variables,
    "tags": partial(arguments.labels, "tags"),
    "properties": partial(arguments.labels, "properties"),
    "secrets": _secrets,
    "keep": lambda value: list(arguments.keep(value)),
}


def _check_names(options: Options) -> None:
    from difflib import get_close_matches

    known = list(Options.__annotations__)
    for name in options:
        if name not in known:
            matches = get_close_matches(name, known, n=1)
            hint = f"did you mean {matches[0]!r}?" if matches else f"options are {', '.join(known)}"
            raise Invalid(f"unknown option {name!r}; {hint}", field=name)


def _check_folder(code: str | os.PathLike[str]) -> None:
    arguments.check("code", code, arguments.PATH)
    if not str(code) or not os.path.isdir(code):
        raise Invalid(f"code: {str(code)!r} is not a folder", field="code")


def _find_script(script: Path, code: Path | None) -> Path:
    for path in ([] if code is None else [code / script]) + [script]:
        if os.path.isfile(path):  # unlike Path.is_file, it accepts a name of any length
            return path.absolute()
    if os.path.isdir(script):
        raise Invalid(f"the script {str(script)!r} is a folder; pass a file in it")
    folder = ((_working_folder() if code is None else code) / script).absolute().parent
    hint = _suggestion(script.name, folder)
    if not hint and script.suffix not in _INTERPRETERS and script.name.isprintable():
        hint = f"; to run a command, use: retarget run -- {shlex.quote(str(script))}"
    raise Invalid(f"script {script.name!r} not found in {folder}{hint}")


def _suggestion(name: str, folder: Path) -> str:
    from difflib import get_close_matches

    try:
        files = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    except OSError:
        return "" if folder.is_dir() else ", which does not exist"
    matches = get_close_matches(name, files, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _folder_of(path: Path) -> Path:
    current = _working_folder()
    if _path_in(current, path) is not None and not is_too_much(current):
        return current
    if is_too_much(path.parent):
        raise Invalid(
            f"the script {path.name!r} is in {path.parent}, {describe_too_much(path.parent)}; move "
            "the script to its own folder, or set the code folder (--code)",
            field="code",
        )
    return path.parent


def _current_folder() -> Path:
    current = _working_folder()
    if is_too_much(current):
        raise Invalid(
            f"the current folder is {current}, {describe_too_much(current)}; change to another "
            "folder, or set the code folder (--code)",
            field="code",
        )
    return current


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise Invalid("the current folder was deleted; change to another folder") from error


def _path_in(folder: Path, path: Path) -> PurePosixPath | None:
    for base, inner in (
        (os.path.abspath(folder), os.path.abspath(path)),
        (os.path.realpath(folder), os.path.realpath(path)),
    ):
        if os.path.commonpath([base, inner]) == base:
            return PurePosixPath(os.path.relpath(inner, base))
    return None


def _command(inside: PurePosixPath, path: Path) -> tuple[str, ...]:
    interpreter = _INTERPRETERS.get(inside.suffix)
    if interpreter is not None:
        return (*interpreter, _not_an_option(inside))
    if os.access(path, os.X_OK):
        return (f"./{inside}",)
    raise Invalid(f"cannot run {inside.name!r}: {_how_to_run(inside)}")


def _how_to_run(inside: PurePosixPath) -> str:
    """Say what to do with a file that is neither a known script nor executable."""
    name = shlex.quote(str(inside))
    if inside.suffix in _PROGRAMS:
        program = _PROGRAMS[inside.suffix]
        return f"it is neither .py, .sh nor .ipynb; use: retarget run -- {program} {name}"
    return (
        "it is neither .py, .sh nor .ipynb, and it is not executable; name its interpreter "
        f"(retarget run -- PROGRAM {name}), or begin it with `#!` and run `chmod +x {name}`"
    )


def _not_an_option(inside: PurePosixPath) -> str:
    return f"./{inside}" if str(inside).startswith("-") else str(inside)
