"""Copies files to the artifacts, so that the script may change its own afterwards."""

from __future__ import annotations

import os
import shutil

from retarget.track.writer import Writer

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Union

    AnyPath = Union[str, os.PathLike[str]]


def keep_file(writer: Writer, path: AnyPath, name: str | None) -> None:
    source = os.fsdecode(path)
    if os.path.isdir(source):
        raise IsADirectoryError(f"path: {source} is a folder; use track.artifacts")
    if not os.path.isfile(source):
        raise FileNotFoundError(f"path: not found: {source}")
    artifact = os.path.basename(source) if name is None else artifact_name(name)
    writer.keep(artifact, lambda part: shutil.copyfile(source, part))


def keep_folder(writer: Writer, folder: AnyPath, name: str | None) -> None:
    root = os.path.abspath(os.fsdecode(folder))
    if not os.path.isdir(root):
        raise NotADirectoryError(f"folder: not found: {root}")
    top = os.path.basename(root) if name is None else name and artifact_name(name)
    for parent, subfolders, file_names in os.walk(root):
        subfolders.sort()
        for file_name in sorted(file_names):
            path = os.path.join(parent, file_name)
            if os.path.isfile(path):
                keep_file(writer, path, os.path.join(top, os.path.relpath(path, root)))


def artifact_name(name: Any) -> str:
    """Return the normalized path of an artifact; raise unless it is a path below the top."""
    if not isinstance(name, str):
        raise TypeError(f"name: must be a string, got {name!r:.80}")
    plain = os.path.normpath(name)
    if not name or plain == "." or plain.startswith(("/", "..")) or "\0" in name:
        raise ValueError(f"name: {name!r} must be a path below the artifacts of the job")
    return plain
