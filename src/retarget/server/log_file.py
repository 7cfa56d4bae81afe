"""Keeps server.log small: once it is large, its content moves to server.log.1."""

import logging
import os
import shutil
from contextlib import suppress

from retarget.core.home import ServerFolder

_log = logging.getLogger("retarget")
_MAX_BYTES = 10 << 20


def rotate_log(folder: ServerFolder) -> None:
    """Move the content of server.log to server.log.1 if this process writes it and it is large.

    The file stays the same one, because processes that this server started write to it as well.
    """
    if not _is_large(folder):
        return
    handlers = logging.getLogger().handlers
    for handler in handlers:
        handler.acquire()  # nothing may be logged between copying and truncating
    try:
        shutil.copyfile(folder.log, folder.previous_log)
    except OSError as error:
        _log.error("cannot keep the log in %s: %s", folder.previous_log, error.strerror)
    finally:
        with suppress(OSError):
            os.truncate(folder.log, 0)  # in any case, rather than fill the disk
        for handler in handlers:
            handler.release()


def _is_large(folder: ServerFolder) -> bool:
    try:
        status = os.stat(folder.log)
    except OSError:
        return False
    return status.st_size > _MAX_BYTES and os.path.samestat(status, os.fstat(2))
