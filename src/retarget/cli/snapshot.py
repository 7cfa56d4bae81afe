"""`retarget snapshot`: show the files that a job would get, and those that are excluded."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retarget.cli.job_options import Include
from retarget.cli.lookup import AsJson
from retarget.cli.terminal import print_result, print_status, write_json
from retarget.core.exclusions import (
    LARGE_SNAPSHOT_BYTES,
    Exclusion,
    describe_exclusions,
)
from retarget.core.units import show_count, show_memory

if TYPE_CHECKING:
    from retarget.core.exclusions import Excluded
    from retarget.core.snapshots import Entry
    from retarget.sdk.snapshot import Scan

_MAX_ROWS = 20
_MAX_LARGE_PATHS = 3
_EXIT_REFUSED = 2  # as that of a run


def snapshot(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="Folder to read. Default: the current folder.",
            show_default=False,
        ),
    ] = ".",
    include: Include = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="List every file, not only the largest paths.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show which files a job gets and which are excluded.

    The command sends nothing. It shows each excluded path with the rule that excludes it: the name
    of an ignore file, `default` or `always`. The largest paths come first. A file that cannot be
    sent, such as a named pipe, is shown with the reason. A run would refuse it, so the exit code is
    2.

    \b
    Examples:
      retarget snapshot
      retarget snapshot --include data/ --all
    """
    from pathlib import Path

    from retarget.cli.progress import FolderProgress
    from retarget.sdk.exclusions import count_exclusions
    from retarget.sdk.project import fill_from_project
    from retarget.sdk.workspace import read_folder

    project = fill_from_project(Path(folder).absolute(), None, {"include": include})
    with FolderProgress() as progress:
        scan = read_folder(
            Path(folder),
            include=project.options.get("include"),
            ignore=project.ignore,
            reading=progress.reading,
            accept_refused=True,
        )
    excluded = count_exclusions(scan.folder, scan.excluded)
    if as_json:
        write_json(_document(scan, excluded))
    else:
        _show(scan, excluded, show_all=show_all)
    if scan.refused:
        raise typer.Exit(_EXIT_REFUSED)


def report_scan(scan: "Scan", excluded: "Sequence[Excluded]") -> None:
    """Write what a snapshot excludes, and warn of what a job may lack or not need."""
    for line in describe_exclusions(excluded):
        print_status(line, "dim")
    report_content(scan, excluded)


def report_content(scan: "Scan", _excluded: "Sequence[Excluded]") -> None:
    """Warn of empty submodules, and say what is large in a large snapshot."""
    _warn_of_empty_submodules(scan)
    if scan.manifest.size > LARGE_SNAPSHOT_BYTES:
        _warn_of_size(scan)


def _warn_of_size(scan: "Scan") -> None:
    from retarget.sdk.ignore import ignore_file_of

    total = scan.manifest.size
    rows = _grouped(scan.manifest.entries)[:_MAX_LARGE_PATHS]
    large = [row for row in rows if row[2] > total / 100] or rows
    paths = ", ".join(f"{path} ({show_memory(size)})" for path, _, size in large)
    noun = "path is" if len(large) == 1 else "paths are"
    # another ignore file would replace the one that applies
    name = ignore_file_of(os.fsencode(scan.folder))
    print_status(
        f"the snapshot has {show_memory(total)}; the largest {noun} {paths}; "
        f"add what the job does not need to {name}",
        "yellow",
    )


def _warn_of_empty_submodules(scan: "Scan") -> None:
    from retarget.sdk.submodules import empty_submodules

    for path in empty_submodules(scan.folder):
        print_status(
            f"the git submodule {path} is empty, and the job will lack it; "
            "get its files with: git submodule update --init",
            "yellow",
        )


def _document(scan: "Scan", excluded: "Sequence[Excluded]") -> dict[str, Any]:
    entries = sorted(scan.manifest.entries, key=lambda entry: (-entry.size, entry.path))
    return {
        "folder": str(scan.folder),
        "snapshot": scan.manifest.digest,
        "files": len(entries),
        "bytes": scan.manifest.size,
        "sent": [{"path": entry.path, "size": entry.size} for entry in entries],
        "excluded": [asdict(row) for row in excluded],
        "refused": [asdict(file) for file in scan.refused],
    }


def _show(scan: "Scan", excluded: "Sequence[Excluded]", *, show_all: bool) -> None:
    entries = scan.manifest.entries
    print_result(f"sent: {_amount(len(entries), scan.manifest.size)}")
    files = [(entry.path, 1, entry.size) for entry in entries]
    sent = sorted(files, key=_largest_first) if show_all else _grouped(entries)
    _show_rows(("PATH", "FILES", "SIZE"), [_sent_row(*row) for row in sent], show_all)
    if excluded:
        files_count, size = sum(row.files for row in excluded), sum(row.size for row in excluded)
        print_result("")
        print_result(f"excluded: {_amount(files_count, size)}")
        rows = [_excluded_row(row) for row in excluded]
        _show_rows(("PATH", "FILES", "SIZE", "RULE"), rows, show_all)
        print_status("send an excluded path with --include PATH", "dim")
    _warn_of_empty_submodules(scan)
    if scan.refused:
        print_result("")
        print_result(f"refused: {show_count(len(scan.refused), 'file')}; a run sends nothing")
        for file in scan.refused:
            print_result(f"{file.path} {file.reason}")


def _show_rows(titles: Sequence[str], rows: Sequence[Sequence[str]], show_all: bool) -> None:
    from retarget.cli.tables import new_table
    from retarget.cli.terminal import show

    shown = rows if show_all else rows[:_MAX_ROWS]
    if shown:
        show(new_table(titles, shown, flexible="PATH"))
    if len(shown) < len(rows):
        print_status(f"and {len(rows) - len(shown):,} more; --all lists them", "dim")


def _sent_row(path: str, files: int, size: int) -> list[str]:
    return [path, f"{files:,}", show_memory(size)]


def _excluded_row(row: Exclusion) -> list[str]:
    prefix = "≥ " if row.at_least else ""
    return [row.path, f"{prefix}{row.files:,}", f"{prefix}{show_memory(row.size)}", row.rule]


def _grouped(entries: "Iterable[Entry]") -> list[tuple[str, int, int]]:
    """Return path, files and bytes of every top folder and every file at the top."""
    sums: dict[str, tuple[int, int]] = {}
    for entry in entries:
        top, slash, _ = entry.path.partition("/")
        files, size = sums.get(top + slash, (0, 0))
        sums[top + slash] = (files + 1, size + entry.size)
    rows = [(path, files, size) for path, (files, size) in sums.items()]
    return sorted(rows, key=_largest_first)


def _largest_first(row: tuple[str, int, int]) -> tuple[int, str]:
    return -row[2], row[0]


def _amount(files: int, size: int) -> str:
    return f"{files:,} file{'s' * (files != 1)}, {show_memory(size)}"
