"""The stop signal: what tells a runner to stop, by FIFO, by the server's answer or by SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import threading

from retarget.runner.folder import Folder


class StopSignal:
    """Remembers the first request to stop, and wakes all who wait for one."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._request: tuple[str, str] | None = None
        self.terminated = False
        # Readable from the first request on. It has no lock, as a signal handler may write to it.
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._terminated)
        self.is_listening = False
        self.check()

    @property
    def stopped(self) -> bool:
        return self._request is not None

    @property
    def outcome(self) -> str:
        return self._request[0] if self._request else ""

    @property
    def reason(self) -> str:
        return self._request[1] if self._request else ""

    def stop(self, outcome: str, reason: str) -> None:
        """Request a stop. Only the first request counts."""
        if self._request is None:
            self._request = (outcome, reason)
            _write(self._stop_write)
            self.wake()

    def pause(self, seconds: float) -> bool:
        """Wait that long, or until a stop is requested; return whether it is."""
        return bool(select.select([self._stop_read], [], [], seconds)[0])

    def wake(self) -> None:
        _write(self._wake_write)

    def listen(self) -> None:
        """Receive requests as they come. Before this, only `check` sees them."""
        if self.is_listening:
            return
        self.is_listening = True
        path = self._folder.file("stop")
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass
        except OSError:
            return  # the disk is full: the server's answers carry a cancel as well
        # Opened for writing as well, so that the reader never sees an end of file.
        fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.check()
        threading.Thread(target=self._read_fifo, args=(fifo,), daemon=True).start()

    def close(self) -> None:
        """Stop receiving signals. Do not call after `listen`: its thread would continue."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (self._stop_read, self._stop_write, self.wake_read, self._wake_write):
            os.close(descriptor)

    def _read_fifo(self, fifo: int) -> None:
        while os.read(fifo, 512):
            self.check()

    def check(self) -> None:
        """Request a stop if the launch has been canceled."""
        if self._folder.has("cancel"):
            self.stop("canceled", "canceled")

    def _terminated(self, *_: object) -> None:
        self.terminated = True
        self.stop("failed", "the runner received SIGTERM from another process on its machine")


def _write(descriptor: int) -> None:
    try:
        os.write(descriptor, b"w")
    except BlockingIOError:
        pass


def _ignore(*_: object) -> None:
    """Exist, so that the signal is written to the wake-up descriptor."""
