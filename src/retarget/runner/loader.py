"""The first code on a machine: makes sure that the runner is there, and becomes its agent.

It is sent as text and run by whatever Python the machine has; nothing of ours can be imported yet.
"""

from __future__ import annotations

import json
import os
import sys

_ROOM = 16 << 20  # bytes that must be free


def has_room(folder: str) -> bool:
    """Tell whether a disk has enough room for anything to be done on it."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize >= _ROOM


def _read(count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = os.read(0, min(count - len(parts), 1 << 20))
        if not part:
            sys.exit(1)
        parts += part
    return parts


def _say(**told: object) -> None:
    os.write(1, b"\nRETARGET " + json.dumps(told).encode() + b"\n")


def _is_whole(path: str, size: int) -> bool:
    """Tell whether all of a file is there; a power cut may have left less."""
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False


def _keep(path: str, content: bytes) -> None:
    """Write a file, so that it is all there or not at all, whatever happens."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)


def main() -> None:
    told = json.loads(_read(int(_read(8))).decode())
    root = os.path.expanduser(told["root"])
    path = os.path.join(root, "runners", told["runner"])
    try:
        os.makedirs(os.path.dirname(path), 0o700, True)
        if not os.access(root, os.W_OK):
            raise OSError(13, "Permission denied", root)
        have = _is_whole(path, told["size"])
        if not have and not has_room(root):
            raise OSError(28, "No space left on device", root)
        _say(have=have, python=sys.version.split()[0], root=root)
        if not have:
            _keep(path, _read(told["size"]))
        else:
            os.utime(path)
    except OSError as error:
        _say(error=error.strerror, errno=error.errno, path=error.filename or root)
        sys.exit(96)
    os.execv(sys.executable, [sys.executable, "-I", "-S", path, "agent", root])


if __name__ == "__main__":
    main()
