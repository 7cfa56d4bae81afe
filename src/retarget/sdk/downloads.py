"""Fetching what jobs left: whole files only, checked, and never outside the folder asked for."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from blake3 import blake3

from retarget.core.errors import Invalid, NotFound, RetargetError
from retarget.sdk.http import Answer, Connection
from retarget.sdk.records import Output


def wanted(outputs: Sequence[Output], path: str, job: str) -> list[Output]:
    """Return the outputs that `path` names: one file, all in a folder, or all there are."""
    name = path.strip("/").removeprefix("./")
    if name in ("", "."):
        return list(outputs)
    chosen = [each for each in outputs if each.path == name or each.path.startswith(f"{name}/")]
    if not chosen and name != "outputs":
        known = ", ".join(each.path for each in outputs[:5]) or "none"
        raise NotFound(f"{job} has no output {name!r}; it has {known}")
    return chosen


def download(connection: Connection, source: str, output: Output, folder: Path) -> Path:
    """Write one file that the server has below `source` into `folder`, and return where it is."""
    path = folder / _inside(output.path)
    _check_links(folder, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        try:
            with unfinished.open("xb") as file:
                _fetch(connection, source, output, file)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise RetargetError(f"{path} cannot be written: {error.strerror or error}") from error
    return path


def _fetch(connection: Connection, source: str, output: Output, file: BinaryIO) -> None:
    with connection.stream(f"{source}/{quote(output.path)}") as answer:
        digest = _copy(answer, file)
    if digest != output.digest:
        raise RetargetError(f"{output.path} came damaged or has just changed; fetch it again")


def _copy(answer: Answer, file: BinaryIO) -> str:
    hasher = blake3()
    for piece in answer:
        hasher.update(piece)
        file.write(piece)
    return hasher.hexdigest()


def _check_links(folder: Path, path: Path) -> None:
    top, place = os.path.realpath(folder), os.path.realpath(path.parent)
    if os.path.commonpath([top, place]) != top:
        raise Invalid(
            f"{path.parent} is a link that leads out of {folder}; nothing was written there: "
            "remove it, or name another folder"
        )


def _inside(path: str) -> PurePosixPath:
    # the server is trusted to be ours, and still must not write where it likes
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or {"", ".", ".."} & set(parts):
        raise Invalid(f"the output {path!r} would leave the folder; it was not fetched")
    return PurePosixPath(path)
