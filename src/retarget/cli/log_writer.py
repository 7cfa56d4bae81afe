"""Writes the log of a job: byte for byte, and on a terminal with the user's own paths."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from retarget.cli.terminal import write_bytes
from retarget.cli.work_paths import WorkPaths


def splits_stderr(spec: Mapping[str, Any]) -> bool:
    """Return whether a job should write stdout and stderr to two streams, by those of this command.

    A terminal shows one log, in the exact order of writing, and so does `2>&1`. A job with
    several processes has one stream per process.
    """
    if spec.get("nodes", 1) * spec.get("processes_per_node", 1) > 1 or sys.stdout.isatty():
        return False
    try:
        return not os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):  # one of them is closed, or no file
        return True


class LogWriter:
    """Writes pieces of a log to stdout and stderr."""

    def __init__(self, code: Path | None = None) -> None:
        self._paths = {file: WorkPaths(code) for file in (sys.stdout, sys.stderr) if file.isatty()}

    @property
    def is_holding(self) -> bool:
        """Whether the beginning of a path waits for the rest; `flush` writes it unchanged."""
        return any(paths.is_holding for paths in self._paths.values())

    def write(self, content: bytes, *, to: TextIO) -> None:
        paths = self._paths.get(to)
        write_bytes(content if paths is None else paths.feed(content), to=to)

    def flush(self) -> None:
        for file, paths in self._paths.items():
            if paths.is_holding:
                write_bytes(paths.flush(), to=file)
