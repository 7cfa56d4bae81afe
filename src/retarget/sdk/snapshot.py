"""Turns a code folder into a snapshot, and sends the files that the server lacks.

Empty folders are not part of a snapshot, as in git. A file that is deleted while the folder is read
is skipped.
"""

import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from blake3 import blake3

from retarget.core.errors import Invalid
from retarget.core.snapshots import Entry, Manifest, digest_bytes, stays_inside
from retarget.sdk.ignore import CodeFiles, ContextFiles, ProjectRules
from retarget.sdk.include import NO_INCLUDE, Include

SMALL_FILE_BYTES = 2**20  # smaller files are sent together
MAX_BATCH_BYTES = 8 * 2**20  # of one request with several files
_FRAME_BYTES = 40  # what a file adds to a request, apart from its content
_MAX_DIGESTS_PER_REQUEST = 50_000
_CHUNK_BYTES = 8 * 2**20
_MAX_READS = 4  # of a file that changes while it is read
_LARGE_UPLOAD_BYTES = 4 * 2**20  # sending more takes longer than asking whether it is needed
_MAX_NAMED_PATHS = 5  # in an error message; the others are counted
_RACY_NANOSECONDS = 2_000_000_000  # within this time, a file may change and keep its time stamp
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SPECIAL_FILES = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFBLK: "a device file",
    stat.S_IFCHR: "a device file",
}
_Item = TypeVar("_Item")
_Stamp = list[int]  # size, mtime, ctime, inode: while these are the same, so is the content
_Row = tuple[_Stamp, str]  # the stamp and the digest of a file


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that cannot be sent. The reason begins with a verb and says what to do."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The content of a folder when it was read, and where each blob can be read again."""

    folder: Path
    manifest: Manifest
    sources: Mapping[str, str]  # digest -> path in the folder
    excluded: Sequence[tuple[bytes, str]] = ()  # the topmost excluded paths and their rules
    refused: Sequence[RefusedFile] = ()  # only if the caller accepts them

    def path_of(self, digest: str) -> Path:
        return self.folder / self.sources[digest]


class Uploader(Protocol):
    """The blob store of the server."""

    def is_complete(self, snapshot: str, /) -> bool: ...

    def missing(self, sizes: dict[str, int], /) -> list[str]: ...

    def put_many(self, items: list[tuple[str, bytes]], /) -> None: ...

    def put_file(
        self, digest: str, path: Path, size: int, progress: Callable[[int], None], /
    ) -> None:
        """Send the first `size` bytes of a file; call `progress` with the size of each piece.

        Raise Invalid if the bytes do not match the digest.
        """
        ...


def scan(  # noqa: PLR0913  each caller sets a few of them
    folder: Path,
    *,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    context: bool = False,
    include: Include = NO_INCLUDE,
    ignore: ProjectRules | None = None,
    accept_refused: bool = False,
) -> Scan:
    """Read a folder; raise Invalid, naming the files in it that cannot be sent.

    Args:
        folder: The folder to read.
        cache: A folder for a cache of digests, so that unchanged files are not read again.
        progress: Called with the number of files and bytes read so far.
        context: The folder is a build context: `.dockerignore` decides which files are excluded.
        include: What in the folder is included whatever the ignore files say.
        ignore: Patterns of the project's settings.
        accept_refused: Return the files that cannot be sent, instead of raising Invalid.
    """
    root = _root(folder)
    stat_cache = _StatCache(cache, root) if cache is not None else None
    known_rows = stat_cache.rows if stat_cache is not None else {}
    files = ContextFiles(root) if context else CodeFiles(root, include, ignore)
    reader = _FolderReader(files, known_rows, _ReadCounter(progress))
    started_at = time.time_ns()
    entries = tuple(reader.entries())
    if not os.path.isdir(root):
        raise Invalid(f"{folder} was deleted while it was read; submit again", field="snapshot")
    refused = sorted(reader.refused, key=lambda file: file.path)
    if refused and not accept_refused:
        raise Invalid(_describe_refused(folder, refused), field="snapshot")
    if stat_cache is not None:
        stat_cache.save(entries, reader.new_rows, started_at)
    sources = {entry.digest: entry.path for entry in entries if entry.digest}
    path = Path(os.fsdecode(root))
    return Scan(path, Manifest(entries), sources, files.excluded, refused)


