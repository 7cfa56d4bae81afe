"""The code folder as a snapshot: read where it changed, sent where the server lacks it.

Empty folders are not kept, as in git. A file that vanishes while the folder is read is left out.
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
from retarget.sdk.ignore import source_of, walk, walk_context

SMALL = 2**20  # a file below this is sent together with others
BATCH = 8 * 2**20  # the most that one request with several files carries
_FRAME = 40  # what one more file adds to a request
_ASKED_AT_ONCE = 50_000
_CHUNK = 8 * 2**20
_TRIES = 4
_MUCH = 4 * 2**20  # bytes that take longer than to ask whether the job will be taken
_NAMED = 5  # so many refused paths are named, the others counted
_RACY = 2_000_000_000  # nanoseconds in which a file may change and keep its time stamp
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ODD_KINDS = {
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFBLK: "a device file",
    stat.S_IFCHR: "a device file",
}
_T = TypeVar("_T")
_Stamp = list[int]  # size, mtime, ctime, inode: as long as these are the same, so is the content
_Row = tuple[_Stamp, str]  # a stamp and a digest


@dataclass(frozen=True, slots=True)
class Scan:
    """A folder as it was read: what it holds, and where each content can be read again."""

    folder: Path
    manifest: Manifest
    sources: Mapping[str, str]  # digest -> path in the folder

    def path_of(self, digest: str) -> Path:
        return self.folder / self.sources[digest]


class Uploader(Protocol):
    """The server's store of blobs, seen from here."""

    def is_whole(self, snapshot: str, /) -> bool: ...

    def missing(self, digests: list[str], /) -> list[str]: ...

    def put_many(self, items: list[tuple[str, bytes]], /) -> None: ...

    def put_file(
        self, digest: str, path: Path, size: int, progress: Callable[[int], None], /
    ) -> None:
        """Send exactly `size` bytes of a file, telling `progress` of each further piece sent.

        Invalid if they are not what the digest names.
        """
        ...


def scan(
    folder: Path,
    *,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    context: bool = False,
) -> Scan:
    """Read the folder, or raise Invalid that names each thing in it which cannot be sent.

    `context`: it is what an image is built from, and has other rules for what is left out.
    `cache` is a folder to remember digests in, so that an unchanged file is not read again.
    `progress` is told of the files and bytes read so far, from 0 on.
    """
    root = _root(folder)
    stat_cache = _StatCache(cache, root) if cache is not None else None
    known = stat_cache.rows if stat_cache is not None else {}
    reading = _Reading(root, known, _Count(progress), context=context)
    started = time.time_ns()
    entries = tuple(reading.entries())
    if not os.path.isdir(root):
        raise Invalid(f"{folder} vanished while it was being read; submit again", field="snapshot")
    if reading.refused:
        raise Invalid(_refusal(folder, reading.refused), field="snapshot")
    if stat_cache is not None:
        stat_cache.keep(entries, reading.fresh, started)
    sources = {entry.digest: entry.path for entry in entries if entry.digest}
    return Scan(Path(os.fsdecode(root)), Manifest(entries), sources)


def upload(
    scan: Scan,
    send: Uploader,
    progress: Callable[[int, int], None] | None = None,
    before_much: Callable[[], object] | None = None,
) -> str:
    """Send what the server lacks and return the snapshot's digest.

    Nothing is sent under a wrong digest: Invalid, naming the file, if one has changed since.
    `before_much` is called before much is sent, and may raise what makes that useless.
    """
    manifest = scan.manifest.encode()
    digest = digest_bytes(manifest)
    if send.is_whole(digest):
        return digest
    sizes = {entry.digest: entry.size for entry in scan.manifest.entries if entry.digest}
    lacking = _lacking([*sizes, digest], send)
    wanted = {name: size for name, size in sizes.items() if name in lacking}
    total = sum(wanted.values()) + (len(manifest) if digest in lacking else 0)
    if before_much is not None and total > _MUCH:
        before_much()
    meter = _Meter(total, progress)
    for name in [name for name, size in wanted.items() if size >= SMALL]:
        _send_large(scan, name, wanted.pop(name), send, meter)
    contents = _contents(scan, wanted, manifest if digest in lacking else None)
    batches = _batches(contents)
    for batch in _read_ahead(batches) if total > BATCH else batches:
        _send_batch(batch, send, meter)
    return digest


