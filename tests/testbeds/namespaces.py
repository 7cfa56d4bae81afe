"""Linux namespaces that end with the process that made them, even if it is killed.

Nothing has a name on the machine: a keeper, the first process of its own PID namespace, holds the
others (network, mounts, host name). When it ends, all of its processes end, and the kernel takes
its interfaces and mounts away. The keeper dies with the thread that started it: start one from the
thread that runs the tests.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

_KINDS = ("--mount", "--uts", "--ipc", "--net", "--pid")
_NS_GET_PARENT = 0xB702
_OUTSIDE = os.stat("/proc/self/ns/pid").st_ino
_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_ENVIRON = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
# Orphans come to the first process of a PID namespace; one that ignores SIGCHLD leaves no zombies.
_STAY = "echo ready; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1 </dev/null"


class Namespace:
    """Namespaces of their own, prepared by a shell script that runs inside as their first process.

    `pid` is the keeper's, as the machine sees it.
    """

    def __init__(self, script: str = "", environ: dict[str, str] | None = None) -> None:
        self._outer = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", *_KINDS, "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-euc", f"{script}\n{_STAY}"),
            ],
            env=_ENVIRON | (environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._outer.stdout
        assert self._outer.stderr
        with self._outer.stdout as said, self._outer.stderr as trouble:
            if said.readline() != "ready\n":
                self._outer.wait(10)
                raise RuntimeError(f"the namespace did not come up: {trouble.read()}")
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children")
        self.pid = int(children.read_text())
        self._inside = os.stat(f"/proc/{self.pid}/ns/pid").st_ino

    def enter(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` inside, as root."""
        return ["nsenter", f"--target={self.pid}", *_KINDS, "--wd=/", "--", *argv]

    def run(self, *argv: str) -> str:
        return run(self.enter(*argv))

    def popen(self, *argv: str, log: Path) -> "subprocess.Popen[bytes]":
        with log.open("ab") as file:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.enter(*argv)],
                env=_ENVIRON,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def processes(self) -> list[tuple[int, list[str]]]:
        """Return the pid, as the machine sees it, and the argv of all but the keeper.

        Those in namespaces made inside, such as containers, are among them.
        """
        found: list[tuple[int, list[str]]] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with suppress(OSError):  # it has just ended, or is a zombie
                if self._holds(entry):
                    argv = (entry / "cmdline").read_bytes().decode(errors="replace")
                    found.append((int(entry.name), argv.removesuffix("\0").split("\0")))
        return found

    def _holds(self, process: Path) -> bool:
        """Tell if a process is in our PID namespace, or in one within it."""
        space = os.open(process / "ns/pid", os.O_RDONLY)
        try:
            while (number := os.fstat(space).st_ino) not in (self._inside, _OUTSIDE):
                parent = fcntl.ioctl(space, _NS_GET_PARENT)
                os.close(space)
                space = parent
        finally:
            os.close(space)
        return number == self._inside

    def kill(self, chosen: Callable[[int], bool] = lambda pid: True) -> None:
        """Kill the chosen processes, and return when they are gone. The keeper stays."""

        def left() -> bool:
            pids = [pid for pid, _ in self.processes() if chosen(pid)]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return bool(pids)

        wait_until(lambda: not left(), "processes end")

    def close(self) -> None:
        """End all inside. Returns when nothing of it is left, the keeper reaped by its parent."""
        if self._outer.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._outer.wait(60)
        wait_until(lambda: not self.processes(), "the namespace ends")


def run(argv: Sequence[str]) -> str:
    """Run a command to its end and return what it printed; its own words are in the error."""
    done = subprocess.run(
        argv, env=_ENVIRON, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {said}")
    return done.stdout


def wait_until(holds: Callable[[], bool], what: str, *, patience: float = 60.0) -> None:
    """Wait for what is sure to come; the patience is only there to say what did not."""
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {patience:.0f} s in vain: {what}")
        time.sleep(0.005)


def namespaces_missing(*programs: str) -> str | None:
    """Say what this machine lacks: root's rights, a program, or the kernel's leave."""
    if os.geteuid() != 0:
        return "only root can make namespaces"
    lacking = [name for name in (*_TOOLS, *programs) if not shutil.which(name, path=_PATH)]
    if lacking:
        return f"not installed: {', '.join(lacking)}; run scripts/test-parts.sh"
    link = "ip link add br0 type bridge && ip link add v0 type veth peer name v1"
    try:
        run(["unshare", *_KINDS, "--fork", "--mount-proc", "sh", "-ec", link])
    except RuntimeError as error:
        return f"this machine makes no namespaces and bridges: {error}"
    return None


def need(missing: str | None) -> None:
    """Skip a test whose part cannot be had here; in CI it fails."""
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


_PATH = _ENVIRON["PATH"]