def upload(
    scan: Scan,
    uploader: Uploader,
    progress: Callable[[int, int], None] | None = None,
    before_large_upload: Callable[[], object] | None = None,
) -> str:
    """Send what the server lacks, and return the digest of the snapshot.

    Raise Invalid if a file has changed since it was read: nothing is sent under a wrong digest.

    Args:
        scan: The content of the folder.
        uploader: The blob store of the server.
        progress: Called with the bytes sent and the total.
        before_large_upload: Called before a large upload; may raise an error to prevent it.
    """
    manifest = scan.manifest.encode()
    digest = digest_bytes(manifest)
    if uploader.is_complete(digest):
        return digest
    sizes = {entry.digest: entry.size for entry in scan.manifest.entries if entry.digest}
    missing = _missing({**sizes, digest: len(manifest)}, uploader)
    to_send = {name: size for name, size in sizes.items() if name in missing}
    total = sum(to_send.values()) + (len(manifest) if digest in missing else 0)
    if before_large_upload is not None and total > _LARGE_UPLOAD_BYTES:
        before_large_upload()
    meter = _UploadMeter(total, progress)
    for name in [name for name, size in to_send.items() if size >= SMALL_FILE_BYTES]:
        _send_large(scan, name, to_send.pop(name), uploader, meter)
    contents = _contents(scan, to_send, manifest if digest in missing else None)
    batches = _batches(contents)
    for batch in _read_ahead(batches) if total > MAX_BATCH_BYTES else batches:
        _send_batch(batch, uploader, meter)
    return digest


def _root(folder: Path) -> bytes:
    try:
        status = os.stat(folder)
    except OSError as error:
        raise Invalid(f"{folder}: {error.strerror}; pass the folder with your code") from error
    if not stat.S_ISDIR(status.st_mode):
        raise Invalid(f"{folder} is a file; pass the folder with your code")
    return os.path.realpath(os.fsencode(folder))


def _describe_refused(folder: Path, refused: list[RefusedFile]) -> str:
    others = len(refused) - _MAX_NAMED_PATHS
    more = f"; and {others} more, which `retarget snapshot` lists" if others > 0 else ""
    named = "; ".join(f"'{file.path}' {file.reason}" for file in refused[:_MAX_NAMED_PATHS])
    return f"{folder} cannot be sent: {named}{more}"


class _ReadCounter:
    """Counts the files and bytes read so far."""

    def __init__(self, report: Callable[[int, int], None] | None) -> None:
        self._files = 0
        self._bytes = 0
        self._report = report
        self.show_partial(0)

    def add(self, size: int) -> None:
        """Count a file that was read to its end."""
        self._files += 1
        self._bytes += size
        self.show_partial(0)

    def show_partial(self, size: int) -> None:
        """Report a file of which `size` bytes have been read."""
        if self._report is not None:
            self._report(self._files + (size > 0), self._bytes + size)


class _CannotSend(Exception):
    """Why one path cannot be sent, and what to do, beginning with a verb: `is a socket; …`."""


