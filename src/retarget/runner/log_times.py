"""Records the size of each stream over time, so that every line of a log has a time."""

from __future__ import annotations

import time

_MAX_MARKS = 400  # of a stream, for one request


class LogTimes:
    """The marks of streams that the server does not have yet. They are kept in memory only."""

    def __init__(self) -> None:
        self._marks: dict[str, list[tuple[int, float]]] = {}
        self._sizes: dict[str, int] = {}  # as recorded last

    def record_size(self, stream: str, size: int) -> None:
        """Record the size of a stream now, if it has grown."""
        if size <= self._sizes.get(stream, 0):
            return
        self._sizes[stream] = size
        marks = self._marks.setdefault(stream, [])
        marks.append((size, time.time()))
        if len(marks) > _MAX_MARKS:  # the server is away for long: every other mark will do
            del marks[:-1:2]

    def marks(self, stream: str, end: int) -> list[tuple[int, float]]:
        """Return the marks of the bytes before `end`."""
        marks: list[tuple[int, float]] = []
        for size, at in self._marks.get(stream, ()):
            marks.append((min(size, end), at))
            if size >= end:
                break
        return marks

    def drop(self, stream: str, end: int) -> None:
        """Forget the marks of the bytes before `end`: the server has them."""
        marks = self._marks.get(stream)
        if marks:
            self._marks[stream] = [mark for mark in marks if mark[0] > end]
