"""One command of `retarget exec`: started with a terminal or with pipes, signalled, resized."""

from __future__ import annotations

import os
import signal

from retarget.runner.exec_frames import ERROR, OUTPUT
from retarget.runner.processes import Process, processes, spawn_with, variables_of

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Dict, List

MARK = "RETARGET_EXEC"  # a variable that shows which processes in a container belong to a command
_MAX_SIZE = 10_000  # rows or columns


class ExecProcess:
    """A process in a session of its own, and our ends of its terminal or pipes."""

    def __init__(
        self, argv: List[str], variables: Dict[str, str], terminal: Dict[str, Any] | None
    ) -> None:
        self.mark = ""  # if it is an engine's command, and its process is in a container
        self.input = -1  # the descriptor to write to, or -1
        self.outputs: Dict[int, int] = {}  # the kind of frame, by the descriptor to read from
        self._terminal = -1
        self._inner_leader = 0
        self._descriptors: List[int] = []
        child_descriptors: List[int] = []
        try:
            actions = (
                self._open(child_descriptors)
                if terminal is None
                else self._open_terminal(child_descriptors)
            )
            if terminal is not None:
                self.resize(terminal)
            self.pid = spawn_with(argv, variables, actions)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in child_descriptors:
                os.close(descriptor)

    def resize(self, size: Dict[str, Any]) -> None:
        """Set the size of its terminal, if it has one. The kernel tells the foreground group."""
        import fcntl
        import struct
        import termios

        rows, columns = (min(max(int(size[name]), 0), _MAX_SIZE) for name in ("rows", "columns"))
        if self._terminal != -1:
            fcntl.ioctl(
                self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0)
            )

    def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        leader = self._leader(processes() if self.mark else [])
        if leader > 0:
            _send(os.killpg, leader, number)

    def signal_all(self, number: int) -> None:
        """Send a signal to all processes of its session."""
        listed = processes()
        sessions = self.pid, self._leader(listed)
        for process in listed:
            if process.session in sessions:
                _send(os.kill, process.pid, number)

    def hang_up(self) -> None:
        """Send HUP to its session: the client has disconnected. It may still write to a pipe."""
        self.signal_all(signal.SIGHUP)
        if self._terminal != -1:
            self.close()
        self.close_input()

    def close_input(self) -> None:
        """Let it read the end of its input. A terminal has none."""
        if self.input != -1 and self.input != self._terminal:
            self._descriptors.remove(self.input)
            os.close(self.input)
        self.input = -1

    def close(self) -> None:
        """Close our ends. The kernel sends HUP to the session of a terminal."""
        self.outputs, self.input, self._terminal = {}, -1, -1
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _open(self, child_descriptors: List[int]) -> List[Any]:
        """Open three pipes, and return the actions that pass their other ends on."""
        stdin, self.input = os.pipe()
        stdout, child_stdout = os.pipe()
        stderr, child_stderr = os.pipe()
        child_descriptors += [stdin, child_stdout, child_stderr]
        self._keep(self.input, stdout, stderr)
        self.outputs = {stdout: OUTPUT, stderr: ERROR}
        return [(os.POSIX_SPAWN_DUP2, child_descriptors[number], number) for number in range(3)]

    def _open_terminal(self, child_descriptors: List[int]) -> List[Any]:
        """Open a terminal. It becomes that of the session because its leader opens it."""
        self._terminal, slave = os.openpty()
        child_descriptors.append(slave)
        self._keep(self._terminal)
        self.input, self.outputs = self._terminal, {self._terminal: OUTPUT}
        return [
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]

    def _keep(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            self._descriptors.append(descriptor)

    def _leader(self, listed: List[Process]) -> int:
        """Return the leader of its session, which may be in a container."""
        if not self.mark or self._inner_leader:
            return self._inner_leader or self.pid
        mark = f"{MARK}={self.mark}".encode()
        leaders = [
            process
            for process in listed
            if process.pid == process.session != self.pid and mark in variables_of(process.pid)
        ]
        if leaders:  # those that started later have left the session on purpose
            self._inner_leader = min(leaders, key=lambda process: int(process.started)).pid
        return self._inner_leader or self.pid


def _send(kill: Any, pid: int, number: int) -> None:
    try:
        kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended


SIGNALS = {"INT": signal.SIGINT, "QUIT": signal.SIGQUIT, "TERM": signal.SIGTERM}
