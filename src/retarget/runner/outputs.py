"""Collects the files that the script writes under outputs/ and logs/, and its artifacts."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator

from retarget.runner.files import list_folder, open_below
from retarget.runner.folder import Folder
from retarget.runner.secrets import Secrets, read_masked
from retarget.runner.server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from retarget.runner.masking import Masker

_CHUNK_BYTES = 1 << 20  # a file of this size is sent on its own
_BATCH_BYTES = 8 << 20
_BATCH_FILES = 1000
_ESCAPE = re.compile(r"\\x[0-9a-f]{2}|\\\\")
_DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


class Collector:
    def __init__(self, folder: Folder, secrets: Secrets | None = None) -> None:
        self._folder = folder
        self._secrets = secrets
        self._root = os.path.realpath(folder.path)
        self._sent: dict[str, tuple[int, int]] = {}
        self._logged: set[str] = set()
        self._initial_files: dict[str, tuple[int, int]] | None = None

    def send(self, server: Server, *, min_age_seconds: float) -> None:
        """Send every new or changed file that has not changed for `min_age_seconds`."""
        # a log that still grows may end in a half-written secret: until its end it is only streamed
        is_growing = min_age_seconds and self._secrets is not None and self._secrets.names
        folders = ("outputs",) if is_growing else ("outputs", "logs")
        self._send_all(server, self._changed_files(folders, min_age_seconds))

    def send_artifacts(self, server: Server) -> None:
        """Send every new or replaced artifact. They are complete from the start."""
        if os.path.isdir(self._full("artifacts")):
            self._send_all(server, self._changed_files(("artifacts",), 0.0))

    def paths(self) -> Iterator[str]:
        """Yield the full paths of all outputs and artifacts."""
        for top in ("outputs", "artifacts"):
            for path in self.files(top):
                yield self._full(path)

    def record_initial_files(self) -> None:
        """Record the files in outputs/ and logs/ that came with the code."""
        paths = [path for top in ("outputs", "logs") for path in self.files(top)]
        if paths:
            stats = {path: os.stat(self._full(path)) for path in paths}
            versions = {path: [file.st_size, file.st_mtime_ns] for path, file in stats.items()}
            self._folder.write("initial_files.json", versions)

    def name(self, path: str, server: Server) -> str:
        """Return the name of a file on the server."""
        top, slash, rest = printable_path(path).partition("/")
        masked = rest if self._secrets is None else self._secrets.mask_path(rest, server)
        return f"{top}{slash}{masked}"

    def find_removed(self, server: Server) -> list[str]:
        """List the files that were sent while the script ran and no longer exist."""
        paths = [path for path in self._ever_sent() if not os.path.exists(self._full(path))]
        return [self.name(path, server) for path in paths]

    def _ever_sent(self) -> list[str]:
        """Return the files that this runner, and earlier ones that were killed, have sent."""
        try:
            with open(self._folder.file("sent.jsonl"), "rb") as file:
                paths = [_parse_path(line) for line in file]
        except FileNotFoundError:
            return []
        return list(dict.fromkeys(path for path in paths if path))

    def files(self, top: str) -> Iterator[str]:
        """Yield the paths of the regular files below one of these folders."""
        for path in (self._folder.work, self._full(top)):
            if os.path.islink(path):
                self._log_once(os.path.basename(path), "the script has made it a link")
                return
        pending = [top]
        while pending:
            subfolders: list[str] = []
            folder = pending.pop()
            for entry in self._entries(folder):
                path = f"{folder}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    subfolders.append(path)
                elif self._is_collected(entry, path):
                    yield path
            pending.extend(reversed(subfolders))

    def open(self, path: str) -> BinaryIO:
        """Open one of the files. A symlink that has replaced it in the meantime is not followed."""
        base, full = self._base(path), self._full(path)
        if os.path.islink(full):
            full = os.path.realpath(full)
            if not full.startswith(base + os.sep):
                raise OSError(f"{path} is a link to a file elsewhere")
        return open_below(base, os.path.relpath(full, base))

    def _send_all(self, server: Server, files: Iterator[tuple[str, int, int]]) -> None:
        batch: list[tuple[str, int, int]] = []
        volume = 0
        for path, size, changed in files:
            if size >= _CHUNK_BYTES:
                self._send(server, [(path, size, changed)])
                continue
            batch.append((path, size, changed))
            volume += size
            if volume >= _BATCH_BYTES or len(batch) >= _BATCH_FILES:
                self._send(server, batch)
                batch, volume = [], 0
        if batch:
            self._send(server, batch)

    def _changed_files(
        self, folders: tuple[str, ...], min_age_seconds: float
    ) -> Iterator[tuple[str, int, int]]:
        for top in folders:
            for path in self.files(top):
                try:
                    status = os.stat(self._full(path))
                except FileNotFoundError:
                    continue  # the script has removed it
                except OSError as error:
                    self._log_once(path, f"it cannot be read: {error.strerror}")
                    continue
                version = (status.st_size, status.st_mtime_ns)
                is_young = min_age_seconds and time.time() - status.st_mtime < min_age_seconds
                initial = self._read_initial_files().get(path)
                if not is_young and version not in (self._sent.get(path), initial):
                    yield (path, *version)

    def _read_initial_files(self) -> dict[str, tuple[int, int]]:
        """Return the files that came with the code: no outputs unless the script changes them."""
        if self._initial_files is None:
            try:
                rows = self._folder.read("initial_files.json")
                self._initial_files = {path: (row[0], row[1]) for path, row in rows.items()}
            except (FileNotFoundError, *_DAMAGED):
                self._initial_files = {}  # better too many outputs than none
        return self._initial_files

    def _send(self, server: Server, batch: list[tuple[str, int, int]]) -> None:
        frames: list[tuple[bytes, str, int]] = []
        for path, size, _ in batch:
            if not os.access(self._full(path), os.R_OK):
                self._log_once(path, "it cannot be read")
                continue
            header = json.dumps({"path": self.name(path, server), "size": size}).encode()
            frames.append((len(header).to_bytes(4, "big") + header, path, size))
        length = sum(len(header) + size for header, _, size in frames)
        if frames:
            with open(self._folder.file("sent.jsonl"), "a", encoding="ascii") as file:
                file.write("\n")  # a line that a kill cut short must not spoil the next one
                file.writelines(json.dumps(path) + "\n" for _, path, _ in frames)
            masker = None if self._secrets is None else self._secrets.masker(server)
            for reason in server.send_files(self._bytes_of(frames, masker), length):
                self._folder.log(f"retarget: a file is not kept: {reason}")
        for path, size, changed in batch:
            self._sent[path] = (size, changed)

    def _bytes_of(
        self, frames: list[tuple[bytes, str, int]], masker: Masker | None
    ) -> Iterator[bytes]:
        for header, path, size in frames:
            yield header
            sent, text_masker = 0, masker if self._is_text(path) else None
            with self.open(path) as file:
                while sent < size:
                    length = min(size - sent, _CHUNK_BYTES)
                    chunk = read_masked(file, sent, length, text_masker, final=True)
                    if not chunk:
                        raise OSError(f"{path} became shorter while it was read")
                    sent += len(chunk)
                    yield chunk

    def _is_text(self, path: str) -> bool:
        """Return whether a file is what the script printed: a log, or an executed notebook."""
        stem = "" if self._secrets is None else self._secrets.notebook
        executed = rf"outputs/{re.escape(stem)}(-rank-\d+)?\.ipynb"
        return path.startswith("logs/") or (stem != "" and re.fullmatch(executed, path) is not None)

    def _entries(self, path: str) -> list[os.DirEntry[str]]:
        try:
            return list_folder(self._full(path))
        except FileNotFoundError:
            return []  # the script has removed it
        except OSError as error:
            self._log_once(path, f"it cannot be read: {error.strerror}")
            return []

    def _is_collected(self, entry: os.DirEntry[str], path: str) -> bool:
        """Return whether this is a regular file, or a link to one inside the work folder."""
        if not entry.is_symlink():
            if not entry.is_file(follow_symlinks=False):
                self._log_once(path, "it is not a regular file")
                return False
            return True
        try:
            mode = os.stat(entry.path).st_mode
        except OSError:
            return False  # the link is dangling or a loop
        if not os.path.realpath(entry.path).startswith(self._base(path) + os.sep):
            self._log_once(path, "it is a link to a file elsewhere")
            return False
        return stat.S_ISREG(mode)

    def _log_once(self, path: str, reason: str) -> None:
        if path not in self._logged:
            self._logged.add(path)
            self._folder.log(f"retarget: {path} is not kept: {reason}")

    def _full(self, path: str) -> str:
        return os.path.join(self._base(path), path)

    def _base(self, path: str) -> str:
        is_artifact = path.split("/", 1)[0] == "artifacts"
        return os.path.join(self._root, "track" if is_artifact else "work")


def _parse_path(line: bytes) -> str | None:
    """Return the path in a line of `sent.jsonl`; None if it is cut short or not ours."""
    try:
        path = json.loads(line)
        printable_path(path)
    except _DAMAGED:
        return None
    return path


def printable_path(path: str) -> str:
    """Return a path as valid UTF-8. Different paths stay different.

    Bytes that are not UTF-8 are escaped. So are backslashes, wherever they could be mistaken.
    """
    encoded = os.fsencode(path)
    text = encoded.decode("utf-8", "backslashreplace")
    if _ESCAPE.search(text) is None:
        return text
    return encoded.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
