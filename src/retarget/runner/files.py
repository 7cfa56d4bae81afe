"""Lists and opens files that a script has written: regular files only, and through no symlink."""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# non-blocking: opening a FIFO that replaced the file must not hang
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_plain(path: str, folder: int | None = None) -> BinaryIO:
    """Open a file for reading; OSError if it is a symlink or not a regular file."""
    descriptor = os.open(path, _FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return open(descriptor, "rb")


def list_folder(path: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder by name; OSError if nothing can be learned about them."""
    with os.scandir(path) as entries:
        if not os.access(path, os.X_OK):  # its names can be read, and nothing else
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return sorted(entries, key=lambda entry: entry.name)


def open_below(root: str, path: str) -> BinaryIO:
    """Open a file below a folder; OSError if any part of its path is a symlink."""
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
