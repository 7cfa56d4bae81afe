"""Snapshots: the manifest of a code folder, whose files are named by their content."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from blake3 import blake3

from retarget.core.errors import Invalid

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (`digest`, `size`), or a symbolic link (`link`) that stays inside the folder."""

    path: str
    size: int = 0
    digest: str = ""
    executable: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    def digests(self) -> set[str]:
        return {entry.digest for entry in self.entries if entry.digest}

    def sizes(self) -> dict[str, int]:
        """Return the size of each file, by its digest."""
        return {entry.digest: entry.size for entry in self.entries if entry.digest}

    def encode(self) -> bytes:
        """Return the canonical bytes, whatever order the folder was read in."""
        rows = [_row(entry) for entry in sorted(self.entries, key=lambda entry: entry.path)]
        return json.dumps({"version": 1, "entries": rows}, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        return digest_bytes(self.encode())


def decode(content: bytes) -> Manifest:
    """Parse an untrusted manifest, or raise Invalid that names the wrong entry."""
    try:
        raw = json.loads(content)
        version, rows = raw["version"], raw["entries"]
        if version != 1:
            raise ValueError(f"its version is {version!r}; supported is 1")
        entries = [_entry(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Invalid(f"snapshot: the manifest cannot be read: {error}", field="snapshot") from None
    check_entries(entries)
    return Manifest(tuple(entries))


def check_entries(entries: Iterable[Entry]) -> None:
    """Raise Invalid for paths that leave the folder and for paths that collide."""
    seen: set[str] = set()
    for entry in entries:
        _check_path(entry.path)
        if entry.path in seen:
            raise Invalid(f"snapshot: {entry.path!r} appears twice", field="snapshot")
        seen.add(entry.path)
        if entry.link:
            _check_link(entry)
        elif not is_digest(entry.digest) or entry.size < 0:
            raise Invalid(f"snapshot: {entry.path!r} has no valid digest or size", field="snapshot")
    for folder in _folders(seen):
        if folder in seen:
            raise Invalid(f"snapshot: {folder!r} is both a file and a folder", field="snapshot")


def stays_inside(path: str, link: str) -> bool:
    """Return whether a link at `path` with the target `link` stays in the folder."""
    if link.startswith("/"):
        return False
    depth = len(PurePosixPath(path).parts) - 1
    for segment in link.split("/"):
        if segment == "..":
            depth -= 1
        elif segment not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True


def is_digest(text: str) -> bool:
    return _DIGEST.fullmatch(text) is not None


def digest_bytes(content: bytes) -> str:
    return blake3(content).hexdigest()


def _folders(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def _check_path(path: str) -> None:
    segments = path.split("/")
    if not path or path.startswith("/") or "\0" in path or {"", ".", ".."} & set(segments):
        raise Invalid(f"snapshot: {path!r} is not a path inside the folder", field="snapshot")


def _check_link(entry: Entry) -> None:
    if entry.digest or entry.size or entry.executable:
        raise Invalid(f"snapshot: {entry.path!r} is both a file and a link", field="snapshot")
    if "\0" in entry.link or not stays_inside(entry.path, entry.link):
        raise Invalid(
            f"snapshot: the link {entry.path!r} -> {entry.link!r} leaves the folder",
            field="snapshot",
        )


def _row(entry: Entry) -> dict[str, Any]:
    if entry.link:
        return {"path": entry.path, "link": entry.link}
    row: dict[str, Any] = {"path": entry.path, "size": entry.size, "digest": entry.digest}
    return row | {"executable": True} if entry.executable else row


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        path=_string(row["path"]),
        size=_integer(row.get("size", 0)),
        digest=_string(row.get("digest", "")),
        executable=row.get("executable", False) is True,
        link=_string(row.get("link", "")),
    )


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    value.encode()  # JSON allows half of a surrogate pair, a file name does not
    return value


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value
