"""Runs commands beside the script of a job: carries their input and output over a WebSocket."""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from retarget.core.errors import Invalid, ServerUnreachable
from retarget.runner.exec_frames import (
    END_OF_INPUT,
    ERROR,
    EXIT,
    INPUT,
    MAX_CONTENT_BYTES,
    OUTPUT,
    RESIZE,
    SIGNAL,
    START,
)
from retarget.sdk.http import Connection
from retarget.sdk.websocket import open_websocket, wait

_CHUNK_BYTES = 1 << 15
_MAX_UNSENT_BYTES = 1 << 18
_SILENCE_SECONDS = 60.0  # without any message; the server sends pings every 20 s
_CHECK_SECONDS = 5.0

Write = Callable[[int, bytes], None]


@dataclass(frozen=True)
class CommandResult:
    """How a command ended that ran beside the script of a job, and what it printed."""

    exit_code: int  # 128 + n if signal n ended it
    stdout: str
    stderr: str
    reason: str = ""  # why it could not start, or did not end by itself


class Execution:
    """A command that runs beside the script of a job."""

    def __init__(
        self,
        connection: Connection,
        job_path: str,
        command: Sequence[str],
        *,
        process: dict[str, int | None],
        terminal: dict[str, Any] | None = None,
    ) -> None:
        """`process`: the `rank` or the `node`. `terminal`: its `rows`, `columns` and `term`."""
        start = json.dumps({"command": list(command), "terminal": terminal}).encode()
        if len(start) > MAX_CONTENT_BYTES:
            raise Invalid(f"the command is too long: {len(start):,} bytes")
        self._websocket = open_websocket(connection, f"{job_path}/exec", process)
        self._send(START, start)
        self._seen_at = time.monotonic()
        self._exit: dict[str, Any] | None = None

    def __enter__(self) -> "Execution":
        return self

    def __exit__(self, *raised: object) -> None:
        self._websocket.close()

    def send_input(self, content: bytes) -> None:
        for start in range(0, len(content), _CHUNK_BYTES):
            self._send(INPUT, content[start : start + _CHUNK_BYTES])

    def end_input(self) -> None:
        self._send(END_OF_INPUT)

    def resize(self, rows: int, columns: int) -> None:
        self._send(RESIZE, json.dumps({"rows": rows, "columns": columns}).encode())

    def signal(self, name: str) -> None:
        """Send a signal to the command: INT, QUIT or TERM."""
        self._send(SIGNAL, name.encode())

    def communicate(
        self,
        write: Write,
        *,
        stdin: int | None = None,
        wake: int | None = None,
        on_wake: Callable[[], None] = lambda: None,
    ) -> tuple[int, str]:
        """Pass on input and output until the command ends. Return its exit code and the reason.

        `write` gets the output. `stdin` is a descriptor to read; its end is passed on.
        `on_wake` is called when `wake`, another descriptor, can be read.
        """
        while self._exit is None:
            sources = [] if wake is None else [wake]
            if stdin is not None and self._websocket.unsent_bytes < _MAX_UNSENT_BYTES:
                sources.append(stdin)
            ready = wait(self._websocket, sources, _CHECK_SECONDS)
            if wake in ready:
                on_wake()
            if stdin is not None and stdin in ready and not self._read_input(stdin):
                stdin = None
            if self._websocket.fileno() in ready:
                self._receive(write)
            elif time.monotonic() - self._seen_at > _SILENCE_SECONDS:
                raise ServerUnreachable(
                    "the server stopped responding, so the command was disconnected"
                )
        return int(self._exit["code"]), str(self._exit["reason"])

    def finish(self, content: bytes) -> CommandResult:
        """Send this input, wait for the end, and return what the command printed."""
        output: dict[int, bytearray] = {OUTPUT: bytearray(), ERROR: bytearray()}
        self.send_input(content)
        self.end_input()
        code, reason = self.communicate(lambda kind, part: output[kind].extend(part))
        stdout, stderr = (part.decode("utf-8", "replace") for part in output.values())
        return CommandResult(code, stdout, stderr, reason)

    def _read_input(self, stdin: int) -> bool:
        """Pass on what can be read now; return False at the end."""
        try:
            content = os.read(stdin, _CHUNK_BYTES)
        except OSError:  # the terminal is gone
            content = b""
        self.send_input(content) if content else self.end_input()
        return bool(content)

    def _receive(self, write: Write) -> None:
        self._seen_at = time.monotonic()
        for message in self._websocket.receive():
            kind, content = message[0], message[1:]
            if kind in (OUTPUT, ERROR):
                write(kind, content)
            elif kind == EXIT:
                self._exit = json.loads(content)
                return
        if self._websocket.close_code is not None:
            raise ServerUnreachable("the connection to the job was lost; it may have just ended")

    def _send(self, kind: int, content: bytes = b"") -> None:
        self._websocket.queue(bytes([kind]) + content)
        self._websocket.flush()
