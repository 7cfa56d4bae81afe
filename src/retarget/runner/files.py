"""Opens what a script has made: plain files only, and through no link it puts there meanwhile."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# a FIFO in the place of the file must not hold up whoever opens it
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: str, folder: int | None = None) -> BinaryIO:
    """Open a file for reading; OSError if it is a link, or anything else that is not a file."""
    descriptor = os.open(path, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is not a file")
    return open(descriptor, "rb")


def open_below(root: str, path: str) -> BinaryIO:
    """Open a file below a folder; OSError if there is a link on the way."""
    folder = os.open(root, _FOLDER)
    try:
        *names, last = path.split(os.sep)
        for name in names:
            below = os.open(name, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        return open_plain(last, folder)
    finally:
        os.close(folder)
