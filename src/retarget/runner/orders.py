"""Orders to stop, whichever way they come: the driver's FIFO, the server's answer, a signal."""

from __future__ import annotations

import os
import select
import signal
import threading

from retarget.runner.folder import Folder


class Orders:
    """Remembers the first order to stop, and wakes whoever waits for one."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._order: tuple[str, str] | None = None
        self.terminated = False
        # Stays readable from the first order on. No lock is in it: a signal's handler may stop.
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminated)
        self.listens = False
        self.look()

    @property
    def stopped(self) -> bool:
        return self._order is not None

    @property
    def outcome(self) -> str:
        return self._order[0] if self._order else ""

    @property
    def reason(self) -> str:
        return self._order[1] if self._order else ""

    def stop(self, outcome: str, reason: str) -> None:
        """Ask for a stop. Only the first one counts."""
        if self._order is None:
            self._order = (outcome, reason)
            _write(self._stop_write)
            self.wake()

    def pause(self, seconds: float) -> bool:
        """Wait that long, or until there is an order; tell whether there is one."""
        return bool(select.select([self._stop_read], [], [], seconds)[0])

    def wake(self) -> None:
        _write(self._wake_write)

    def listen(self) -> None:
        """Hear orders as they come. Until then only those are known that were there before."""
        if self.listens:
            return
        self.listens = True
        path = self._folder.file("orders")
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        except OSError:
            return  # no room for it: the server's answers tell of an order, too
        # Open for writing too: the end that reads then never sees an end of file.
        fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.look()
        threading.Thread(target=self._hear, args=(fifo,), daemon=True).start()

    def close(self) -> None:
        """Hear no more. Not after `listen`: a thread would go on."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (self._stop_read, self._stop_write, self.wake_read, self._wake_write):
            os.close(descriptor)

    def _hear(self, fifo: int) -> None:
        while os.read(fifo, 512):
            self.look()

    def look(self) -> None:
        """See whether the launch was told to stop."""
        if self._folder.has("cancel"):
            self.stop("canceled", "canceled")

    def _terminated(self, *_: object) -> None:
        self.terminated = True
        self.stop("failed", "the runner was told to end (SIGTERM) by something on its machine")


def _write(descriptor: int) -> None:
    try:
        os.write(descriptor, b"w")
    except BlockingIOError:
        pass


def _nothing(*_: object) -> None:
    """Exist, so that the signal is written to the wake-up descriptor."""
