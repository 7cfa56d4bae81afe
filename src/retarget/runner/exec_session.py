"""One connection of `retarget exec`: carries bytes between the client and a process."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time

from retarget.runner.exec_frames import (
    END_OF_INPUT,
    EXIT,
    INPUT,
    RESIZE,
    SIGNAL,
    START,
    Frames,
    pack,
)
from retarget.runner.exec_process import SIGNALS, ExecProcess

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

_START_SECONDS = 30.0  # for a client to say what to run
_GRACE_SECONDS = 5.0  # between HUP and KILL when the client has gone
_LINGER_SECONDS = 5.0  # for the other end to read the last frames and close
_CHUNK_BYTES = 1 << 15
_MAX_WAITING_BYTES = 1 << 18  # in each direction, before we stop reading
_MAX_LAST_BYTES = 1 << 20  # that a process may have written and we have not read when it ends
_MAX_REASON_CHARACTERS = 1000
INVALID = (ValueError, LookupError, TypeError, OverflowError)  # what bad contents raise
_CLOSED = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Session:
    def __init__(self, connection: socket.socket) -> None:
        self.process: ExecProcess | None = None
        self._connection = connection
        self._frames = Frames()
        self._received: List[Tuple[int, bytes]] = []
        self._input = bytearray()  # for the process
        self._is_input_complete = False
        self._output = bytearray()  # for the client
        self._status: int | None = None
        self._reason = ""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    # -- called by other threads

    def end(self, status: int) -> None:
        """Note that the process has ended."""
        self._status = status
        self._wake()

    def stop(self, reason: str) -> None:
        """Note why the process is about to be ended. Only the first reason counts."""
        self._reason = self._reason or reason
        self._wake()

    # -- called by its own thread

    def read_start(self) -> Dict[str, Any]:
        """Return what the client wants to run, or raise ValueError."""
        self._connection.settimeout(_START_SECONDS)
        while not self._received:
            content = self._connection.recv(_CHUNK_BYTES)
            if not content:
                raise ValueError("the connection was closed")
            self._received = self._frames.add(content)
        kind, content = self._received.pop(0)
        if kind != START:
            raise ValueError(f"the first frame is of kind {kind}")
        return _parse(content)

    def run(self) -> None:
        """Carry bytes until the process has ended or the client has gone."""
        self._connection.setblocking(False)
        try:
            self._take_frames(self._received)
            while self._status is None:
                self._step()
        except (OSError, *INVALID):
            self._hang_up()
            return
        try:
            self._read_rest()
            self._send_exit()
            self._linger()
        except OSError:
            pass  # the client has gone as well

    def refuse(self, code: int, reason: str) -> None:
        """Tell the client why nothing was started."""
        try:
            self._connection.settimeout(1.0)
            self._connection.sendall(pack(EXIT, _exit(code, reason)))
            self._linger()
        except OSError:
            pass  # the client has gone

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
        self._connection.close()
        write, self._wake_write = self._wake_write, -1
        os.close(write)
        os.close(self._wake_read)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"w")
        except OSError:
            pass  # it is awake, or closed

    # -- one step

    def _step(self) -> None:
        """Wait until something can be read or written, and do so."""
        for descriptor, events in self._wait():
            if descriptor == self._connection.fileno():
                self._exchange(events)
            elif descriptor == self._wake_read:
                os.read(self._wake_read, 4096)
            else:
                self._serve_process(descriptor, events)

    def _wait(self) -> List[Tuple[int, int]]:
        assert self.process is not None
        awaited = {self._connection.fileno(): 0, self._wake_read: select.POLLIN}
        if len(self._input) < _MAX_WAITING_BYTES:
            awaited[self._connection.fileno()] |= select.POLLIN
        if self._output:
            awaited[self._connection.fileno()] |= select.POLLOUT
        if len(self._output) < _MAX_WAITING_BYTES:
            awaited.update(dict.fromkeys(self.process.outputs, select.POLLIN))
        if self.process.input != -1 and self._input:
            awaited[self.process.input] = awaited.get(self.process.input, 0) | select.POLLOUT
        poll = select.poll()
        for descriptor, events in awaited.items():
            poll.register(descriptor, events)
        return poll.poll()

    def _exchange(self, events: int) -> None:
        """Read from and write to the client. ConnectionError: it has gone."""
        if events & select.POLLOUT:
            self._flush()
        if events & select.POLLIN:
            self._receive()
        elif events & _CLOSED:
            raise ConnectionResetError

    def _receive(self) -> None:
        try:
            content = self._connection.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        if not content:
            raise ConnectionResetError
        self._take_frames(self._frames.add(content))

    def _flush(self) -> None:
        try:
            del self._output[: self._connection.send(self._output)]
        except BlockingIOError:
            pass

    def _take_frames(self, frames: List[Tuple[int, bytes]]) -> None:
        assert self.process is not None
        for kind, content in frames:
            if kind == INPUT:
                if self.process.input != -1:  # otherwise nobody reads it
                    self._input += content
            elif kind == END_OF_INPUT:
                self._is_input_complete = True
            elif kind == RESIZE:
                self.process.resize(_parse(content))
            elif kind == SIGNAL and content.decode("ascii", "replace") in SIGNALS:
                self.process.signal(SIGNALS[content.decode()])
            else:
                raise ValueError(f"a frame of kind {kind}")
        self._write_input()

    def _serve_process(self, descriptor: int, events: int) -> None:
        assert self.process is not None
        if events & select.POLLOUT or (descriptor == self.process.input and events & _CLOSED):
            self._write_input()
        if descriptor in self.process.outputs and events & (select.POLLIN | _CLOSED):
            self._read_output(descriptor)

    def _write_input(self) -> None:
        """Write what the process takes now. One that has closed its stdin takes nothing more."""
        assert self.process is not None
        try:
            while self._input and self.process.input != -1:
                del self._input[: os.write(self.process.input, self._input[:_CHUNK_BYTES])]
        except BlockingIOError:
            return
        except OSError:
            self._input.clear()
            self.process.close_input()
        if self._is_input_complete:
            self.process.close_input()

    def _read_output(self, descriptor: int) -> int:
        """Read once, and return how much came; at the end of the output, stop reading it."""
        assert self.process is not None
        kind = self.process.outputs[descriptor]
        try:
            content = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal that no process has open
            content = b""
        if not content:
            del self.process.outputs[descriptor]
            if descriptor == self.process.input:
                self.process.close_input()
            return 0
        self._output += pack(kind, content)
        return len(content)

    # -- the end

    def _read_rest(self) -> None:
        """Read what the process wrote before it ended, but not what others go on writing."""
        assert self.process is not None
        for descriptor in list(self.process.outputs):
            count = 0
            while count < _MAX_LAST_BYTES and descriptor in self.process.outputs:
                read = self._read_output(descriptor)
                if not read:
                    break
                count += read

    def _send_exit(self) -> None:
        assert self._status is not None
        killed = os.WIFSIGNALED(self._status)
        code = 128 + os.WTERMSIG(self._status) if killed else os.WEXITSTATUS(self._status)
        self._output += pack(EXIT, _exit(code, self._reason))
        poll = select.poll()
        poll.register(self._connection, select.POLLOUT)
        while self._output:
            if any(events & _CLOSED for _, events in poll.poll()):
                return
            self._flush()

    def _linger(self) -> None:
        """Wait until the other end has closed: with input unread, it might lose the last frames."""
        self._connection.shutdown(socket.SHUT_WR)
        self._connection.settimeout(_LINGER_SECONDS)
        deadline = time.monotonic() + _LINGER_SECONDS
        while self._connection.recv(_CHUNK_BYTES) and time.monotonic() < deadline:
            pass

    def _hang_up(self) -> None:
        """End the process like a terminal that was closed: HUP, and KILL if it stays."""
        assert self.process is not None
        self.process.hang_up()
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._status is None and time.monotonic() < deadline:
            if select.select([self._wake_read], [], [], deadline - time.monotonic())[0]:
                os.read(self._wake_read, 4096)
        self.process.signal_all(signal.SIGKILL)


def _exit(code: int, reason: str) -> bytes:
    return json.dumps({"code": code, "reason": reason[:_MAX_REASON_CHARACTERS]}).encode()


def _parse(content: bytes) -> Dict[str, Any]:
    try:
        parsed: Any = json.loads(content)
        return dict(parsed.items())
    except (AttributeError, RecursionError):
        raise ValueError("not a JSON object") from None
