"""Reads and sends folders with real files, links, sockets and races."""

import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retarget.core.errors import Invalid
from retarget.core.snapshots import Entry, Manifest, decode, digest_bytes
from retarget.runner.default_exclusions import is_excluded
from retarget.sdk import snapshot
from retarget.sdk.snapshot import MAX_BATCH_BYTES, SMALL_FILE_BYTES, Scan, scan, upload


class Store:
    """The side of the server: stores blobs, and checks every digest as the server does."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.batches: list[list[str]] = []
        self.files: list[str] = []
        self.digest_counts: list[int] = []

    def is_complete(self, snapshot: str) -> bool:
        return False

    def missing(self, digests: dict[str, int]) -> list[str]:
        self.digest_counts.append(len(digests))
        return [digest for digest in digests if digest not in self.blobs]

    def put_many(self, items: list[tuple[str, bytes]]) -> None:
        self.batches.append([digest for digest, _ in items])
        for digest, content in items:
            self._put(digest, content)

    def put_file(self, digest: str, path: Path, size: int, progress: Callable[[int], None]) -> None:
        content = path.read_bytes()[:size]
        progress(len(content))
        self.files.append(digest)
        self._put(digest, content)

    def _put(self, digest: str, content: bytes) -> None:
        if digest_bytes(content) != digest:
            raise Invalid(f"the content is not {digest}")
        self.blobs[digest] = content


def paths(result: Scan) -> list[str]:
    return sorted(entry.path for entry in result.manifest.entries)


def entry(result: Scan, path: str) -> Entry:
    return next(entry for entry in result.manifest.entries if entry.path == path)


def age(folder: Path, seconds: float = 10.0) -> None:
    """Make the files look old, as most files of a real tree are."""
    mtime = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (mtime, mtime), follow_symlinks=False)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust time stamps at once, because no test can set a ctime back."""
    monkeypatch.setattr(snapshot, "_RACY_NANOSECONDS", -(10**15))


def test_a_scan_names_every_file_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.py").write_bytes(b"print()")
    (tmp_path / "sub/b").write_bytes(b"")
    result = scan(tmp_path)
    assert entry(result, "a.py") == Entry("a.py", 7, digest_bytes(b"print()"))
    assert entry(result, "sub/b") == Entry("sub/b", 0, digest_bytes(b""))
    assert result.path_of(digest_bytes(b"print()")) == tmp_path / "a.py"


