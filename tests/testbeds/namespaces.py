"""Linux namespaces that end with the process that made them, even if it is killed.

The namespaces have no names on the machine. A keeper, the first process of a PID namespace, holds
the others (network, mounts, host name). When it ends, all of its processes end, and the kernel
removes its interfaces and mounts. The keeper dies with the thread that started it, so start it
from the thread that runs the tests.
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

_NAMESPACE_OPTIONS = ("--mount", "--uts", "--ipc", "--net", "--pid")
_NS_GET_PARENT = 0xB702
_OUTER_PID_NAMESPACE = os.stat("/proc/self/ns/pid").st_ino
_TOOLS = ("ip", "mount", "nsenter", "setpriv", "unshare")
_ENVIRON = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
# The first process of a PID namespace adopts orphans; if it ignores SIGCHLD, none become zombies.
_KEEP_ALIVE = "echo ready; exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1 </dev/null"


class Namespace:
    """A set of new namespaces. A shell script that runs inside as their first process sets them up.

    `pid` is that of the keeper, as this machine sees it.
    """

    def __init__(self, script: str = "", environ: dict[str, str] | None = None) -> None:
        self._unshare = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL"),
                *("unshare", *_NAMESPACE_OPTIONS, "--fork", "--kill-child", "--mount-proc"),
                *("sh", "-euc", f"{script}\n{_KEEP_ALIVE}"),
            ],
            env=_ENVIRON | (environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._unshare.stdout
        assert self._unshare.stderr
        with self._unshare.stdout as stdout, self._unshare.stderr as stderr:
            if stdout.readline() != "ready\n":
                self._unshare.wait(200)
                raise RuntimeError(f"the namespace did not start: {stderr.read()}")
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        self.pid = int(children.read_text())
        self._pid_namespace = os.stat(f"/proc/{self.pid}/ns/pid").st_ino

    def enter(self, *argv: str) -> list[str]:
        """Return the command that runs `argv` inside, as root."""
        return ["nsenter", f"--target={self.pid}", *_NAMESPACE_OPTIONS, "--wd=/", "--", *argv]

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
        """Return the pid, as this machine sees it, and the argv of every process but the keeper.

        Processes in nested namespaces, such as containers, are included.
        """
        processes: list[tuple[int, list[str]]] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with suppress(OSError):  # the process has just ended, or is a zombie
                if self._contains(entry):
                    argv = (entry / "cmdline").read_bytes().decode(errors="replace")
                    processes.append((int(entry.name), argv.removesuffix("\0").split("\0")))
        return processes

    def _contains(self, process: Path) -> bool:
        """Return whether a process is in this PID namespace, or in one nested in it."""
        descriptor = os.open(process / "ns/pid", os.O_RDONLY)
        try:
            while (inode := os.fstat(descriptor).st_ino) not in (
                self._pid_namespace,
                _OUTER_PID_NAMESPACE,
            ):
                parent = fcntl.ioctl(descriptor, _NS_GET_PARENT)
                os.close(descriptor)
                descriptor = parent
        finally:
            os.close(descriptor)
        return inode == self._pid_namespace

    def kill(self, selects: Callable[[int], bool] = lambda pid: True) -> None:
        """Kill the selected processes and return when they are gone. The keeper stays."""

        def kill_matching() -> bool:
            pids = [pid for pid, _ in self.processes() if selects(pid)]
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return bool(pids)

        wait_until(lambda: not kill_matching(), "processes end")

    def close(self) -> None:
        """Kill everything inside. Return when it is gone and the keeper is reaped by its parent."""
        if self._unshare.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self._unshare.wait(200)
        wait_until(lambda: not self.processes(), "the namespace ends")


def run(argv: Sequence[str]) -> str:
    """Run a command and return its output. If it fails, the error contains its message."""
    completed = subprocess.run(
        argv, env=_ENVIRON, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200
    )
    if completed.returncode:
        output = (completed.stderr or completed.stdout).strip()
        raise RuntimeError(f"{' '.join(argv)} ended with {completed.returncode}: {output}")
    return completed.stdout


def wait_until(condition: Callable[[], bool], description: str, *, timeout: float = 200.0) -> None:
    """Wait for a condition that is sure to hold. The timeout only serves to report a bug."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:.0f} s in vain until {description}")
        time.sleep(0.005)


def missing_for_namespaces(*programs: str) -> str | None:
    """Say what this machine lacks: root, a program, or a kernel that allows it; None if nothing."""
    if os.geteuid() != 0:
        return "only root can create namespaces"
    not_installed = [name for name in (*_TOOLS, *programs) if not shutil.which(name, path=_PATH)]
    if not_installed:
        return f"not installed: {', '.join(not_installed)}; run scripts/test-parts.sh"
    link = "ip link add br0 type bridge && ip link add v0 type veth peer name v1"
    try:
        run(["unshare", *_NAMESPACE_OPTIONS, "--fork", "--mount-proc", "sh", "-ec", link])
    except RuntimeError as error:
        return f"this machine cannot create namespaces and bridges: {error}"
    return None


def require(missing: str | None) -> None:
    """Skip a test if something is missing; in CI, fail it."""
    if missing and os.environ.get("CI"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)


_PATH = _ENVIRON["PATH"]
