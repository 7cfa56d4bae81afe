"""Which folders are never a code folder unless the user names them."""

import os
from pathlib import Path


def is_too_much(folder: Path) -> bool:
    """Return whether the folder is `/` or the user's home: nobody means to send that."""
    real = os.path.realpath(folder)
    return real in ("/", os.path.realpath(os.path.expanduser("~")))


def describe_too_much(folder: Path) -> str:
    """Return what sending such a folder would mean."""
    extent = "disk" if os.path.realpath(folder) == "/" else "home folder"
    return f"so this would send your whole {extent}"
