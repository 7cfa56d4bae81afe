"""Replaces the Host in the requests that pass through a connection."""

from __future__ import annotations

_MAX_HEAD_BYTES = 1 << 16
_END, _LINE_END = b"\r\n\r\n", b"\r\n"


class RequestHeads:
    """Follows HTTP/1.1 requests from head to head. ValueError: this is not HTTP."""

    def __init__(self, host: str) -> None:
        self._host = host.encode("idna" if not host.isascii() else "ascii")
        self._buffer = b""
        self._rest = 0  # bytes of the body, or of its present chunk, that are still to come
        self._is_chunked = False
        self._is_last_chunk = False

    def add(self, content: bytes) -> bytes:
        """Return what can be sent so far. An incomplete head waits for its rest."""
        self._buffer += content
        parts: list[bytes] = []
        part = self._next()
        while part:
            parts.append(part)
            part = self._next()
        return b"".join(parts)

    def _next(self) -> bytes:
        if self._rest:
            part = self._take(min(self._rest, len(self._buffer)))
            self._rest -= len(part)
            return part
        separator = _LINE_END if self._is_chunked else _END
        end = self._buffer.find(separator)
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise ValueError("the head of a request is too long")
            return b""
        part = self._take(end + len(separator))
        return self._follow_chunk(part) if self._is_chunked else self._replace_host(part)

    def _take(self, count: int) -> bytes:
        part, self._buffer = self._buffer[:count], self._buffer[count:]
        return part

    def _follow_chunk(self, line: bytes) -> bytes:
        if self._is_last_chunk:  # trailers follow, and an empty line
            self._is_chunked = self._is_last_chunk = line != _LINE_END
            return line
        size = int(line.partition(b";")[0], 16)
        self._is_last_chunk = size == 0
        self._rest = size + len(_LINE_END) if size else 0
        return line

    def _replace_host(self, head: bytes) -> bytes:
        lines = head[: -len(_END)].split(_LINE_END)
        for number, line in enumerate(lines):
            name, _, value = line.partition(b":")
            if name.lower() == b"host":
                lines[number] = b"Host: " + self._host
            elif name.lower() == b"content-length":
                self._rest = int(value)
            elif name.lower() == b"transfer-encoding" and b"chunked" in value.lower():
                self._is_chunked = True
        return _LINE_END.join(lines) + _END
