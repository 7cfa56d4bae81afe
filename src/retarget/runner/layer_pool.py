"""Unused layers: a job takes one and gives it back unchanged, because new files take time."""

from __future__ import annotations

import os
import zlib

_MAX_LAYERS = 16  # per interpreter


class LayerPool:
    """Where the layer of a job comes from. `files` and `links` are all that a new one has."""

    def __init__(self, path: str, root: str, files: dict[str, str], links: dict[str, str]) -> None:
        self._path = path
        self._files = files
        self._links = links
        key = zlib.crc32(repr((files, links)).encode("utf-8", "surrogateescape"))
        self._folder = os.path.join(root, "layers", f"{key:08x}")

    def take(self) -> bool:
        """Take a layer that an earlier job has given back; False if there is none."""
        try:
            for name in os.listdir(self._folder):
                try:
                    os.rename(os.path.join(self._folder, name), self._path)
                    return True
                except FileNotFoundError:
                    pass  # another job has just taken it
        except OSError:
            pass  # there is no such folder yet, or it is on another disk
        return False

    def give_back(self) -> None:
        """Keep the layer for another job, unless this job has changed it."""
        try:
            if self._is_unchanged():
                os.makedirs(self._folder, exist_ok=True)
                if len(os.listdir(self._folder)) < _MAX_LAYERS:
                    name = str(os.stat(self._path).st_ino)  # unique, and nothing of the job's
                    os.rename(self._path, os.path.join(self._folder, name))
        except (OSError, ValueError):
            pass  # it is removed with the launch

    def write(self) -> None:
        for folder in self._folders():
            os.mkdir(os.path.join(self._path, folder))
        for name, target in self._links.items():
            os.symlink(target, os.path.join(self._path, name))
        for name, text in self._files.items():
            write_file(os.path.join(self._path, name), text)

    def _folders(self) -> list[str]:
        """List the folders in a layer, and the layer itself, from the top down."""
        folders = {""}
        for name in (*self._files, *self._links):
            parts = name.split("/")[:-1]
            folders.update("/".join(parts[: end + 1]) for end in range(len(parts)))
        return sorted(folders)

    def _is_unchanged(self) -> bool:
        names = {*self._files, *self._links, *self._folders()} - {""}
        for folder in self._folders():
            path = os.path.join(self._path, folder)
            if any(os.path.join(folder, name) not in names for name in os.listdir(path)):
                return False
        files = {name: _read(os.path.join(self._path, name)) for name in self._files}
        links = {name: os.readlink(os.path.join(self._path, name)) for name in self._links}
        return (files, links) == (self._files, self._links)


def root_of(prefix: str, cache: str) -> str:
    """Return where to keep what belongs to an interpreter; it goes with a built environment."""
    environments = os.path.join(cache, "environments") + os.sep
    return os.path.dirname(prefix) if prefix.startswith(environments) else cache


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def write_file(path: str, text: str) -> None:
    """Write a new file, executable if it is a script."""
    mode = 0o700 if text.startswith("#!") else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        os.write(descriptor, text.encode("utf-8", "surrogateescape"))
    finally:
        os.close(descriptor)
