"""From a script or command and its options to the request that a server takes."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypedDict

from retarget.core.errors import Invalid
from retarget.core.units import parse_duration, parse_memory
from retarget.sdk import given
from retarget.sdk.environments import Environment
from retarget.sdk.records import KnownEnvironment

Script = str | os.PathLike[str] | Sequence[str]
Progress = Callable[[int, int], None]  # bytes sent, bytes to send
Reading = Callable[[Path, int, int], None]  # a folder, and the files and bytes of it read so far
_INTERPRETERS = {".py": "python", ".sh": "bash"}  # a target puts its environment's python there
_PLAIN = {
    "name": (str, given.TEXT),
    "experiment": (str, given.TEXT),
    "cpus": (float, given.NUMBER),
    "gpus": (int, given.COUNT),
    "nodes": (int, given.COUNT),
    "processes_per_node": (int, given.COUNT),
    "retries": (int, given.COUNT),
    "priority": (int, given.COUNT),
}


class Options(TypedDict, total=False):
    """What may be said about a job beside its code and target; None is the same as left out."""

    args: Sequence[str] | None
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


def work_of(
    script: Script, code: str | os.PathLike[str] | None, args: Sequence[str] | None = None
) -> Work:
    """Decide what is to run where; Invalid, naming it, if the script or folder is not there."""
    more = () if args is None else given.words("args", args, "a list, such as ['--epochs', '3']")
    if code is not None:
        _check_folder(code)
    if not isinstance(script, str | os.PathLike):
        command = given.words("script", script, "a script, or a list such as ['python', 'x.py']")
        if not command:
            raise Invalid("script: the command is empty", field="script")
        folder = _current_folder() if code is None else Path(code).absolute()
        return Work(folder, (*command, *more))
    if not str(script).strip():
        raise Invalid(f"script: {str(script)!r} is not the name of a script", field="script")
    path = _existing(Path(script), None if code is None else Path(code))
    folder = _folder_of(path) if code is None else Path(code).absolute()
    inside = _path_in(folder, path)
    if inside is None:
        raise Invalid(f"the script {str(script)!r} is not in the code folder {folder}")
    return Work(folder, (*_call(inside, path), *more), str(inside))


def requested(options: Options) -> dict[str, Any]:
    """Return the part of a job's request that needs no server: amounts and names as given."""
    _check_known(options)
    asked: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, (kind, rule) in _PLAIN.items():
        if name in asked:
            given.check(name, asked[name], rule)
            asked[name] = kind(asked[name])  # numbers of other libraries become plain ones
    if "memory" in asked:
        given.check("memory", asked["memory"], given.MEMORY)
        asked["memory"] = parse_memory(asked["memory"])
    if "timeout" in asked:
        given.check("timeout", asked["timeout"], given.DURATION)
        asked["timeout"] = parse_duration(asked["timeout"])
    if "env" in asked:
        asked["env"] = given.variables(asked["env"])
    return {name: value for name, value in asked.items() if name not in ("args", "environment")}


def _check_known(options: Options) -> None:
    from difflib import get_close_matches

    known = list(Options.__annotations__)
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise Invalid(f"there is no option {name!r}; {hint}", field=name)


def _check_folder(code: str | os.PathLike[str]) -> None:
    given.check("code", code, given.PATH)
    if not str(code) or not os.path.isdir(code):
        raise Invalid(f"code: {str(code)!r} is not a folder", field="code")


def _existing(script: Path, code: Path | None) -> Path:
    for path in ([] if code is None else [code / script]) + [script]:
        if os.path.isfile(path):  # unlike Path.is_file, it takes a name of any length
            return path.absolute()
    if os.path.isdir(script):
        raise Invalid(f"the script {str(script)!r} is a folder; name the file in it to run")
    folder = ((_here() if code is None else code) / script).absolute().parent
    hint = _near(script.name, folder)
    if not hint and script.suffix not in _INTERPRETERS and script.name.isprintable():
        hint = f"; to run a command: retarget run -- {shlex.quote(str(script))}"
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
    here = _here()
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
    here = _here()
    if _is_everything(here):
        raise Invalid(
            f"the current folder is {here}: that {_too_much(here)}; go to another, or say --code",
            field="code",
        )
    return here


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise Invalid("the current folder is not there any more; go to another") from error


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