def _root(folder: Path) -> bytes:
    try:
        found = os.stat(folder)
    except OSError as error:
        raise Invalid(f"{folder}: {error.strerror}; name the folder with your code") from error
    if not stat.S_ISDIR(found.st_mode):
        raise Invalid(f"{folder} is a file; name the folder with your code")
    return os.path.realpath(os.fsencode(folder))


def _refusal(folder: Path, refused: list[str]) -> str:
    more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    return f"{folder} cannot be sent as it is: {'; '.join(refused[:_NAMED])}{more}"


class _Count:
    """The files and bytes read so far."""

    def __init__(self, tell: Callable[[int, int], None] | None) -> None:
        self._files = 0
        self._bytes = 0
        self._tell = tell
        self.passed(0)

    def add(self, size: int) -> None:
        """Count a file that is through."""
        self._files += 1
        self._bytes += size
        self.passed(0)

    def passed(self, part: int) -> None:
        """Tell of a file of which `part` is read."""
        if self._tell is not None:
            self._tell(self._files + (part > 0), self._bytes + part)


class _Refused(Exception):
    """Why one path cannot be sent, and what to do, beginning with a verb: `is a socket; …`."""


class _Reading:
    """One pass over a folder; what cannot be sent is gathered, so that all is told at once."""

    def __init__(
        self, root: bytes, known: Mapping[str, _Row], count: _Count, *, context: bool
    ) -> None:
        self.fresh: dict[str, _Row] = {}
        self.refused: list[str] = []
        self._count = count
        self._known = known
        self._root = root
        self._walk = walk_context if context else walk
        self._ignored = f"add it to {'.dockerignore' if context else source_of(root)}"

    def entries(self) -> Iterator[Entry]:
        for path, found in self._walk(self._root, self._unlistable):
            try:
                entry = self._entry(_utf8(path), found)
                self._count.add(entry.size)
                yield entry
            except FileNotFoundError:
                continue
            except UnicodeDecodeError:
                self._refuse(path, "has a name that is not UTF-8; rename it")
            except OSError as error:
                self._refuse(path, f"cannot be read ({error.strerror}); make it readable")
            except _Refused as reason:
                self._refuse(path, str(reason))

    def _unlistable(self, path: bytes, error: OSError) -> None:
        self._refuse(path or b".", f"cannot be listed ({error.strerror}); make it readable")

    def _refuse(self, path: bytes, why: str) -> None:
        name = path.decode("utf-8", "backslashreplace").rstrip("/")
        shown = name if name.isprintable() else repr(name)[1:-1]
        self.refused.append(f"'{shown}' {why} or {self._ignored}")

    def _entry(self, path: str, found: os.DirEntry[bytes]) -> Entry:
        status = found.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            return self._file(path, found.path, status)
        if stat.S_ISLNK(status.st_mode):
            return self._link(path, found.path)
        raise _Refused(f"is {_ODD_KINDS.get(stat.S_IFMT(status.st_mode), 'not a file')}; remove it")

    def _file(self, path: str, full: bytes, status: os.stat_result) -> Entry:
        row = self._known.get(path)
        stamp = _stamp(status)
        if row is None or row[0] != stamp:
            row = _read(full, stamp, self._count)
            self.fresh[path] = row
        return Entry(path, row[0][0], row[1], status.st_mode & stat.S_IXUSR != 0)

    def _link(self, path: str, full: bytes) -> Entry:
        link = _utf8(os.readlink(full))
        end = os.path.realpath(full)
        if not stays_inside(path, link) or not (end + b"/").startswith(self._root + b"/"):
            raise _Refused(f"is a link that leaves the folder (to {link!r}); copy what it leads to")
        return Entry(path, link=link)


def _utf8(name: bytes) -> str:
    return name.decode()


def _stamp(status: os.stat_result) -> _Stamp:
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read(path: bytes, stamp: _Stamp, count: _Count) -> _Row:
    """Return the stamp and digest of a file that stood still while it was read."""
    for _ in range(_TRIES):
        before = stamp
        stamp, digest = _read_once(path, before[0], count)
        if stamp == before:
            return stamp, digest
    raise _Refused("is being written to; wait until it is complete")


def _read_once(path: bytes, size: int, count: _Count) -> _Row:
    file = os.open(path, _READ)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _Refused("was replaced while it was read; submit again")
        small = size < SMALL
        digest = digest_bytes(os.read(file, size + 1)) if small else _digest_large(file, count)
        return _stamp(os.fstat(file)), digest
    finally:
        os.close(file)


