"""What the routes of the artifact tree share: paths, rights, and bytes on their way in."""

import re
from collections.abc import AsyncIterator
from urllib.parse import unquote

from anyio.to_thread import run_sync

from retarget.blobs.folder import Part
from retarget.control.parts import Parts
from retarget.core.errors import Forbidden, Invalid
from retarget.server.mlflow.ask import Caller

CHUNK = 1 << 20  # bytes that are written, or read, at once

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_REFUSED = re.compile(r"[#\\]|^/|^[A-Za-z]:/|^file:")
_LONGEST = 2048
_ROUNDS = 10  # how often a path may be encoded


def clean(path: str) -> str:
    """Return the one way to write a path of the tree, or raise Invalid. Folders lose their "/".

    As MLflow does, it is decoded until nothing changes, and control characters stay encoded:
    clients count on both. Those of a year ago name images `key%step%1%timestamp%1794747338017`.
    """
    for _ in range(_ROUNDS):
        decoded = unquote(path)
        if decoded == path:
            break
        path = decoded
    else:
        raise _invalid()
    path = _CONTROL.sub(lambda found: f"%{ord(found[0]):02x}", path)
    names = path.split("/")
    if _REFUSED.search(path) or ".." in names:
        raise _invalid()
    if len(path.encode(errors="replace")) > _LONGEST:
        raise Invalid(f"Invalid path: it is longer than {_LONGEST} bytes", field="path")
    return "/".join(name for name in names if name not in ("", "."))


def is_clean(name: str) -> bool:
    """Tell whether a client that is told this name could ask for it."""
    try:
        return clean(name) == name
    except Invalid:
        return False


def join(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder and path else folder or path


def check_writes(parts: Parts, caller: Caller, folder: str) -> None:
    """Raise Forbidden if the caller is a job, and neither its runs nor its models are there."""
    if caller.job_id is not None and not parts.artifacts.are_of(folder, caller.job_id):
        raise Forbidden(
            f"a job's token may write artifacts of its own runs and logged models alone, "
            f"not in {folder!r}"
        )


async def fill(part: Part, chunks: AsyncIterator[bytes]) -> None:
    """Write what arrives, a piece at a time: a file is never in memory as a whole."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        if len(held) >= CHUNK:
            await run_sync(part.write, memoryview(held))
            held = bytearray()
    await run_sync(part.write, memoryview(held))


def _invalid() -> Invalid:
    return Invalid("Invalid path", field="path")
