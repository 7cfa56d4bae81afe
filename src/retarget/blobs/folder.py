"""Blobs in a folder, each named by its digest."""

import errno
import logging
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from anyio.to_thread import run_sync
from blake3 import blake3

from retarget.blobs.disk import sync_files
from retarget.core.errors import Invalid, NotFound, StorageFull
from retarget.core.snapshots import is_digest

_log = logging.getLogger(__name__)


class Blobs:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        """Return the path of a blob, or raise NotFound."""
        path = self._path_for(digest)
        if not path.exists():
            raise NotFound(f"no blob {digest}")
        return path

    def checked_path(self, digest: str, size: int | None) -> Path:
        """Return the path of a blob. Raise NotFound if there is none or it is damaged.

        One of another size is verified, and moved to `damaged/` if it is damaged. With a size of
        None it is always verified.
        """
        path = self.path(digest)
        if path.stat().st_size != size and not self.verify(digest):
            raise NotFound(f"blob {digest} is damaged")
        return path

    def missing(
        self, digests: Iterable[str], *, now: float, sizes: Mapping[str, int] | None = None
    ) -> list[str]:
        """Return the digests of missing blobs. The others count as new, so prune keeps them.

        A blob that does not have the size in `sizes` is verified, and missing if it is damaged.
        """
        root, times, missing = str(self.root), (now, now), list[str]()
        for digest in digests:  # there may be many, so no Path is created for each
            path = f"{root}/{digest[:2]}/{_check_digest(digest)}"
            try:
                os.utime(path, times)
                is_right = sizes is None or os.stat(path).st_size == sizes.get(digest)
            except FileNotFoundError:
                missing.append(digest)
                continue
            if not is_right and not self.verify(digest):
                missing.append(digest)
        return missing

    def verify(self, digest: str) -> bool:
        """Return whether a blob exists and is undamaged. Move a damaged one to `damaged/`."""
        path = self._path_for(digest)
        try:
            if blake3().update_mmap(path).hexdigest() == digest:
                return True
        except FileNotFoundError:
            return False
        damaged = self.root / "damaged"
        damaged.mkdir(exist_ok=True, mode=0o700)
        path.rename(damaged / digest)
        _log.warning("blob %s is damaged and was moved to %s", digest, damaged)
        return False

    def digests(self) -> list[str]:
        """Return the digests of all blobs."""
        return [path.name for path in self.root.glob("??/*")]

    def put(self, content: bytes) -> str:
        """Store a small blob. An existing blob counts as new, so prune keeps it."""
        batch = self.batch()
        digest = batch.add(content)
        batch.commit()
        return digest

    def batch(self) -> "Batch":
        """Store blobs that are synced to disk together."""
        return Batch(str(self.root))

    @contextmanager
    def writing(self) -> Generator["IncomingFile"]:
        """Accept bytes. `keep` makes them a blob; without it they are discarded."""
        with storage_errors(), closing(IncomingFile(self.root, self._make_path)) as file:
            yield file

    async def receive(self, content: AsyncIterator[bytes], *, digest: str | None = None) -> str:
        """Store a stream as a blob and return its digest. With `digest`, refuse other content."""
        with self.writing() as file:
            async for chunk in content:
                file.write(chunk)
            return await run_sync(file.keep, digest)

    def prune(self, referenced: set[str], *, before: float) -> tuple[int, int]:
        """Remove blobs that nothing refers to and that nobody asked for since `before`.

        Return how many were removed, and their size in bytes.
        """
        count = size = 0
        for path in (*self.root.glob("??/*"), *self.root.glob("damaged/*")):
            with suppress(FileNotFoundError):
                status = path.stat()
                if path.name not in referenced and status.st_mtime < before:
                    path.unlink()
                    count, size = count + 1, size + status.st_size
        return count, size

    def remove_partial_files(self) -> None:
        """Remove the partial files of a killed server. Nothing may be writing meanwhile."""
        for path in self.root.glob("*.part"):
            path.unlink(missing_ok=True)

    def _make_path(self, digest: str) -> Path:
        path = self._path_for(digest)
        if not path.parent.exists():
            make_folder(path.parent)
        return path

    def _path_for(self, digest: str) -> Path:
        return self.root / digest[:2] / _check_digest(digest)


