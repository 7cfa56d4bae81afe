"""Makes files outlive a power cut."""

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path

_FEW_FILES = 4  # so many are synced one by one; more of them together with all other files


def sync_files(paths: Iterable[str | Path], file_system: str | Path) -> None:
    """Sync files or folders of one file system to disk."""
    unique = set(map(str, paths))
    if len(unique) > _FEW_FILES:
        sync_file_system(file_system)
        return
    for path in unique:
        _sync(path)


def sync_file_system(path: str | Path) -> None:
    """Sync everything on the file system of this folder to disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):  # not Linux
        os.sync()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(descriptor)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync a folder
            raise
    finally:
        os.close(descriptor)
