"""From a script or command and its options to the request that a server takes."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from retarget.core.errors import Invalid
from retarget.core.units import parse_duration, parse_memory
from retarget.sdk.environments import Environment
from retarget.sdk.records import KnownEnvironment

Script = str | os.PathLike[str] | Sequence[str]
Progress = Callable[[int, int], None]  # bytes sent, bytes to send
Reading = Callable[[Path, int, int], None]  # a folder, and the files and bytes of it read so far
_INTERPRETERS = {".py": "python", ".sh": "bash"}  # a target puts its environment's python there
_PLAIN = (
    "name",
    "experiment",
    "cpus",
    "gpus",
    "nodes",
    "processes_per_node",
    "retries",
    "priority",
)


class Options(TypedDict, total=False):
    """What may be said about a job beside its code and target; None is the same as left out."""

    args: Sequence[str]
    environment: Environment | KnownEnvironment | str | None
    name: str | None
    experiment: str | None
    env: Mapping[str, Any] | None
    cpus: float | None
    memory: int | str | None
    gpus: int | None
    nodes: int | None
    processes_per_node: int | None
    retries: int | None
    timeout: float | str | None
    priority: int | None


@dataclass(frozen=True, slots=True)
class Work:
    """A command, and the folder it runs in."""

    folder: Path
    command: tuple[str, ...]
    script: str | None = None  # its path in the folder


def work_of(script: Script, code: str | os.PathLike[str] | None, args: Sequence[str]) -> Work:
    """Decide what is to run where; Invalid, naming it, if the script or folder is not there."""
    if isinstance(code, str | os.PathLike) and not Path(code).is_dir():
        raise Invalid(f"code: {str(code)!r} is not a folder", field="code")
    if not isinstance(script, str | os.PathLike):
        folder = _current_folder() if code is None else Path(code).absolute()
        return Work(folder, (*map(str, script), *map(str, args)))
    path = _existing(Path(script), None if code is None else Path(code))
    folder = _folder_of(path) if code is None else Path(code).absolute()
    inside = _path_in(folder, path)
    if inside is None:
        raise Invalid(f"the script {str(script)!r} is not in the code folder {folder}")
    return Work(folder, (*_call(inside, path), *map(str, args)), str(inside))


def requested(options: Options) -> dict[str, Any]:
    """Return the part of a job's request that needs no server: amounts and names as given."""
    given: dict[str, Any] = {name: options.get(name) for name in _PLAIN}
    if (memory := options.get("memory")) is not None:
        given["memory"] = parse_memory(memory)
    if (timeout := options.get("timeout")) is not None:
        given["timeout"] = parse_duration(timeout)
    if env := options.get("env"):
        given["env"] = {name: str(value) for name, value in env.items()}
    return {name: value for name, value in given.items() if value is not None}


def _existing(script: Path, code: Path | None) -> Path:
    for path in ([] if code is None else [code / script]) + [script]:
        if path.is_file():
            return path.absolute()
    if script.is_dir():
        raise Invalid(f"the script {str(script)!r} is a folder; name the file in it to run")
    folder = ((Path.cwd() if code is None else code) / script).absolute().parent
    hint = _near(script.name, folder)
    if not hint and script.suffix not in _INTERPRETERS:
        hint = f"; to run a command: retarget run -- {script}"
    raise Invalid(f"there is no script {script.name!r} in {folder}{hint}")


def _near(name: str, folder: Path) -> str:
    from difflib import get_close_matches

    try:
        files = [each.name for each in os.scandir(folder) if each.is_file()]
    except OSError:
        return "" if folder.is_dir() else ": there is no such folder"
    found = get_close_matches(name, files, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _folder_of(path: Path) -> Path:
    here = Path.cwd()
    if _path_in(here, path) is not None and not _is_everything(here):
        return here
    if _is_everything(path.parent):
        raise Invalid(
            f"the folder of {path.name!r} is {path.parent}: that {_too_much(path.parent)}; put the "
            "script into a folder of its own, or say --code",
            field="code",
        )
    return path.parent


def _current_folder() -> Path:
    here = Path.cwd()
    if _is_everything(here):
        raise Invalid(
            f"the current folder is {here}: that {_too_much(here)}; go to another, or say --code",
            field="code",
        )
    return here


def _too_much(folder: Path) -> str:
    what = "disk" if os.path.realpath(folder) == "/" else "home folder"
    return f"would send your whole {what}"


def _is_everything(folder: Path) -> bool:
    """Tell whether it is `/` or the user's home: nobody means to send that."""
    real = os.path.realpath(folder)
    return real in ("/", os.path.realpath(os.path.expanduser("~")))


def _path_in(folder: Path, path: Path) -> PurePosixPath | None:
    for base, inner in (
        (os.path.abspath(folder), os.path.abspath(path)),
        (os.path.realpath(folder), os.path.realpath(path)),
    ):
        if os.path.commonpath([base, inner]) == base:
            return PurePosixPath(os.path.relpath(inner, base))
    return None


def _call(inside: PurePosixPath, path: Path) -> tuple[str, ...]:
    interpreter = _INTERPRETERS.get(inside.suffix)
    if interpreter is not None:
        return interpreter, _no_option(inside)
    if os.access(path, os.X_OK):
        return (f"./{inside}",)
    raise Invalid(
        f"how to run {inside.name!r}? it is neither .py nor .sh and not executable; "
        f"make it so with `chmod +x {inside}`"
    )


def _no_option(inside: PurePosixPath) -> str:
    return f"./{inside}" if str(inside).startswith("-") else str(inside)
