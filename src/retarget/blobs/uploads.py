"""Files that come in parts: each part is a file of its own until the last one is there."""

import json
import os
import re
import shutil
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from retarget.blobs.folder import Blobs, Part, storage_errors
from retarget.core.errors import Invalid, NotFound
from retarget.core.snapshots import is_digest

_ID = re.compile(r"[0-9a-f]{32}")
_FACTS = "upload.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Upload:
    id: str
    path: str  # what the file will be
    parts: int
    done: bool = False


class Uploads:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks = [threading.Lock() for _ in range(64)]
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def create(self, path: str, parts: int) -> Upload:
        """Begin a file of so many parts; they are numbered from 1."""
        upload = Upload(os.urandom(16).hex(), path, parts)
        with storage_errors():
            (self.root / upload.id).mkdir(mode=0o700)
            self._write(upload)
        return upload

    def find(self, upload_id: str) -> Upload:
        """Return what is known of an upload. One whose file is damaged has to begin again."""
        try:
            raw = json.loads((self._folder(upload_id) / _FACTS).read_bytes())
            found = Upload(**raw)
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            raise _unknown(upload_id) from None
        kinds = (type(found.path), type(found.parts), type(found.done))
        if found.id != upload_id or kinds != (str, int, bool):
            raise _unknown(upload_id)
        return found

    def turn(self, upload_id: str) -> AbstractContextManager[object]:
        """Let one at a time finish an upload: who asks again while it is done waits for it."""
        return self._locks[hash(upload_id) % len(self._locks)]

    @contextmanager
    def writing(self, upload: Upload, number: int) -> Generator[Part]:
        """Take in a part; it is there at `keep`. One sent again does not harm the first."""
        if upload.done or not 1 <= number <= upload.parts:
            raise Invalid(f"upload {upload.id} takes no part {number}", field="part_number")
        folder = self._folder(upload.id)

        def place(digest: str) -> Path:
            return folder / f"{number}.{digest}"

        try:
            with storage_errors(), closing(Part(folder, place)) as part:
                yield part
        except FileNotFoundError:
            raise _unknown(upload.id) from None

    def join(self, upload: Upload, digests: Sequence[str], blobs: Blobs) -> tuple[int, str]:
        """Make one blob of the parts with these digests, in order. Return its size and digest."""
        if len(digests) != upload.parts:
            raise Invalid(
                f"upload {upload.id} has {upload.parts} parts; {len(digests)} were named",
                field="parts",
            )
        places = [self._place(upload, *named) for named in enumerate(digests, 1)]
        with blobs.writing() as whole:
            for place in places:
                with place.open("rb") as part:
                    while chunk := part.read(_CHUNK):
                        whole.write(chunk)
            return whole.size, whole.keep()

    def finish(self, upload: Upload) -> None:
        """Remove the parts, and remember that this upload came to its end."""
        with storage_errors():
            self._write(replace(upload, done=True))
        for path in self._folder(upload.id).iterdir():
            if path.name != _FACTS:
                path.unlink(missing_ok=True)

    def remove(self, upload_id: str) -> None:
        shutil.rmtree(self._folder(upload_id), ignore_errors=True)

    def remove_old(self, *, before: float) -> None:
        """Remove uploads to which nothing came since."""
        for folder in self.root.iterdir():
            with suppress(FileNotFoundError):
                if folder.stat().st_mtime < before:
                    shutil.rmtree(folder, ignore_errors=True)

    def _place(self, upload: Upload, number: int, digest: str) -> Path:
        place = self._folder(upload.id) / f"{number}.{digest}"
        if not is_digest(digest) or not place.exists():
            raise Invalid(
                f"part {number} of upload {upload.id} is not there, or has another ETag than "
                f"{digest[:80]!r}; send it again",
                field="parts",
            )
        return place

    def _write(self, upload: Upload) -> None:
        place = self._folder(upload.id) / _FACTS
        part = place.with_suffix(".new")
        part.write_text(json.dumps(asdict(upload)))
        part.rename(place)

    def _folder(self, upload_id: str) -> Path:
        if not _ID.fullmatch(upload_id):
            raise _unknown(upload_id)
        return self.root / upload_id


def _unknown(upload_id: str) -> NotFound:
    return NotFound(f"no upload {upload_id[:80]!r}; it was completed or aborted, or is a day old")