class _FolderReader:
    """Reads a folder once. It collects all refused files, so that one error can name them all."""

    def __init__(
        self,
        files: CodeFiles | ContextFiles,
        known_rows: Mapping[str, _Row],
        counter: _ReadCounter,
    ) -> None:
        self.new_rows: dict[str, _Row] = {}
        self.refused: list[RefusedFile] = []
        self._counter = counter
        self._known_rows = known_rows
        self._root = files.root
        self._files = files

    def entries(self) -> Iterator[Entry]:
        for path, directory_entry in self._files.walk(self._add_unlistable):
            try:
                entry = self._entry(_utf8(path), directory_entry)
                self._counter.add(entry.size)
                yield entry
            except FileNotFoundError:
                continue
            except UnicodeDecodeError:
                self._refuse(path, "has a name that is not UTF-8; rename it")
            except OSError as error:
                self._refuse(path, f"cannot be read ({error.strerror}); make it readable")
            except _CannotSend as reason:
                self._refuse(path, str(reason))

    def _add_unlistable(self, path: bytes, error: OSError) -> None:
        self._refuse(path or b".", f"cannot be listed ({error.strerror}); make it readable")

    def _refuse(self, path: bytes, why: str) -> None:
        name = path.decode("utf-8", "backslashreplace").rstrip("/")
        shown = name if name.isprintable() else repr(name)[1:-1]
        reason = f"{why} or add it to {self._files.ignore_file}"
        self.refused.append(RefusedFile(shown, reason))

    def _entry(self, path: str, directory_entry: os.DirEntry[bytes]) -> Entry:
        status = directory_entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return self._file(path, directory_entry.path, status)
        if stat.S_ISLNK(status.st_mode):
            return self._link(path, directory_entry.path)
        raise _CannotSend(
            f"is {_SPECIAL_FILES.get(stat.S_IFMT(status.st_mode), 'not a file')}; remove it"
        )

    def _file(self, path: str, full_path: bytes, status: os.stat_result) -> Entry:
        row = self._known_rows.get(path)
        stamp = _stamp(status)
        if row is None or row[0] != stamp:
            row = _read(full_path, stamp, self._counter)
            self.new_rows[path] = row
        return Entry(path, row[0][0], row[1], status.st_mode & stat.S_IXUSR != 0)

    def _link(self, path: str, full_path: bytes) -> Entry:
        link = _utf8(os.readlink(full_path))
        destination = os.path.realpath(full_path)
        if not stays_inside(path, link) or not (destination + b"/").startswith(self._root + b"/"):
            raise _CannotSend(
                f"is a link that leaves the folder (to {link!r}); copy what it leads to, send a "
                "folder that has both (--code),"
            )
        return Entry(path, link=link)


def _utf8(name: bytes) -> str:
    return name.decode()


def _stamp(status: os.stat_result) -> _Stamp:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read(path: bytes, stamp: _Stamp, counter: _ReadCounter) -> _Row:
    """Return the stamp and digest of a file that did not change while it was read."""
    for _ in range(_MAX_READS):
        before = stamp
        stamp, digest = _read_once(path, before[0], counter)
        if stamp == before:
            return stamp, digest
    raise _CannotSend("is being written to; wait until it is complete")


