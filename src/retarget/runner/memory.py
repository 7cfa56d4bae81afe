"""The memory limit of this process's cgroup, and how often the kernel killed because of it."""

from __future__ import annotations

import os

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # without a limit, cgroup v1 shows a number a little below 2^63


def limit() -> int | None:
    """Return the bytes that this process and its children may use; None without a limit."""
    sizes = [_size(_read(os.path.join(folder, name))) for folder, name in _limits()]
    return min((size for size in sizes if size is not None), default=None)


def kills() -> int:
    """Return how many processes of this cgroup the OOM killer has ended, as far as known."""
    for folder in _folders()[:1]:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(os.path.join(folder, name)).splitlines():
                fields = line.split()
                if fields[:1] == ["oom_kill"]:
                    return int(fields[1])
    return 0


def out_of_memory_message(size: int | None) -> str:
    """Return the reason of a job that ran out of memory, with the limit if it is known."""
    return "out of memory" if size is None else f"out of memory: limit {format_size(size)}"


def format_size(size: int) -> str:
    """Return a size such as `2 GiB`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"


def _limits() -> list[tuple[str, str]]:
    names = ("memory.max", "memory.limit_in_bytes")
    return [(folder, name) for folder in _folders() for name in names]


def _folders() -> list[str]:
    """List the folder of this process's memory cgroup, and those above it.

    In a container the path is that of the host, while the mount may begin at the container.
    """
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and os.path.exists(os.path.join(_ROOT, "cgroup.controllers")):
            return _with_parents(_ROOT, path)
        if "memory" in controllers.split(","):
            return _with_parents(os.path.join(_ROOT, "memory"), path)
    return []


def _with_parents(root: str, path: str) -> list[str]:
    folder = os.path.normpath(f"{root}/{path}")
    if not folder.startswith(root) or not os.path.isdir(folder):
        return [root]
    folders = [folder]
    while folder != root:
        folder = os.path.dirname(folder)
        folders.append(folder)
    return folders


def _size(text: str) -> int | None:
    size = int(text) if text.strip().isdigit() else _UNLIMITED
    return size if size < _UNLIMITED else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
