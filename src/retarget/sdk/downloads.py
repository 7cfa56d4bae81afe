"""Downloads files of jobs and models: complete, verified, and only into the requested folder."""

import errno
import json
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import quote

from blake3 import blake3

from retarget.core.errors import Conflict, Invalid, NotFound, RetargetError
from retarget.runner.default_exclusions import DOWNLOAD_MARK
from retarget.sdk.http import Connection
from retarget.sdk.records import Output

Progress = Callable[[int, int], None]  # called with the bytes so far and their total

_MARK_TEXT = (
    "Written by `retarget job outputs --download`. Snapshots exclude this folder.\n"
    "Delete this file, or use --include, to send the folder with your code.\n"
    "Each line below is a file as a download wrote it. A later download may replace only these.\n"
)
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_MAX_NAMED = 5  # files in a message


def select_outputs(outputs: Sequence[Output], path: str, job: str) -> list[Output]:
    """Return the outputs that `path` names: one file, all files of a folder, or all files."""
    name = path.strip("/").removeprefix("./")
    if name in ("", "."):
        return list(outputs)
    selected = [
        output for output in outputs if output.path == name or output.path.startswith(f"{name}/")
    ]
    if not selected and name != "outputs":
        raise NotFound(f"{job} has no output {name!r}; {_suggestion(name, outputs)}")
    return selected


def _suggestion(name: str, outputs: Sequence[Output]) -> str:
    """Return which output may be meant, or what there is."""
    from difflib import get_close_matches

    paths = [output.path for output in outputs]
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents} - {"."}
    same_end = [path for path in sorted(folders | set(paths)) if path.endswith(f"/{name}")]
    for path in same_end or get_close_matches(name, sorted(folders | set(paths)), 1, 0.8):
        return f"did you mean {path!r}?"
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return f"it has {', '.join(paths[:_MAX_NAMED]) or 'none'}{more}"


def mark_downloads(folder: Path, outputs: Sequence[Output]) -> None:
    """Mark the topmost folders that a download into `folder` creates or fills.

    Snapshots exclude a folder with this mark. A folder with files of the user gets none. The mark
    records what the download writes, so that a later one can tell it from files of the user.
    """
    contents = defaultdict[PurePosixPath, list[Output]](list)
    for output in outputs:
        contents[_relative_path(output.path).parent].append(output)
    for parent, files in contents.items():
        _check_links(folder, folder / parent / "file")
        try:
            marked = _mark([folder / path for path in [*reversed(parent.parents), parent]])
            if marked is not None:
                _record(marked, {folder / output.path: output.digest for output in files})
        except OSError:
            continue  # the download itself says what is wrong


def _mark(folders: Sequence[Path]) -> Path | None:
    """Return the folder that is marked: the first that has a mark, or that can get one."""
    for folder in folders:
        if (folder / DOWNLOAD_MARK).exists():
            return folder
    for folder in folders:
        is_filled = folder.is_dir() and bool(os.listdir(folder))
        if not is_filled and folder.resolve() != Path.cwd():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / DOWNLOAD_MARK).write_text(_MARK_TEXT)
            return folder
    return None


def _record(marked: Path, digests: dict[Path, str]) -> None:
    """Add the files to the mark. They are recorded first: their digest tells if they arrived."""
    new = {_line(marked, path, digest) for path, digest in digests.items()} - _records(marked)
    with (marked / DOWNLOAD_MARK).open("a", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in sorted(new))


def _line(marked: Path, path: Path, digest: str) -> str:
    return f"{digest}  {json.dumps(path.relative_to(marked).as_posix())}"


def _records(marked: Path) -> set[str]:
    try:
        return set((marked / DOWNLOAD_MARK).read_text("ascii", errors="replace").splitlines())
    except OSError:
        return set()


def differing_files(folder: Path, outputs: Sequence[Output]) -> list[Path]:
    """Return the files in `folder` that a download of other content would replace."""
    paths = [(folder / _relative_path(output.path), output) for output in outputs]
    return [path for path, output in paths if path.is_file() and not _is_same(path, output)]


