"""Reads the end of a job's log."""

import re
from typing import Any

from retarget.sdk.http import Connection
from retarget.sdk.records import Stream, records

_MAX_BYTES = 1 << 16
_MAX_LINE_CHARACTERS = 1000
_FAILED_PROCESS = re.compile(r"(?:node (\d+): )?(?:rank (\d+)\b)?")


def read_tail(connection: Connection, path: str, job: dict[str, Any], count: int) -> list[str]:
    """Return the last lines of the last attempt: those of the process that failed, if known.

    An attempt that ended before its script wrote anything has those of its preparation.
    """
    streams = records(Stream, connection.get(f"{path}/streams"))
    sizes = {stream.stream: stream.size for stream in streams}
    name = next((name for name in (_failed_stream(job), "prepare") if sizes.get(name)), None)
    if name is None:
        return []
    offset = max(0, sizes[name] - _MAX_BYTES)
    with connection.stream(f"{path}/logs", {"stream": name, "offset": offset}) as response:
        content = b"".join(response)
    rows = content.decode("utf-8", "replace").rstrip("\n").split("\n")
    return [_shown(row) for row in rows[1 if offset else 0 :][-count:]] if count > 0 else []


def last_line_offsets(
    connection: Connection, path: str, query: dict[str, Any], count: int
) -> dict[str, int]:
    """Return where the last lines of each stream of an attempt begin.

    The preparation is skipped if the script has written something. Only the end of each stream is
    read.
    """
    streams = records(Stream, connection.get(f"{path}/streams", {"attempt": query["attempt"]}))
    sizes = {stream.stream: stream.size for stream in streams}
    chosen = [query["stream"]] if query["stream"] else [name for name in sizes if _is_output(name)]
    offsets = {
        name: _last_lines_at(connection, path, {**query, "stream": name}, sizes[name], count)
        for name in chosen
        if name in sizes
    }
    if not query["stream"] and "prepare" in sizes:
        prepare = {**query, "stream": "prepare"}
        lines = 0 if any(sizes[name] for name in chosen) else count
        offsets["prepare"] = _last_lines_at(connection, path, prepare, sizes["prepare"], lines)
    return offsets


def _is_output(name: str) -> bool:
    return name == "output" or name.startswith("rank-")


def _last_lines_at(
    connection: Connection, path: str, query: dict[str, Any], size: int, count: int
) -> int:
    if count == 0:
        return size
    length = _MAX_BYTES
    while True:
        offset = max(0, size - length)
        with connection.stream(f"{path}/logs", {**query, "offset": offset}) as response:
            content = b"".join(response)[: size - offset]
        position = _start_of_last(content, count)
        if position is not None or offset == 0:
            return offset + (position or 0)
        length *= 4  # so that at most a third more is read than is needed


def _start_of_last(content: bytes, count: int) -> int | None:
    """Return where the last `count` lines begin; None if that may be before `content`."""
    end = len(content) - content.endswith(b"\n")
    for _ in range(count):
        end = content.rfind(b"\n", 0, end)
        if end < 0:
            return None
    return end + 1


def _failed_stream(job: dict[str, Any]) -> str:
    if job["nodes"] * job["processes_per_node"] == 1:
        return "output"
    failed = _FAILED_PROCESS.match(job["reason"])
    node, rank = failed.groups() if failed else (None, None)
    return f"rank-{rank or int(node or 0) * job['processes_per_node']}"


def _shown(row: str) -> str:
    """Return the text that a terminal would show: what a carriage return overwrote is gone."""
    text = row.rstrip("\r").rpartition("\r")[2]
    return text if len(text) <= _MAX_LINE_CHARACTERS else f"{text[:_MAX_LINE_CHARACTERS]}…"
