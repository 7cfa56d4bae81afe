"""The frames between `retarget exec` and the runner that runs its command.

A frame is a kind, the length of its content, and the content. Between the client and the server
each frame is one message of a WebSocket, which has a length of its own.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import List, Tuple

# of the client; contents in JSON are objects
START = 1  # JSON: `command`, and the `terminal` (`rows`, `columns`, `term`) that it gets, or null
INPUT = 2  # bytes for its stdin
END_OF_INPUT = 3
RESIZE = 4  # JSON: `rows`, `columns`
SIGNAL = 5  # the name of a signal for its process group: INT, QUIT or TERM
# of the runner
OUTPUT = 16  # bytes of its stdout, or of the terminal
ERROR = 17  # bytes of its stderr
EXIT = 18  # JSON: its exit `code`, and the `reason` if it did not end by itself; the last frame

FROM_CLIENT = frozenset((START, INPUT, END_OF_INPUT, RESIZE, SIGNAL))
MAX_CONTENT_BYTES = 1 << 16
_HEAD = struct.Struct(">BI")


def pack(kind: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(kind, len(content)) + content


class Frames:
    """Splits what arrives into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, content: bytes) -> List[Tuple[int, bytes]]:
        """Return the frames that are complete now. ValueError: one has too much content."""
        self._buffer += content
        frames: List[Tuple[int, bytes]] = []
        while len(self._buffer) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._buffer)
            if size > MAX_CONTENT_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            end = _HEAD.size + size
            if len(self._buffer) < end:
                break
            frames.append((kind, bytes(self._buffer[_HEAD.size : end])))
            del self._buffer[:end]
        return frames
