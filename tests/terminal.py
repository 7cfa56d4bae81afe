"""A terminal with a program in it, as a person uses it."""

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

PATIENCE = 200.0


class Terminal:
    """A pseudo-terminal that is the controlling terminal of one program."""

    def __init__(self, command: Sequence[str], *, variables: Mapping[str, str]) -> None:
        self._master, self._slave = os.openpty()
        self.resize(24, 80)
        self.settings: list[Any] = termios.tcgetattr(self._slave)
        self.screen = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**os.environ, "TERM": "xterm", **variables},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size. The kernel tells the program."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> bytes:
        """Wait until the program has written this; return everything before it, and forget it."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.screen:
            assert self._read(deadline), f"no {text!r} in {self.screen!r}"
        before, _, self.screen = self.screen.partition(text.encode())
        return before

    def wait_for_size(self, size: str) -> bytes:
        """Ask the shell in it for its size until it is this one: a change takes a moment.

        Return everything that was written until then.
        """
        deadline, written = time.monotonic() + PATIENCE, b""
        while not written.endswith(f"{size}\r\n".encode()):
            assert time.monotonic() < deadline, "the terminal was not resized"
            self.type("stty size; echo as''ked\r")
            written += self.wait_for("asked")
            time.sleep(0.1)
        return written

    def wait(self) -> int:
        """Wait for the end of the program, and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.screen
            self._read(time.monotonic() + 0.05)
        while self._read(time.monotonic()):
            pass
        return self.process.returncode

    def is_restored(self) -> bool:
        """Return whether the terminal has the settings that it had before the program."""
        return termios.tcgetattr(self._slave) == self.settings

    def _read(self, deadline: float) -> bool:
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        self.screen += os.read(self._master, 1 << 16)
        return True
