"""Files that become artifacts: copied at the call, so that the script may go on with its own."""

from __future__ import annotations

import os
import shutil

from retarget.track.place import Place

TYPE_CHECKING = False  # `typing` itself takes 6 ms to import
if TYPE_CHECKING:
    from typing import Any, Union

    AnyPath = Union[str, os.PathLike[str]]


def keep_file(place: Place, path: AnyPath, name: str | None) -> None:
    source = os.fsdecode(path)
    if os.path.isdir(source):
        raise IsADirectoryError(f"path: {source} is a folder; use track.artifacts")
    if not os.path.isfile(source):
        raise FileNotFoundError(f"path: there is no file {source}")
    wanted = os.path.basename(source) if name is None else artifact_name(name)
    place.keep(wanted, lambda part: shutil.copyfile(source, part))


def keep_folder(place: Place, folder: AnyPath, name: str | None) -> None:
    root = os.path.abspath(os.fsdecode(folder))
    if not os.path.isdir(root):
        raise NotADirectoryError(f"folder: there is no folder {root}")
    wanted = os.path.basename(root) if name is None else name and artifact_name(name)
    for where, below, names in os.walk(root):
        below.sort()
        for each in sorted(names):
            full = os.path.join(where, each)
            if os.path.isfile(full):
                keep_file(place, full, os.path.join(wanted, os.path.relpath(full, root)))


def artifact_name(name: Any) -> str:
    """Return the path of an artifact, as it is kept; raise unless it is below the top."""
    if not isinstance(name, str):
        raise TypeError(f"name: {name!r:.80} is not text")
    plain = os.path.normpath(name)
    if not name or plain == "." or plain.startswith(("/", "..")) or "\0" in name:
        raise ValueError(f"name: {name!r} must be a path below the artifacts of the job")
    return plain