def test_the_same_content_has_the_same_digest_wherever_it_lies(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for file in ("x", "y") if name == "one" else ("y", "x"):
            path = tmp_path / name / "sub" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
    one, two = scan(tmp_path / "one"), scan(tmp_path / "two")
    assert one.manifest.digest == two.manifest.digest


def test_large_files_are_hashed_as_a_whole(tmp_path: Path) -> None:
    content = os.urandom(3 * SMALL_FILE_BYTES) * 7 + b"end"
    (tmp_path / "model.bin").write_bytes(content)
    result = scan(tmp_path)
    assert entry(result, "model.bin") == Entry("model.bin", len(content), digest_bytes(content))


def test_executable_bits_and_links_inside_are_kept(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o744)
    (tmp_path / "plain").write_text("x")
    (tmp_path / "plain").chmod(0o655)
    (tmp_path / "sub/up").symlink_to("../run.sh")
    (tmp_path / "folder").symlink_to("sub")
    (tmp_path / "dangling").symlink_to("not/there")
    (tmp_path / "loop").symlink_to("loop")
    result = scan(tmp_path)
    assert entry(result, "run.sh").executable
    assert not entry(result, "plain").executable
    links = {entry.path: entry.link for entry in result.manifest.entries if entry.link}
    assert links == {
        "sub/up": "../run.sh",
        "folder": "sub",
        "dangling": "not/there",
        "loop": "loop",
    }
    assert decode(result.manifest.encode()).digest == result.manifest.digest


def test_a_folder_may_be_named_by_a_link_and_be_empty(tmp_path: Path) -> None:
    (tmp_path / "real/empty").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    assert scan(tmp_path / "link").manifest == Manifest(())


def test_unusual_but_valid_names_are_kept(tmp_path: Path) -> None:
    names = ["new\nline", "back\\slash", " ", "-rf", "é", "日本", "'\"", "*"]
    for name in names:
        (tmp_path / name).write_text(name)
    assert paths(scan(tmp_path)) == sorted(names)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", "out/../x"])
def test_links_that_leave_the_folder_are_refused_by_name(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "code"
    (folder / "sub").mkdir(parents=True)
    (folder / "bad").symlink_to(target)
    (folder / "out").symlink_to("." if target == "out/../x" else "sub")
    # `out/..` looks like the folder itself, but on the disk it is its parent
    with pytest.raises(Invalid, match=r"'bad' is a link that leaves the folder .*\.gitignore"):
        scan(folder)


def test_an_absolute_link_is_refused_even_if_it_leads_inside(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    (tmp_path / "bad").symlink_to(tmp_path / "a")
    with pytest.raises(Invalid, match="'bad' is a link that leaves"):
        scan(tmp_path)


def test_sockets_pipes_and_devices_are_refused_by_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        os.mkfifo(tmp_path / "pipe")
        if os.geteuid() == 0:
            os.mknod(tmp_path / "null", 0o20666, os.makedev(1, 3))
        with pytest.raises(Invalid) as caught:
            scan(tmp_path)
    assert "'s' is a socket; remove it or add it to .gitignore" in str(caught.value)
    assert "'pipe' is a named pipe" in str(caught.value)
    assert os.geteuid() != 0 or "'null' is a device file" in str(caught.value)
    (tmp_path / ".amlignore").write_text("s\npipe\nnull\n")
    assert paths(scan(tmp_path)) == [".amlignore"]


def test_five_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    (tmp_path / ".amlignore").write_text("")
    for number in range(8):
        os.mkfifo(tmp_path / f"pipe{number}")
    with pytest.raises(Invalid, match=r"; and 3 more, which `retarget snapshot` lists$") as caught:
        scan(tmp_path)
    assert str(caught.value).count("is a named pipe; remove it or add it to .amlignore") == 5


def test_a_name_that_is_not_utf8_is_refused_and_shown_escaped(tmp_path: Path) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/d\xff")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")) / "x").write_text("")
    os.symlink(b"\xfe", os.fsencode(tmp_path) + b"/link")
    with pytest.raises(Invalid) as caught:
        scan(tmp_path)
    assert r"'d\xff/x' has a name that is not UTF-8; rename it" in str(caught.value)
    assert "'link' " in str(caught.value)
    str(caught.value).encode()


def test_files_and_folders_that_may_not_be_read_are_refused_by_name() -> None:
    with tempfile.TemporaryDirectory() as name, as_nobody(Path(name)) as folder:
        for path in ("file", "sealed/x", "ignored/x", ".gitignore"):
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text("ignored\n")
        for path in ("file", "sealed", "ignored"):
            (folder / path).chmod(0)
        try:
            with pytest.raises(Invalid) as caught:
                scan(folder)
        finally:
            for path in ("sealed", "ignored"):
                (folder / path).chmod(0o700)
    assert "'file' cannot be read (Permission denied); make it readable" in str(caught.value)
    assert "'sealed' cannot be listed (Permission denied)" in str(caught.value)
    assert "'ignored'" not in str(caught.value)


@contextmanager
def as_nobody(folder: Path) -> Generator[Path]:
    """Become the user nobody for a while, in a folder of that user: root may read anything."""
    if os.geteuid() != 0:
        yield folder
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(0)


def test_a_missing_folder_and_a_file_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"nowhere: No such file or directory"):
        scan(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match=r"file is a file; pass the folder"):
        scan(tmp_path / "file")


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, settled: None) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    (code / "a").write_text("a")
    (code / "b").write_text("b")
    first = scan(code, cache=cache)
    with opened_files() as opened:
        assert scan(code, cache=cache).manifest == first.manifest
    assert opened == []
    (code / "b").write_text("B")
    with opened_files() as opened:
        assert entry(scan(code, cache=cache), "b").digest == digest_bytes(b"B")
    assert [os.path.basename(path) for path in opened] == [b"b"]
    (code / "a").unlink()
    assert paths(scan(code, cache=cache)) == ["b"]
    assert b'"a"' not in next(cache.iterdir()).read_bytes()


