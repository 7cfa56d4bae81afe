"""Who this server is for the others on its database."""

import hashlib
import os
from pathlib import Path
from secrets import token_hex

from retarget import __version__
from retarget.core.home import Home
from retarget.core.leases import ServerRecord


def describe_server(home: Home, server_id: str, *, url: str, secret: bytes) -> ServerRecord:
    """Return what a server writes down about itself when it starts."""
    return ServerRecord(
        id=server_id,
        incarnation=token_hex(16),
        host=_digest(_machine_id(), os.uname().nodename),
        host_name=os.uname().nodename,
        pid=os.getpid(),
        url=url,
        version=__version__,
        # the file, not only its content: a copy of the home is another home
        identity=_digest(secret.decode(), str(home.secret.stat().st_ino)),
        home=str(home.root),
    )


def _machine_id() -> str:
    try:
        return Path("/etc/machine-id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
