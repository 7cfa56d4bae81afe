"""The folder for what a server makes for machines elsewhere, and could make again."""

import os
import stat
from pathlib import Path
from tempfile import gettempdir

from retarget.core.errors import TargetUnreachable
from retarget.runner.package import keep_zipapp


def scratch() -> Path:
    """Return a folder that this user alone can look into and change.

    Its name is known to all: what somebody else has laid there must not be brought to machines.
    """
    folder = Path(gettempdir()) / f"retarget-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise TargetUnreachable(
            f"{folder} is not this server's own; have it removed, or start the server with another "
            "TMPDIR"
        )
    folder.chmod(0o700)
    return folder


def zipapp() -> Path:
    """Return the runner that is brought to machines; made again when it was cleaned away."""
    return keep_zipapp(scratch())