@contextmanager
def opened_files() -> Generator[list[bytes]]:
    seen: list[bytes] = []
    real = os.open

    def spying(path: bytes | str, flags: int, mode: int = 0o777) -> int:
        if isinstance(path, bytes):  # the folder is read by bytes; the cache is not
            seen.append(path)
        return real(path, flags, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot.os, "open", spying)
        yield seen


def test_a_change_that_keeps_size_and_mtime_is_seen(tmp_path: Path, settled: None) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "a").write_text("one")
    before = (code / "a").stat()
    scan(code, cache=tmp_path / "cache")
    time.sleep(0.02)
    (code / "a").write_text("two")
    os.utime(code / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    result = scan(code, cache=tmp_path / "cache")
    assert entry(result, "a").digest == digest_bytes(b"two")


def test_a_file_just_written_is_never_trusted(tmp_path: Path) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    (code / "a").write_text("a")
    age(code)  # sets the mtime back, but the ctime still shows the truth
    scan(code, cache=cache)
    with opened_files() as opened:
        scan(code, cache=cache)
    assert [os.path.basename(path) for path in opened] == [b"a"]


def test_an_older_file_is_trusted(tmp_path: Path) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    (code / "a").write_text("a")
    time.sleep(2.1)
    scan(code, cache=cache)
    with opened_files() as opened:
        scan(code, cache=cache)
    assert opened == []


@pytest.mark.parametrize("content", [b"", b"\n", b"rubbish", b"\xff\n{}", b"0" * 64 + b"\n{}"])
def test_a_corrupt_cache_is_ignored_and_repaired(
    tmp_path: Path, settled: None, content: bytes
) -> None:
    code, cache = tmp_path / "code", tmp_path / "cache"
    code.mkdir()
    (code / "a").write_text("a")
    first = scan(code, cache=cache)
    [file] = cache.iterdir()
    good = file.read_bytes()
    for bad in (content, good[:-1], good.replace(digest_bytes(b"a").encode(), b"0" * 64)):
        file.write_bytes(bad)
        assert scan(code, cache=cache).manifest == first.manifest
        assert file.read_bytes() == good
    assert list(cache.iterdir()) == [file]


def test_a_cache_that_cannot_be_written_changes_nothing(tmp_path: Path, settled: None) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a").write_text("a")
    (tmp_path / "file").write_text("")
    assert paths(scan(tmp_path / "code", cache=tmp_path / "file/cache")) == ["a"]


def test_a_file_that_is_written_without_end_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "growing.log").write_text("x")
    real = digest_bytes

    def while_someone_writes(content: bytes) -> str:
        with (tmp_path / "growing.log").open("a") as file:
            file.write("more")
        return real(content)

    monkeypatch.setattr(snapshot, "digest_bytes", while_someone_writes)
    with pytest.raises(Invalid, match=r"'growing\.log' is being written to; wait .*\.gitignore"):
        scan(tmp_path)


def test_a_file_that_is_rewritten_meanwhile_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file, versions = tmp_path / "a", [bytes([48 + n]) * 3 * SMALL_FILE_BYTES for n in range(4)]
    file.write_bytes(versions[0])
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            for version in versions:
                file.write_bytes(version)
                stop.wait(0.02)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(40):
            result = scan_or_writing(tmp_path)
            for read in result.manifest.entries if result else ():
                assert read.digest in {digest_bytes(version[: read.size]) for version in versions}
    finally:
        stop.set()
        writer.join()


def test_files_may_appear_and_disappear_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "stays").write_text("x")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (tmp_path / "folder").mkdir()
            (tmp_path / "folder/x").write_text("x")
            (tmp_path / "folder/x").unlink()
            (tmp_path / "folder").rmdir()

    churner = threading.Thread(target=churn)
    churner.start()
    try:
        for _ in range(200):
            result = scan_or_writing(tmp_path)
            assert result is None or "stays" in paths(result)
    finally:
        stop.set()
        churner.join()


def scan_or_writing(folder: Path) -> Scan | None:
    try:
        return scan(folder)
    except Invalid as error:
        if "is being written to" not in str(error):
            raise
        return None


