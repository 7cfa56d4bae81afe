"""Finds the files that a script wrote outside of outputs/ and logs/."""

from __future__ import annotations

import os
import re
import stat
from itertools import islice
from typing import Any, Iterator, NamedTuple

from retarget.runner.default_exclusions import (
    DOWNLOAD_MARK,
    ENVIRONMENT_MARKS,
    HOME_MARKS,
    is_always_excluded,
    is_excluded,
)
from retarget.runner.errors import Unprepared
from retarget.runner.files import list_folder, open_below
from retarget.runner.folder import Folder
from retarget.runner.script_start import read_start
from retarget.runner.snapshot import Blobs, read_manifest

_COLLECTED = ("outputs", "logs")  # runner/outputs.py collects these
_CACHE_FOLDERS = (".cache",)
_CACHE_MARK = "CACHEDIR.TAG"  # see bford.info/cachedir
_MAX_FILES = 200_000  # more are counted, but not kept: their names would need much memory
_MAX_ENTRIES = 2_000_000  # after this many, the rest of the folder is not looked at
_CHUNK_BYTES = 1 << 20

EXCLUDED, UNREADABLE = "excluded by default", "it cannot be read"
LINK, SPECIAL = "it is a link", "it is not a regular file"
TOO_MANY = "there are too many files"
OUTSIDE = "outside the code folder"
# what is beside work/ in the folder of a launch, and not of the script; see runner/folder.py
_OWN_NAMES = re.compile(
    r"launch\.json|stop|cancel|events\.jsonl|streams|merge\.jsonl|track|work|home|layer|bin|done"
    r"|initial_files\.json|script_start|keep\.json|sent\.jsonl|runner\.log|container-\d+|.*\.part"
)


class File(NamedTuple):
    path: str
    size: int


class Missed(NamedTuple):
    """A path that cannot be kept; `files` of a folder have `size` bytes together."""

    path: str
    files: int
    size: int
    reason: str


class Written(NamedTuple):
    files: list[File]
    missed: list[Missed]


def find_written(folder: Folder, launch: dict[str, Any], node: dict[str, Any]) -> Written:
    """List the new files, and those of the snapshot that were written. The script has ended."""
    walk = _Walk(folder, _Original(folder, launch, node))
    if os.path.islink(folder.work):
        return Written([], [Missed(".", 0, 0, LINK)])
    walk.run()
    return Written(walk.files, [*walk.missed, *walk.excluded_rows(), *_find_outside(folder)])


def _find_outside(folder: Folder) -> Iterator[Missed]:
    """Name what the script wrote to `../`: it goes with the folder of the launch."""
    for entry in list_folder(folder.path):
        if _OWN_NAMES.fullmatch(entry.name):
            continue
        if not entry.is_dir(follow_symlinks=False):
            yield Missed(f"../{entry.name}", 1, _size(entry.path), OUTSIDE)
            continue
        paths = (os.path.join(top, name) for top, _, names in os.walk(entry.path) for name in names)
        sizes = [_size(path) for path in islice(paths, _MAX_ENTRIES)]
        if sizes:
            yield Missed(f"../{entry.name}/", len(sizes), sum(sizes), OUTSIDE)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0  # it has vanished, or cannot be read


