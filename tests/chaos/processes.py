"""Reads processes from /proc, and kills exactly those, never a later one with the same pid."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    inner: int  # its pid in its own namespace
    parent: int
    state: str
    started: str
    command: tuple[str, ...]
    environ: dict[str, str]
    folder: str

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its arguments as a part of Retarget: `run FOLDER`, `agent` or `forkserver`."""
        parts = [n for n, word in enumerate(self.command) if word.endswith(".pyz")]
        return self.command[parts[0] + 1 :] if parts else ()

    def names(self, path: Path) -> bool:
        """Return whether its command, variables or current folder mention this path."""
        words = (*self.command, *self.environ.values(), self.folder)
        return any(str(path) in word for word in words)

    def __str__(self) -> str:
        return f"{self.pid} ({self.state}) {' '.join(self.command)}"


def processes() -> list[Process]:
    """List every process that can be inspected, including zombies."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for pid in pids if (process := read_process(pid)) is not None]


def read_process(pid: int) -> Process | None:
    folder = Path(f"/proc/{pid}")
    try:
        stat = (folder / "stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        environ = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        status = (folder / "status").read_text(errors="replace")
    except OSError:
        return None  # it has just ended, or belongs to another user
    where = ""
    with suppress(OSError):
        where = os.readlink(folder / "cwd")
    pairs = (word.partition("=") for word in environ if "=" in word)
    return Process(
        pid=pid,
        inner=int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1]),
        parent=int(fields[1]),
        state=fields[0],
        started=fields[19],
        command=tuple(word for word in command if word),
        environ={name: value for name, _, value in pairs},
        folder=where,
    )


def kill_together(victims: Iterable[Process]) -> list[Process]:
    """Kill all with SIGKILL, before any can react. Return those that were still alive."""
    held: list[tuple[Process, int]] = []
    for victim in victims:
        with suppress(ProcessLookupError):
            held.append((victim, os.pidfd_open(victim.pid)))
    alive = [(victim, handle) for victim, handle in held if _is_still(victim)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for _, handle in alive:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    for _, handle in held:
        os.close(handle)
    return [victim for victim, _ in alive]


def _is_still(victim: Process) -> bool:
    now = read_process(victim.pid)
    return now is not None and now.is_alive and now.started == victim.started
