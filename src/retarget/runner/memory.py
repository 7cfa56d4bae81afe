"""The memory of this process's own cgroup: its limit, and how often the kernel killed for it."""

from __future__ import annotations

import os

_ROOT = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # what a first-version cgroup without a limit says is a little less than 2^63


def limit() -> int | None:
    """Return the bytes that this process and its children may use; None without a limit."""
    found = [_size(_read(os.path.join(folder, name))) for folder, name in _limits()]
    return min((size for size in found if size is not None), default=None)


def kills() -> int:
    """Return how many processes of this cgroup were killed for want of memory, as far as known."""
    for folder in _folders()[:1]:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(os.path.join(folder, name)).splitlines():
                words = line.split()
                if words[:1] == ["oom_kill"]:
                    return int(words[1])
    return 0


def sentence(size: int | None) -> str:
    """Say that it was the memory, and how much there was."""
    return "out of memory" if size is None else f"out of memory: limit {show(size)}"


def show(size: int) -> str:
    """Return `2 GiB` for that many bytes."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size >= 1 << power:
            return f"{size / (1 << power):.1f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size} B"


def _limits() -> list[tuple[str, str]]:
    names = ("memory.max", "memory.limit_in_bytes")
    return [(folder, name) for folder in _folders() for name in names]


def _folders() -> list[str]:
    """List the folder of this process's memory cgroup, and those above it.

    In a container the path is the machine's, while what is mounted may begin at the container.
    """
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and os.path.exists(os.path.join(_ROOT, "cgroup.controllers")):
            return _upwards(_ROOT, path)
        if "memory" in controllers.split(","):
            return _upwards(os.path.join(_ROOT, "memory"), path)
    return []


def _upwards(root: str, path: str) -> list[str]:
    folder = os.path.normpath(f"{root}/{path}")
    if not folder.startswith(root) or not os.path.isdir(folder):
        return [root]
    found = [folder]
    while folder != root:
        folder = os.path.dirname(folder)
        found.append(folder)
    return found


def _size(text: str) -> int | None:
    size = int(text) if text.strip().isdigit() else _UNLIMITED
    return size if size < _UNLIMITED else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
