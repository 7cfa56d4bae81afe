"""The server's temporary folder, for files that it can make again."""

import os
import stat
from pathlib import Path
from tempfile import gettempdir

from retarget.core.errors import TargetUnreachable
from retarget.runner.package import keep_zipapp


def user_tmpdir() -> Path:
    """Return a folder that only this user can read and change.

    Its name is predictable: a file that someone else put there must never be sent to a host.
    """
    folder = Path(gettempdir()) / f"retarget-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise TargetUnreachable(
            f"{folder} belongs to another user; remove it, or start the server with another TMPDIR"
        )
    folder.chmod(0o700)
    return folder


def runner_zipapp() -> Path:
    """Return the runner that is sent to hosts. It is built again if it was deleted."""
    return keep_zipapp(user_tmpdir())
