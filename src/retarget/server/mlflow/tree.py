"""The artifact tree: normalizes paths, checks write access, and writes uploads."""

import re
from collections.abc import AsyncIterator
from urllib.parse import unquote

from anyio.to_thread import run_sync

from retarget.blobs.folder import IncomingFile
from retarget.control.context import Context
from retarget.core.errors import Forbidden, Invalid
from retarget.server.mlflow.request import Principal

CHUNK_BYTES = 1 << 20  # read or written at once

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f]")
_REFUSED = re.compile(r"[#\\]|^/|^[A-Za-z]:/|^file:")
_MAX_PATH_BYTES = 2048
_MAX_DECODINGS = 10  # how often a path may be encoded


def normalize(path: str) -> str:
    """Return the canonical form of a path, without a trailing "/", or raise Invalid.

    As in MLflow, the path is decoded until it no longer changes, and control characters stay
    encoded. Clients rely on both: older ones name images `key%step%1%timestamp%1794747338017`.
    """
    for _ in range(_MAX_DECODINGS):
        decoded = unquote(path)
        if decoded == path:
            break
        path = decoded
    else:
        raise _invalid()
    path = _CONTROL_CHARACTERS.sub(lambda match: f"%{ord(match[0]):02x}", path)
    names = path.split("/")
    if _REFUSED.search(path) or ".." in names:
        raise _invalid()
    if len(path.encode(errors="replace")) > _MAX_PATH_BYTES:
        raise Invalid(f"Invalid path: it is longer than {_MAX_PATH_BYTES} bytes", field="path")
    return "/".join(name for name in names if name not in ("", "."))


def is_normal(name: str) -> bool:
    """Return whether a client could request this name."""
    try:
        return normalize(name) == name
    except Invalid:
        return False


def join(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder and path else folder or path


def check_writes(context: Context, principal: Principal, folder: str) -> None:
    """Raise Forbidden if a job writes outside the folders of its own runs and logged models."""
    if principal.job_id is not None and not context.store.artifacts.belongs_to(
        folder, principal.job_id
    ):
        raise Forbidden(
            "the token of a job can write artifacts of its own runs and logged models only, "
            f"not in {folder!r}"
        )


async def write_chunks(part: IncomingFile, chunks: AsyncIterator[bytes]) -> None:
    """Write chunks as they arrive, so that a file is never held in memory as a whole."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) >= CHUNK_BYTES:
            await run_sync(part.write, memoryview(buffer))
            buffer = bytearray()
    await run_sync(part.write, memoryview(buffer))


def _invalid() -> Invalid:
    return Invalid("Invalid path", field="path")
