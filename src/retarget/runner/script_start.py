"""Records when the script starts, by the clock of the disk."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from retarget.runner.folder import Folder

_NAME = "script_start"


def mark_start(folder: Folder) -> None:
    """Record that the script starts now, and when the launch was made.

    A file that last changed between the two was not written by the script.
    """
    try:
        launched = os.stat(folder.file("launch.json")).st_mtime_ns
        with open(folder.file(_NAME), "w", encoding="ascii") as file:
            file.write(str(launched))
    except OSError:
        pass  # without it, the files are compared with the snapshot


def read_start(folder: Folder) -> tuple[int, int]:
    """Return when the launch was made and when the script started, in ns; 0 if not known."""
    try:
        with open(folder.file(_NAME), encoding="ascii") as file:
            return int(file.read()), os.fstat(file.fileno()).st_ctime_ns
    except (OSError, ValueError):
        return 0, 0