def test_only_missing_blobs_are_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "twin").write_text("a")
    (tmp_path / "big").write_bytes(os.urandom(SMALL_FILE_BYTES))
    store = Store()
    result = scan(tmp_path)
    digest = upload(result, store)
    assert digest == result.manifest.digest
    assert decode(store.blobs[digest]).digest == digest
    assert set(store.blobs) == result.manifest.digests() | {digest}
    assert store.batches == [[digest_bytes(b"a"), digest]]
    assert store.files == [entry(result, "big").digest]
    again = Store()
    again.blobs = store.blobs
    assert upload(scan(tmp_path), again) == digest
    assert (again.batches, again.files, again.digest_counts) == ([], [], [3])
    (tmp_path / "twin").write_text("b")
    upload(scan(tmp_path), again)
    assert [len(batch) for batch in again.batches] == [2]


def test_small_files_travel_in_batches_of_bounded_size(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"f{number}").write_bytes(os.urandom(SMALL_FILE_BYTES - 1))
    store = Store()
    upload(scan(tmp_path), store)
    sizes = [sum(len(store.blobs[digest]) + 40 for digest in batch) for batch in store.batches]
    assert len(sizes) == 3
    assert max(sizes) <= MAX_BATCH_BYTES


def test_a_manifest_larger_than_a_batch_goes_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MAX_BATCH_BYTES", 300)
    for number in range(9):
        (tmp_path / f"f{number}").write_text(str(number))
    store = Store()
    digest = upload(scan(tmp_path), store)
    assert store.files == [digest]
    assert len(store.blobs) == 10


def test_progress_counts_to_exactly_all_that_is_sent(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    (tmp_path / "big").write_bytes(os.urandom(2 * SMALL_FILE_BYTES))
    result, reports = scan(tmp_path), list[tuple[int, int]]()
    upload(result, Store(), lambda sent, total: reports.append((sent, total)))
    total = 3 + 2 * SMALL_FILE_BYTES + len(result.manifest.encode())
    assert reports[-1] == (total, total)
    assert [sent for sent, _ in reports] == sorted(sent for sent, _ in reports)


@pytest.mark.parametrize("size", [3, SMALL_FILE_BYTES])
@pytest.mark.parametrize("change", ["rewritten", "cut", "gone", "a link"])
def test_a_file_that_changed_since_is_not_sent_under_the_old_name(
    tmp_path: Path, size: int, change: str
) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"x" * size)
    result, store = scan(tmp_path), Store()
    if change == "rewritten":
        file.write_bytes(b"y" * size)
    elif change == "cut":
        file.write_bytes(b"x" * (size - 1))
    else:
        file.unlink()
    if change == "a link":
        file.symlink_to("/etc/hostname")
    with pytest.raises(Invalid, match="'data' changed while it was sent; submit again"):
        upload(result, store)
    assert store.blobs == {}


_NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8
).filter(lambda name: name not in (".", "..", ".git", ".DS_Store") and not name.endswith("ignore"))


@given(
    files=st.dictionaries(st.lists(_NAMES, min_size=1, max_size=3).map(tuple), st.binary()),
)
@settings(max_examples=60, deadline=None)
def test_any_folder_arrives_as_it_was(files: dict[tuple[str, ...], bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, written = Path(name), dict[str, bytes]()
        for parts, content in files.items():
            path = folder.joinpath(*parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue
            if not any(map(is_excluded, parts, [True] * (len(parts) - 1) + [False])):
                written["/".join(parts)] = content
        store = Store()
        manifest = decode(store.blobs[upload(scan(folder), store)])
        assert {entry.path: store.blobs[entry.digest] for entry in manifest.entries} == written


def test_an_unchanged_tree_of_20000_files_is_read_fast(tmp_path: Path, settled: None) -> None:
    for number in range(20_000):
        if number % 200 == 0:
            (tmp_path / f"code/{number // 200}").mkdir(parents=True)
        (tmp_path / f"code/{number // 200}/{number}").write_bytes(b"%d" % number)
    (tmp_path / "code/.gitignore").write_text("*.log\nbuild/\n*.py[co]\n/data/**/x\n")
    first = scan(tmp_path / "code", cache=tmp_path / "cache")
    assert len(first.manifest.entries) == 20_001
    started = time.process_time()
    assert (
        scan(tmp_path / "code", cache=tmp_path / "cache").manifest.digest == first.manifest.digest
    )
    assert time.process_time() - started < 1.5  # 0.4 s on two slow cores without other tests