def _read_once(path: bytes, size: int, counter: _ReadCounter) -> _Row:
    file = os.open(path, _OPEN_FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _CannotSend("was replaced while it was read; submit again")
        if size < SMALL_FILE_BYTES:
            digest = digest_bytes(os.read(file, size + 1))
        else:
            digest = _digest_large(file, counter)
        return _stamp(os.fstat(file)), digest
    finally:
        os.close(file)


def _digest_large(file: int, counter: _ReadCounter) -> str:
    # not with mmap: if the file is truncated while it is read, that kills this process
    hasher = blake3(max_threads=blake3.AUTO)
    buffer = bytearray(_CHUNK_BYTES)
    view = memoryview(buffer)
    done = 0
    while size := os.readv(file, [buffer]):
        hasher.update(view[:size])
        done += size
        counter.show_partial(done)
    return hasher.hexdigest()


class _StatCache:
    """The stamps and digests of the files of one folder. It only saves time: losing it is fine."""

    def __init__(self, folder: Path, root: bytes) -> None:
        self._path = folder / digest_bytes(root)[:32]
        self.rows = self._load()

    def save(self, entries: Sequence[Entry], new_rows: Mapping[str, _Row], started_at: int) -> None:
        """Store all rows but those of files so new that a change may not alter their stamp."""
        files = [entry.path for entry in entries if entry.digest]
        if not new_rows and len(files) == len(self.rows):
            return
        rows = {path: new_rows.get(path) or self.rows[path] for path in files}
        for path in [path for path, (stamp, _) in new_rows.items() if _is_racy(stamp, started_at)]:
            del rows[path]
        body = json.dumps(rows, separators=(",", ":")).encode()
        with suppress(OSError):
            _replace(self._path, digest_bytes(body).encode() + b"\n" + body)

    def _load(self) -> dict[str, _Row]:
        try:
            digest, _, body = self._path.read_bytes().partition(b"\n")
        except OSError:
            return {}
        return json.loads(body) if digest == digest_bytes(body).encode() else {}


def _is_racy(stamp: _Stamp, started_at: int) -> bool:
    _, mtime, ctime, _ = stamp
    return ctime > started_at - _RACY_NANOSECONDS or abs(mtime - started_at) < _RACY_NANOSECONDS


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _missing(sizes: dict[str, int], uploader: Uploader) -> set[str]:
    items, size = list(sizes.items()), _MAX_DIGESTS_PER_REQUEST
    batches = [dict(items[first : first + size]) for first in range(0, len(items), size)]
    return {digest for batch in batches for digest in uploader.missing(batch)}


class _UploadMeter:
    """Counts the bytes sent so far."""

    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self._sent = 0
        self._total = total
        self._report = report

    def add(self, count: int) -> None:
        self._sent = min(self._sent + count, self._total)  # a request that broke is sent again
        if self._report is not None:
            self._report(self._sent, self._total)


def _send_large(
    scan: Scan, digest: str, size: int, uploader: Uploader, meter: _UploadMeter
) -> None:
    path = scan.path_of(digest)
    try:
        if os.lstat(path).st_size != size:
            raise _changed(scan, digest)
        uploader.put_file(digest, path, size, meter.add)
    except (Invalid, OSError) as error:
        raise _changed(scan, digest) from error


def _contents(
    scan: Scan, digests: Iterable[str], manifest: bytes | None
) -> Iterator[tuple[str, bytes]]:
    for digest in digests:
        try:
            content = _content(scan.path_of(digest))
        except OSError as error:
            raise _changed(scan, digest) from error
        if digest_bytes(content) != digest:
            raise _changed(scan, digest)
        yield digest, content
    if manifest is not None:  # last, so that a stored manifest always has all its files
        yield digest_bytes(manifest), manifest


def _content(path: Path) -> bytes:
    with open(
        os.open(path, _OPEN_FLAGS), "rb"
    ) as file:  # the flags: do not block if a pipe has replaced it
        return file.read(SMALL_FILE_BYTES)


def _batches(items: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for digest, content in items:
        if batch and size + len(content) + _FRAME_BYTES > MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((digest, content))
        size += len(content) + _FRAME_BYTES
    if batch:
        yield batch


def _read_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the items; compute the next item while the caller uses the last one."""
    from concurrent.futures import ThreadPoolExecutor  # most folders do not need it

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(next, items, None)
        while (item := future.result()) is not None:
            future = thread.submit(next, items, None)
            yield item


def _send_batch(batch: list[tuple[str, bytes]], uploader: Uploader, meter: _UploadMeter) -> None:
    size = sum(len(content) for _, content in batch)
    if size <= MAX_BATCH_BYTES:
        uploader.put_many(batch)
        meter.add(size)
        return
    [(digest, content)] = batch  # the manifest of a very large folder
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        uploader.put_file(digest, Path(file.name), size, meter.add)


def _changed(scan: Scan, digest: str) -> Invalid:
    name = scan.sources[digest]
    return Invalid(f"{name!r} changed while it was sent; submit again", field="snapshot")