class _Walk:
    """Looks at all files below the work folder. Follows no link."""

    def __init__(self, folder: Folder, original: _Original) -> None:
        self._root = folder.work
        self._original = original
        self.files: list[File] = []
        self.missed: list[Missed] = []
        self._excluded: dict[str, list[int]] = {}  # files and bytes by path
        self._uncounted = [0, 0]
        self._entries_seen = 0

    def run(self) -> None:
        pending: list[tuple[str, str]] = [("", "")]  # folders, and the excluded one they are in
        while pending:
            path, excluded = pending.pop()
            subfolders: list[tuple[str, str]] = []
            for entry in self._entries(path):
                below = f"{path}{entry.name}"
                if not path and entry.name in _COLLECTED:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not _is_cache(entry):
                        is_new = not excluded and is_excluded(entry.name, is_folder=True)
                        top = f"{below}/" if is_new else excluded
                        subfolders.append((f"{below}/", top))
                else:
                    self._look(entry, below, excluded)
            pending.extend(reversed(subfolders))
            if self._entries_seen > _MAX_ENTRIES:
                self.missed.append(Missed(path or ".", 0, 0, TOO_MANY))
                return

    def excluded_rows(self) -> Iterator[Missed]:
        for path, (files, size) in self._excluded.items():
            yield Missed(path, files, size, EXCLUDED)
        if self._uncounted[0]:
            files, size = self._uncounted
            yield Missed("*", files, size, TOO_MANY)

    def _look(self, entry: os.DirEntry[str], path: str, excluded: str) -> None:
        if is_always_excluded(entry.name, is_folder=False):
            return
        try:
            status = entry.stat(follow_symlinks=False)
            if not self._original.differs(path, status):
                return
        except FileNotFoundError:
            return  # it has vanished
        except OSError:
            self._miss(path, 0, UNREADABLE)
            return
        excluded = excluded or (path if is_excluded(entry.name, is_folder=False) else "")
        if excluded:
            _count(self._excluded.setdefault(excluded, [0, 0]), status.st_size)
        elif not stat.S_ISREG(status.st_mode):
            reason = LINK if stat.S_ISLNK(status.st_mode) else SPECIAL
            self._miss(path, 0, reason)
        elif len(self.files) < _MAX_FILES:
            self.files.append(File(path, status.st_size))
        else:
            _count(self._uncounted, status.st_size)

    def _miss(self, path: str, size: int, reason: str) -> None:
        if len(self.missed) < _MAX_FILES:
            self.missed.append(Missed(path, 1, size, reason))
        else:
            _count(self._uncounted, size)

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            listed = list_folder(os.path.join(self._root, path))
        except FileNotFoundError:
            return []  # it has vanished
        except OSError:
            self.missed.append(Missed(path or ".", 0, 0, UNREADABLE))
            return []
        self._entries_seen += len(listed)
        is_marked = path and _is_marked({entry.name for entry in listed})
        return [] if is_marked else listed


class _Original:
    """What the work folder was like when the script started."""

    def __init__(self, folder: Folder, launch: dict[str, Any], node: dict[str, Any]) -> None:
        self._work = folder.work
        self._begin, self._start = read_start(folder)
        cache = os.path.join(node["cache"], "blobs")
        self._blobs = Blobs(cache, node.get("blobs", []), folder)
        self._entries: dict[str, dict[str, Any]] = {}
        manifest = self._blobs.find(launch["snapshot"]) if launch["snapshot"] else None
        if manifest is not None:
            try:
                self._entries = {entry["path"]: entry for entry in read_manifest(manifest)}
            except (OSError, Unprepared):
                pass  # then every file that has changed since the start counts as written

    def differs(self, path: str, status: os.stat_result) -> bool:
        """Return whether the script wrote this file: it is new, or was written again."""
        # the clock of a disk may be coarse: a file of the very moment of the start may be either
        if self._begin <= status.st_ctime_ns < self._start:
            return False
        entry = self._entries.get(path)
        if entry is None:
            return True
        if "link" in entry:
            return not self._is_same_link(path, entry["link"])
        if entry["size"] != status.st_size or not stat.S_ISREG(status.st_mode):
            return True
        if self._start and status.st_mtime_ns > self._start:
            return True
        return not self._is_same_content(path, self._blobs.find(entry["digest"]))

    def _is_same_link(self, path: str, destination: str) -> bool:
        try:
            return os.readlink(os.path.join(self._work, path)) == destination
        except OSError:
            return False

    def _is_same_content(self, path: str, blob: str | None) -> bool:
        if blob is None:
            return False
        try:
            with open_below(self._work, path) as file, open(blob, "rb") as original:
                while True:
                    chunk = file.read(_CHUNK_BYTES)
                    if chunk != original.read(_CHUNK_BYTES):
                        return False
                    if not chunk:
                        return True
        except OSError:
            return False


def _is_cache(entry: os.DirEntry[str]) -> bool:
    return entry.name in _CACHE_FOLDERS or is_always_excluded(entry.name, is_folder=True)


def _is_marked(names: set[str]) -> bool:
    """Return whether a folder is an environment, a cache, a home of Retarget or a download."""
    marks = (*ENVIRONMENT_MARKS, _CACHE_MARK, DOWNLOAD_MARK)
    return any(mark in names for mark in marks) or all(mark in names for mark in HOME_MARKS)


def _count(total: list[int], size: int) -> None:
    total[0] += 1
    total[1] += size
