"""Commands that run while a test does something else."""

import os
import time


def wait_until_connected(pid: int) -> None:
    """Return when the process has a socket: it has started, and asks the server."""
    while not any(_is_socket(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")):
        time.sleep(0.02)


def _is_socket(path: str) -> bool:
    try:
        return os.readlink(path).startswith("socket:")
    except OSError:  # just closed
        return False