class Batch:
    """Small blobs that get their names once all of them are on disk.

    So a blob with a name is complete, even after a power cut.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._parts: dict[str, str] = {}  # the partial file of each digest

    def add(self, content: bytes, *, digest: str | None = None) -> str:
        """Write a blob and return its digest. With `digest`, raise Invalid for other content."""
        actual = blake3(content).hexdigest()
        if digest is not None and actual != digest:
            raise _wrong_digest(digest, actual)
        if actual not in self._parts:
            part = f"{self._root}/{os.urandom(8).hex()}.part"
            self._parts[actual] = part
            with storage_errors():
                _write(part, content)
        return actual

    def commit(self) -> None:
        """Sync the blobs, and name them. They count as new, so prune keeps them."""
        if not self._parts:
            return
        with storage_errors():
            sync_files(self._parts.values(), self._root)
            folders = {self._name(part, digest) for digest, part in self._parts.items()}
            sync_files(folders, self._root)
        self._parts.clear()

    def discard(self) -> None:
        """Remove what was not committed."""
        for part in self._parts.values():
            with suppress(FileNotFoundError):
                os.unlink(part)
        self._parts.clear()

    def _name(self, part: str, digest: str) -> str:
        """Give a partial file its name, and return the folder that must be synced for it."""
        folder = f"{self._root}/{digest[:2]}"
        try:
            os.rename(part, f"{folder}/{digest}")
        except FileNotFoundError:
            make_folder(folder)
            os.rename(part, f"{folder}/{digest}")
        return folder


def make_folder(path: str | Path) -> None:
    """Make a folder that outlives a power cut, in a folder that exists."""
    os.makedirs(path, 0o700, exist_ok=True)
    parent = os.path.dirname(path)
    sync_files([parent], parent)


def _write(path: str, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = os.write(file, content)
        while written < len(content):
            written += os.write(file, content[written:])
    finally:
        os.close(file)


def _wrong_digest(digest: str, actual: str) -> Invalid:
    return Invalid(f"the content of blob {digest} has the digest {actual}", field="digest")


def _check_digest(digest: str) -> str:
    if not is_digest(digest):
        raise Invalid(f"digest: {digest[:80]!r} is not 64 hex digits", field="digest")
    return digest


class IncomingFile:
    """A partial file in `folder`. `keep` moves it to the path that `path_for` returns."""

    def __init__(self, folder: Path, path_for: Callable[[str], Path]) -> None:
        self._path_for = path_for
        self._path = folder / f"{os.getpid()}.{os.urandom(8).hex()}.part"
        self._file: BinaryIO = open(  # noqa: SIM115 - closed by `close`
            os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        )
        self._hash = blake3()
        self.size = 0

    def write(self, content: bytes | memoryview) -> None:
        self._file.write(content)
        self._hash.update(content)
        self.size += len(content)

    def keep(self, digest: str | None = None) -> str:
        """Keep the file and return its digest. Raise Invalid if it differs from `digest`."""
        actual = self._hash.hexdigest()
        if digest is not None and actual != digest:
            raise _wrong_digest(digest, actual)
        self._file.flush()
        os.fsync(self._file.fileno())  # before it gets its name: see Batch
        self._file.close()
        path = self._path_for(actual)
        self._path.rename(path)
        sync_files([path.parent], path.parent)
        return actual

    def close(self) -> None:
        with suppress(OSError):  # on a full disk, the buffer cannot be flushed
            self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def storage_errors() -> Generator[None]:
    """Raise StorageFull if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFull("the server's disk is full; free some space and try again") from error