def protect_files(folder: Path, outputs: Sequence[Output]) -> None:
    """Raise Conflict if a download would replace files that are not as a download wrote them."""
    own = [path for path in differing_files(folder, outputs) if not _is_downloaded(folder, path)]
    if own:
        verb, pronoun = ("exists", "it") if len(own) == 1 else ("exist", "them")
        raise Conflict(
            f"{name_files(own)} already {verb} with different content; nothing was downloaded. "
            f"Choose another folder, or replace {pronoun} with --force (in Python: overwrite=True)"
        )


def name_files(paths: Sequence[Path]) -> str:
    """Return the paths for a sentence."""
    rest = len(paths) - _MAX_NAMED
    return ", ".join(map(str, paths[:_MAX_NAMED])) + (f" and {rest} more" if rest > 0 else "")


def _is_same(path: Path, output: Output) -> bool:
    try:
        return path.stat().st_size == output.size and _digest(path) == output.digest
    except OSError:
        return False


def _is_downloaded(folder: Path, path: Path) -> bool:
    """Whether the file is as an earlier download wrote it."""
    marked = [folder / parent for parent in path.relative_to(folder).parents]
    try:
        digest = _digest(path)
    except OSError:
        return False
    return any(_line(parent, path, digest) in _records(parent) for parent in marked)


def _digest(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()


def download_all(
    connection: Connection,
    source: str,
    outputs: Sequence[Output],
    folder: Path,
    progress: Progress | None = None,
) -> list[Path]:
    """Download files below the URL path `source` into `folder`, and return their paths.

    A file that cannot be written does not stop the others. At the end, an error names them.
    """
    total, done = sum(output.size for output in outputs), 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        if progress is not None:
            progress(done, total)

    paths, failures = list[Path](), list[str]()
    for output in outputs:
        try:
            paths.append(download(connection, source, output, folder, count))
        except _NotWritten as error:
            failures.append(str(error))
    if failures:
        others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise RetargetError(
            f"{len(paths)} of {len(outputs)} files were downloaded; {failures[0]}{others}"
        )
    return paths


class _NotWritten(RetargetError):
    """A file cannot be written here, perhaps because of its name. Others may be."""


def download(
    connection: Connection,
    source: str,
    output: Output,
    folder: Path,
    count: Callable[[int], None] = lambda size: None,
) -> Path:
    """Download one file below the URL path `source` into `folder`, and return its path.

    `count` is called with the size of each piece.
    """
    path = folder / _relative_path(output.path)
    _check_links(folder, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        try:
            with unfinished.open("xb") as file:
                digest = _fetch(connection, f"{source}/{quote(output.path)}", file, count)
            if digest != output.digest:
                raise RetargetError(
                    f"{output.path} arrived damaged or has changed; download it again"
                )
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        kind = RetargetError if error.errno in _FULL_DISK else _NotWritten
        raise kind(f"cannot write {path}: {error.strerror or error}") from error
    return path


def _fetch(connection: Connection, path: str, file: BinaryIO, count: Callable[[int], None]) -> str:
    """Write what is at a URL path into `file`, and return its digest."""
    hasher = blake3()
    with connection.stream(path) as response:
        for piece in response:
            hasher.update(piece)
            file.write(piece)
            count(len(piece))
    return hasher.hexdigest()


def _check_links(folder: Path, path: Path) -> None:
    top, parent = os.path.realpath(folder), os.path.realpath(path.parent)
    if os.path.commonpath([top, parent]) != top:
        raise Invalid(
            f"{path.parent} is a link that leads out of {folder}; nothing was written there. "
            "Remove the link, or choose another folder"
        )


def _relative_path(path: str) -> PurePosixPath:
    # even a trusted server must not write to arbitrary paths
    names = path.split("/")
    if path.startswith("/") or "\0" in path or {"", ".", ".."} & set(names):
        raise Invalid(f"the output {path!r} would leave the folder; it was not downloaded")
    return PurePosixPath(path)
