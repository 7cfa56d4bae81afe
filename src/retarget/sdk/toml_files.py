"""Reads the files of settings from disk."""

import os
import stat
from pathlib import Path

from retarget.core.config import MAX_CONFIG_BYTES
from retarget.core.errors import Invalid


def read_settings_file(path: Path) -> bytes | None:
    """Return the content of a file of settings, or None if there is none.

    Anything but a regular file is refused: a FIFO would wait forever, a device has no end.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Invalid(f"{path} is not a regular file")
    with open(descriptor, "rb") as file:
        content = file.read(MAX_CONFIG_BYTES + 1)
    if len(content) > MAX_CONFIG_BYTES:
        raise Invalid(f"{path} has more than {MAX_CONFIG_BYTES:,} bytes")
    return content
