"""Passes secrets to a container through a file in memory, which its shell reads and empties.

As variables of the container they would be in `docker inspect` and in the engine's own files.
"""

from __future__ import annotations

import os
import re
import shutil

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Mapping

SHELL = "/bin/sh"
# reads the file named by $0 and empties it, then becomes the command
_SCRIPT = '. "$0" && : > "$0" && exec "$@"'
_MEMORY = "/dev/shm"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE = "variables"


def can_be_exported(name: str) -> bool:
    """Return whether a shell can set a variable with this name."""
    return _NAME.fullmatch(name) is not None


def write_secrets(folder: str, secrets: Mapping[str, str]) -> None:
    """Write the file for one container to a new folder that only this user can read."""
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder, 0o700)
    add_secrets(folder, secrets)


def add_secrets(folder: str, secrets: Mapping[str, str], name: str = _FILE) -> None:
    """Write another file to the folder of a container, which may be running."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    content = "".join(f"export {name}={_quoted(value)}\n" for name, value in secrets.items())
    with open(os.open(os.path.join(folder, name), flags, 0o600), "wb") as file:
        file.write(os.fsencode(content))


def with_secrets(folder: str, argv: list[str], name: str = _FILE) -> list[str]:
    """Return the command of a container that first reads a file in this folder. Pure."""
    return [SHELL, "-c", _SCRIPT, os.path.join(folder, name), *argv]


def remove_secrets(key: str, count: int) -> None:
    """Remove the folders of a launch. They are empty files once the containers run."""
    for rank in range(count):
        shutil.rmtree(secrets_folder(key, rank), ignore_errors=True)


def secrets_folder(key: str, rank: int) -> str:
    """Return the folder for the secrets of a rank, which is not on a disk."""
    return os.path.join(_MEMORY, f"retarget-{key}-{rank}")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "'\"'\"'") + "'"
