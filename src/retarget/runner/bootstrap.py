"""The first code on a host: installs the runner if it is missing, and becomes the agent.

The driver sends it as source text to any Python of the host. Nothing else of ours can be imported.
"""

from __future__ import annotations

import json
import os
import sys

_MIN_FREE_BYTES = 16 << 20


def has_room(folder: str) -> bool:
    """Return whether a disk has enough free space to work with."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize >= _MIN_FREE_BYTES


def _read(count: int) -> bytes:
    content = b""
    while len(content) < count:
        chunk = os.read(0, min(count - len(content), 1 << 20))
        if not chunk:
            sys.exit(1)
        content += chunk
    return content


def _reply(**fields: object) -> None:
    os.write(1, b"\nRETARGET " + json.dumps(fields).encode() + b"\n")


def _is_whole(path: str, size: int) -> bool:
    """Return whether a file is complete; a power cut may have cut it short."""
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False


def _write(path: str, content: bytes) -> None:
    """Write a file atomically and durably."""
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)


def main() -> None:
    os.umask(0o077)  # code and data of jobs are for this user only; the script gets 022 again
    request = json.loads(_read(int(_read(8))).decode())
    root = os.path.expanduser(request["root"])
    path = os.path.join(root, "runners", request["runner"])
    try:
        os.makedirs(os.path.dirname(path), 0o700, True)
        if not os.access(root, os.W_OK):
            raise OSError(13, "Permission denied", root)
        has_runner = _is_whole(path, request["size"])
        if not has_runner and not has_room(root):
            raise OSError(28, "No space left on device", root)
        _reply(has_runner=has_runner, python=sys.version.split()[0], root=root)
        if not has_runner:
            _write(path, _read(request["size"]))
        else:
            os.utime(path)
    except OSError as error:
        _reply(error=error.strerror, errno=error.errno, path=error.filename or root)
        sys.exit(96)
    os.execv(sys.executable, [sys.executable, "-I", "-S", path, "agent", root])


if __name__ == "__main__":
    main()
