"""Commands that run the console scripts of an interpreter with the layer of the job."""

from __future__ import annotations

import os
import shutil
import time
import zlib

_HEAD_BYTES = 1024  # as much of a script as names its interpreter
_UNUSED_SECONDS = 30 * 86400.0
_SHIM = '#!/bin/sh\nexec "$RETARGET_PYTHON" {script} "$@"\n'


def shims(commands: str, root: str, pythons: str) -> str:
    """Return a folder with one shim per console script in `commands`; it is written once.

    The interpreter that such a script names, in the folder `pythons`, does not know the layer.
    """
    root = os.path.join(root, "shims", f"{zlib.crc32(os.fsencode(commands)):08x}")
    folder = os.path.join(root, str(os.stat(commands).st_mtime_ns))
    if not os.path.isdir(folder):
        scripts = [entry.path for entry in os.scandir(commands) if _is_script(entry, pythons)]
        _write_all(scripts, root, folder)
    return folder


def _write_all(scripts: list[str], root: str, folder: str) -> None:
    part = f"{folder}.{os.getpid()}.part"
    os.makedirs(part, exist_ok=True)
    for script in scripts:
        path = os.path.join(part, os.path.basename(script))
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(_SHIM.format(script=_quoted(script)))
        os.chmod(path, 0o700)
    try:
        os.rename(part, folder)
    except OSError:  # another runner was faster
        shutil.rmtree(part, ignore_errors=True)
    _trim(root)


def _trim(root: str) -> None:
    """Remove shims of earlier states of a folder, unless a job may still use them."""
    for entry in os.scandir(root):
        try:
            if time.time() - entry.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(entry.path, ignore_errors=True)
        except FileNotFoundError:
            pass  # another runner was faster


def _is_script(entry: os.DirEntry[str], pythons: str) -> bool:
    """Return whether a file is a script that runs with a Python in this folder."""
    try:
        if not entry.is_file() or not os.access(entry.path, os.X_OK):
            return False
        with open(entry.path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    python = os.fsencode(os.path.join(pythons, "python"))
    lines = head.split(b"\n", 2)
    if lines[0].startswith(b"#!" + python):
        return True
    # how installers write a path that is too long for the first line, or has spaces
    return (
        lines[0] == b"#!/bin/sh"
        and len(lines) > 1
        and lines[1].startswith(
            (b"'''exec' " + python, b"'''exec' \"" + python, b"'''exec' '" + python)
        )
    )


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\"'\"'") + "'"
