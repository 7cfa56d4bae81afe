"""Multipart uploads: each part is a file until all parts have arrived."""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from retarget.blobs.folder import Blobs, IncomingFile, storage_errors
from retarget.core.errors import Invalid, NotFound
from retarget.core.snapshots import is_digest

_ID = re.compile(r"[0-9a-f]{32}")
_STATE_FILE = "upload.json"
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Upload:
    id: str
    path: str  # the path of the complete file
    parts: int
    done: bool = False


class Uploads:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def create(self, path: str, parts: int) -> Upload:
        """Start an upload with this many parts, which are numbered from 1."""
        upload = Upload(os.urandom(16).hex(), path, parts)
        with storage_errors():
            (self.root / upload.id).mkdir(mode=0o700)
            self._write(upload)
        return upload

    def find(self, upload_id: str) -> Upload:
        """Return an upload. One whose state file is damaged must start again, and is not found."""
        try:
            raw = json.loads((self._folder(upload_id) / _STATE_FILE).read_bytes())
            upload = Upload(**raw)
        except (FileNotFoundError, ValueError, TypeError, RecursionError):
            raise _no_upload(upload_id) from None
        types = (type(upload.path), type(upload.parts), type(upload.done))
        if upload.id != upload_id or types != (str, int, bool):
            raise _no_upload(upload_id)
        return upload

    @contextmanager
    def lock(self, upload_id: str) -> Generator[None]:
        """Hold the lock that lets one request at a time, of all servers, finish an upload."""
        try:
            folder = os.open(self._folder(upload_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _no_upload(upload_id) from None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    @contextmanager
    def writing(self, upload: Upload, number: int) -> Generator[IncomingFile]:
        """Accept a part, which `keep` stores. A part that is sent again does not harm the first."""
        if upload.done or not 1 <= number <= upload.parts:
            raise Invalid(f"upload {upload.id} does not accept part {number}", field="part_number")
        folder = self._folder(upload.id)

        def path_for(digest: str) -> Path:
            return folder / f"{number}.{digest}"

        try:
            with storage_errors(), closing(IncomingFile(folder, path_for)) as part:
                yield part
        except FileNotFoundError:
            raise _no_upload(upload.id) from None

    def join(self, upload: Upload, digests: Sequence[str], blobs: Blobs) -> tuple[int, str]:
        """Join the parts with these digests, in order, to one blob. Return its size and digest."""
        if len(digests) != upload.parts:
            raise Invalid(
                f"upload {upload.id} has {upload.parts} parts, got {len(digests)}",
                field="parts",
            )
        paths = [self._part_path(upload, *part) for part in enumerate(digests, 1)]
        with blobs.writing() as blob:
            for path in paths:
                with path.open("rb") as part:
                    while chunk := part.read(_CHUNK_BYTES):
                        blob.write(chunk)
            return blob.size, blob.keep()

    def finish(self, upload: Upload) -> None:
        """Remove the parts, and record that this upload is complete."""
        with storage_errors():
            self._write(replace(upload, done=True))
        for path in self._folder(upload.id).iterdir():
            if path.name != _STATE_FILE:
                path.unlink(missing_ok=True)

    def remove(self, upload_id: str) -> None:
        shutil.rmtree(self._folder(upload_id), ignore_errors=True)

    def remove_old(self, *, before: float) -> None:
        """Remove uploads that have received nothing since `before`."""
        for folder in self.root.iterdir():
            with suppress(FileNotFoundError):
                if folder.stat().st_mtime < before:
                    shutil.rmtree(folder, ignore_errors=True)

    def _part_path(self, upload: Upload, number: int, digest: str) -> Path:
        path = self._folder(upload.id) / f"{number}.{digest}"
        if not is_digest(digest) or not path.exists():
            raise Invalid(
                f"part {number} of upload {upload.id} is missing, or its ETag is not "
                f"{digest[:80]!r}; send it again",
                field="parts",
            )
        return path

    def _write(self, upload: Upload) -> None:
        path = self._folder(upload.id) / _STATE_FILE
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(upload)))
        new.rename(path)

    def _folder(self, upload_id: str) -> Path:
        if not _ID.fullmatch(upload_id):
            raise _no_upload(upload_id)
        return self.root / upload_id


def _no_upload(upload_id: str) -> NotFound:
    return NotFound(f"no upload {upload_id[:80]!r}; it was completed or aborted, or has expired")
