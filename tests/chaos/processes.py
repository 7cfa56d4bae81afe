"""Processes as /proc shows them, and killing exactly the one that was meant."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    pid: int
    inner: int  # what it is called in its own namespace
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
    def told(self) -> tuple[str, ...]:
        """What it was told as a part of Retarget on a machine: `run FOLDER`, `agent`, `nursery`."""
        parts = [n for n, word in enumerate(self.command) if word.endswith(".pyz")]
        return self.command[parts[0] + 1 :] if parts else ()

    def names(self, path: Path) -> bool:
        """Tell whether it has to do with this folder."""
        words = (*self.command, *self.environ.values(), self.folder)
        return any(str(path) in word for word in words)

    def __str__(self) -> str:
        return f"{self.pid} ({self.state}) {' '.join(self.command)}"


def processes() -> list[Process]:
    """List every process that can be looked into, zombies too."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [found for pid in pids if (found := look(pid)) is not None]


def look(pid: int) -> Process | None:
    folder = Path(f"/proc/{pid}")
    try:
        stat = (folder / "stat").read_text()
        fields = stat[stat.rindex(")") + 2 :].split()
        command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        environ = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        status = (folder / "status").read_text(errors="replace")
    except OSError:
        return None  # it has just ended, or is somebody else's
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
    """Kill -9 these, none of them seeing another's end. Return those that were still alive."""
    held: list[tuple[Process, int]] = []
    for victim in victims:
        with suppress(ProcessLookupError):
            held.append((victim, os.pidfd_open(victim.pid)))
    meant = [(victim, handle) for victim, handle in held if _is_still(victim)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for _, handle in meant:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    for _, handle in held:
        os.close(handle)
    return [victim for victim, _ in meant]


def _is_still(victim: Process) -> bool:
    now = look(victim.pid)
    return now is not None and now.is_alive and now.started == victim.started
