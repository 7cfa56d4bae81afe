"""Blobs in a folder, each under its digest."""

import errno
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from retarget.core.errors import Invalid, NotFound, StorageFull
from retarget.core.snapshots import is_digest


class Blobs:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, digest: str) -> Path:
        """Return where a blob is, or raise NotFound."""
        path = self._place(digest)
        if not path.exists():
            raise NotFound(f"no blob {digest}")
        return path

    def missing(self, digests: Iterable[str], *, now: float) -> list[str]:
        """Return those that are not here. The others count as new: a collection spares them."""
        root, times = str(self.root), (now, now)
        found: list[str] = []
        for digest in digests:  # there may be many: no Path is made for each
            try:
                os.utime(f"{root}/{digest[:2]}/{_checked(digest)}", times)
            except FileNotFoundError:
                found.append(digest)
        return found

    def put(self, content: bytes) -> str:
        """Store a small blob. One that is here counts as new: a collection spares it."""
        digest = blake3(content).hexdigest()
        with storage_errors():
            _write(str(self.root), digest, content)
        return digest

    def put_checked(self, digest: str, content: bytes) -> None:
        """Store a small blob, if its content is what the digest says."""
        found = blake3(content).hexdigest()
        if found != digest:
            raise _other(digest, found)
        with storage_errors():
            _write(str(self.root), digest, content)

    @contextmanager
    def writing(self) -> Generator["Part"]:
        """Take bytes in; they become a blob at `keep`, and vanish without it."""
        with storage_errors(), closing(Part(self.root, self._room)) as part:
            yield part

    async def take(self, content: AsyncIterator[bytes], *, digest: str | None = None) -> str:
        """Store what arrives. With `digest`, refuse anything that is not it."""
        with self.writing() as part:
            async for chunk in content:
                part.write(chunk)
            return part.keep(digest)

    def collect(self, wanted: set[str], *, before: float) -> tuple[int, int]:
        """Remove blobs that nothing refers to and that were not asked for since `before`."""
        count = volume = 0
        for path in self.root.glob("??/*"):
            with suppress(FileNotFoundError):
                found = path.stat()
                if path.name not in wanted and found.st_mtime < before:
                    path.unlink()
                    count, volume = count + 1, volume + found.st_size
        return count, volume

    def remove_parts(self) -> None:
        """Remove what a server that was killed had only half taken in. Nobody may be writing."""
        for path in self.root.glob("*.part"):
            path.unlink(missing_ok=True)

    def _room(self, digest: str) -> Path:
        place = self._place(digest)
        place.parent.mkdir(exist_ok=True, mode=0o700)
        return place

    def _place(self, digest: str) -> Path:
        return self.root / digest[:2] / _checked(digest)


def _write(root: str, digest: str, content: bytes) -> None:
    """Write a small file: it is there wholly or not at all."""
    part, place = f"{root}/{os.urandom(8).hex()}.part", f"{root}/{digest[:2]}/{digest}"
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            written = os.write(file, content)
            while written < len(content):
                written += os.write(file, content[written:])
        finally:
            os.close(file)
        try:
            os.rename(part, place)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
            os.rename(part, place)
    except BaseException:
        os.unlink(part)
        raise


def _other(digest: str, found: str) -> Invalid:
    return Invalid(f"the content of blob {digest} has the digest {found}", field="digest")


def _checked(digest: str) -> str:
    if not is_digest(digest):
        raise Invalid(f"digest: {digest[:80]!r} is not 64 hex digits", field="digest")
    return digest


class Part:
    """Bytes on their way in: a file in `folder`, until `place` tells where its digest belongs."""

    def __init__(self, folder: Path, place: Callable[[str], Path]) -> None:
        self._place = place
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
        """Put it in its place and return its digest; with `digest` given, only if that is it."""
        found = self._hash.hexdigest()
        if digest is not None and found != digest:
            raise _other(digest, found)
        self._file.close()
        self._path.rename(self._place(found))
        return found

    def close(self) -> None:
        with suppress(OSError):  # what did not fit on a full disk is still to be written
            self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def storage_errors() -> Generator[None]:
    """Turn a full disk into an error that says so."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StorageFull("the server's disk is full; free some room and try again") from error
