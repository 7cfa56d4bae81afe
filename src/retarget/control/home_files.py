"""Reads the files that a user may write in the home."""

from pathlib import Path

from retarget.core.config import MAX_CONFIG_BYTES
from retarget.core.errors import Invalid


def read_home_file(path: Path) -> bytes:
    """Return the content of a file, empty if there is none, or raise Invalid.

    Anything but a regular file is refused: a FIFO would wait forever, a device has no end.
    """
    try:
        is_file = path.is_file()
        content = _read(path) if is_file else b""
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from None
    if not is_file and path.exists():
        raise Invalid(f"{path} is not a regular file")
    if len(content) > MAX_CONFIG_BYTES:
        raise Invalid(f"{path} has more than {MAX_CONFIG_BYTES:,} bytes")
    return content


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_CONFIG_BYTES + 1)