def _digest_large(file: int, count: _Count) -> str:
    # not by mmap: a file that is cut short while it is read would kill this process
    hasher = blake3(max_threads=blake3.AUTO)
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    done = 0
    while size := os.readv(file, [buffer]):
        hasher.update(view[:size])
        done += size
        count.passed(done)
    return hasher.hexdigest()


class _StatCache:
    """What was known of each file of one folder. Only saves time: it may be lost at any moment."""

    def __init__(self, folder: Path, root: bytes) -> None:
        self._path = folder / digest_bytes(root)[:32]
        self.rows = self._load()

    def keep(self, entries: Sequence[Entry], fresh: Mapping[str, _Row], started: int) -> None:
        """Store what is known but of files so fresh that a change may not show in their stamp."""
        files = [entry.path for entry in entries if entry.digest]
        if not fresh and len(files) == len(self.rows):
            return
        settled = {path: fresh.get(path) or self.rows[path] for path in files}
        for path in [path for path, (stamp, _) in fresh.items() if _is_racy(stamp, started)]:
            del settled[path]
        body = json.dumps(settled, separators=(",", ":")).encode()
        with suppress(OSError):
            _replace(self._path, digest_bytes(body).encode() + b"\n" + body)

    def _load(self) -> dict[str, _Row]:
        try:
            digest, _, body = self._path.read_bytes().partition(b"\n")
        except OSError:
            return {}
        return json.loads(body) if digest == digest_bytes(body).encode() else {}


def _is_racy(stamp: _Stamp, started: int) -> bool:
    _, mtime, ctime, _ = stamp
    return ctime > started - _RACY or abs(mtime - started) < _RACY


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


def _lacking(digests: list[str], send: Uploader) -> set[str]:
    parts = range(0, len(digests), _ASKED_AT_ONCE)
    return {name for at in parts for name in send.missing(digests[at : at + _ASKED_AT_ONCE])}


class _Meter:
    def __init__(self, total: int, show: Callable[[int, int], None] | None) -> None:
        self._sent = 0
        self._total = total
        self._show = show

    def add(self, count: int) -> None:
        self._sent = min(self._sent + count, self._total)  # a broken request is sent again
        if self._show is not None:
            self._show(self._sent, self._total)


def _send_large(scan: Scan, digest: str, size: int, send: Uploader, meter: _Meter) -> None:
    path = scan.path_of(digest)
    try:
        if os.lstat(path).st_size != size:
            raise _changed(scan, digest)
        send.put_file(digest, path, size, meter.add)
    except (Invalid, OSError) as error:
        raise _changed(scan, digest) from error


def _contents(
    scan: Scan, wanted: Iterable[str], manifest: bytes | None
) -> Iterator[tuple[str, bytes]]:
    for digest in wanted:
        try:
            content = _content(scan.path_of(digest))
        except OSError as error:
            raise _changed(scan, digest) from error
        if digest_bytes(content) != digest:
            raise _changed(scan, digest)
        yield digest, content
    if manifest is not None:  # the last: who finds it finds all that it names
        yield digest_bytes(manifest), manifest


def _content(path: Path) -> bytes:
    with open(os.open(path, _READ), "rb") as file:  # a pipe that took its place is not waited for
        return file.read(SMALL)


def _batches(items: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for digest, content in items:
        if batch and size + len(content) + _FRAME > BATCH:
            yield batch
            batch, size = [], 0
        batch.append((digest, content))
        size += len(content) + _FRAME
    if batch:
        yield batch


def _read_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """Yield the same, the next one being made while the last one is used."""
    from concurrent.futures import ThreadPoolExecutor  # most folders do without

    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = thread.submit(next, items, None)
            yield item


def _send_batch(batch: list[tuple[str, bytes]], send: Uploader, meter: _Meter) -> None:
    size = sum(len(content) for _, content in batch)
    if size <= BATCH:
        send.put_many(batch)
        meter.add(size)
        return
    [(digest, content)] = batch  # the manifest of a very large folder
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        send.put_file(digest, Path(file.name), size, meter.add)


def _changed(scan: Scan, digest: str) -> Invalid:
    name = scan.sources[digest]
    return Invalid(f"{name!r} changed while it was being sent; submit again", field="snapshot")
