"""Counts what a snapshot excludes."""

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retarget.core.exclusions import ALWAYS, DEFAULT, MAX_EXCLUSIONS, OTHERS, Excluded
from retarget.runner.default_exclusions import ENVIRONMENT_MARKS

if TYPE_CHECKING:
    from retarget.sdk.snapshot import Scan

_SUBMIT_SECONDS = 0.01  # a submit takes 15 ms: counting must not double that
_CHECK_ENTRIES = 128  # between two looks at the clock


def count_exclusions(
    folder: Path, excluded: Iterable[tuple[bytes, str]], *, seconds: float | None = None
) -> list[Excluded]:
    """Return the excluded paths, the largest first; those that are always excluded come last.

    Args:
        folder: The code folder.
        excluded: The excluded paths in it, with their rules.
        seconds: How long to count. What is not counted by then is marked with `at_least`, and
            what is always excluded is not counted. By default everything is counted.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    tallies = [_Tally(os.fsencode(folder), path, rule, deadline) for path, rule in excluded]
    pending = deque(tallies)
    while pending:  # in turn, so that one huge folder does not hide the size of all others
        tally = pending.popleft()
        if tally.step():
            pending.append(tally)
    rows = _collapsed([tally.result() for tally in tallies])
    return sorted(rows, key=lambda row: (row.rule == ALWAYS, -row.size, row.path))


def counted_exclusions(scan: "Scan") -> list[Excluded]:
    """Return what a job says about the exclusions of its snapshot; counted in a short time."""
    rows = count_exclusions(scan.folder, scan.excluded, seconds=_SUBMIT_SECONDS)
    return rows if len(rows) <= MAX_EXCLUSIONS else _shortened(rows)


def as_rows(exclusions: Iterable[Excluded]) -> list[dict[str, Any]]:
    """Return exclusions as the field of a request."""
    return [asdict(row) for row in exclusions]


def rule_of(path: str, excluded: Iterable[tuple[bytes, str]]) -> str:
    """Return the rule that excludes a path: the name of a file, or `a default rule`."""
    name = os.fsencode(path)
    for excluded_path, rule in excluded:
        if name == excluded_path or name.startswith(excluded_path):
            return "a default rule" if rule in (ALWAYS, DEFAULT) else rule
    return "an ignore file"


def _shortened(exclusions: Sequence[Excluded]) -> list[Excluded]:
    """Return as many rows as a job may have: one row per rule sums up the smallest ones."""
    rules = {row.rule for row in exclusions}
    kept = max(0, MAX_EXCLUSIONS - len(rules))
    rest: dict[str, list[Excluded]] = {}
    for row in exclusions[kept:]:
        rest.setdefault(row.rule, []).append(row)
    sums = [_sum(OTHERS, rows) for rows in rest.values()]
    return [*exclusions[:kept], *sums][:MAX_EXCLUSIONS]


class _Tally:
    """The files and bytes of one excluded path, counted folder by folder."""

    def __init__(self, folder: bytes, path: bytes, rule: str, deadline: float | None) -> None:
        self._path = path
        self._rule = rule
        self._deadline = deadline
        self._files = self._size = 0
        self._at_least = rule == ALWAYS and deadline is not None and path.endswith(b"/")
        self._pending = [] if self._at_least else [os.path.join(folder, path)]
        self._first = True

    def step(self) -> bool:
        """Count one folder; return whether there are more."""
        if not self._path.endswith(b"/"):
            self._add_file(self._pending.pop())
        elif self._pending:
            self._add_folder(self._pending.pop())
        return bool(self._pending)

    def result(self) -> Excluded:
        path = self._path.decode("utf-8", "backslashreplace")
        return Excluded(path, self._rule, self._files, self._size, self._at_least)

    def _add_file(self, path: bytes) -> None:
        try:
            self._size += os.lstat(path).st_size
        except OSError:
            return  # it was deleted meanwhile
        self._files += 1

    def _add_folder(self, path: bytes) -> None:
        is_top, self._first = self._first, False
        try:
            with os.scandir(path) as entries:
                for number, entry in enumerate(entries):
                    if number % _CHECK_ENTRIES == 0 and self._is_late():
                        return
                    if is_top and os.fsdecode(entry.name) in ENVIRONMENT_MARKS:
                        self._rule = ALWAYS  # whatever the ignore file says
                    self._add(entry)
        except OSError:
            self._at_least = True  # it cannot be read, or was deleted meanwhile
        if self._rule == ALWAYS and self._deadline is not None:
            self._at_least, self._pending = True, []

    def _add(self, entry: os.DirEntry[bytes]) -> None:
        if entry.is_dir(follow_symlinks=False):
            self._pending.append(entry.path)
        else:
            self._files += 1
            self._size += entry.stat(follow_symlinks=False).st_size

    def _is_late(self) -> bool:
        if self._deadline is None or time.monotonic() < self._deadline:
            return False
        self._at_least, self._pending = True, []
        return True


def _collapsed(rows: list[Excluded]) -> list[Excluded]:
    """Return one row for each name that is always excluded, such as `**/__pycache__/`."""
    by_name: dict[str, list[Excluded]] = {}
    for row in rows:
        if row.rule == ALWAYS:
            by_name.setdefault(_pattern(row.path), []).append(row)
    others = [row for row in rows if row.rule != ALWAYS]
    return others + [
        same[0] if len(same) == 1 else _sum(pattern, same) for pattern, same in by_name.items()
    ]


def _pattern(path: str) -> str:
    name = path.rstrip("/").rpartition("/")[2]
    if path.endswith("/"):
        return f"**/{name}/"
    return "**/*.pyc" if name.endswith(".pyc") else f"**/{name}"


def _sum(path: str, rows: Sequence[Excluded]) -> Excluded:
    files, size = sum(row.files for row in rows), sum(row.size for row in rows)
    return Excluded(path, rows[0].rule, files, size, any(row.at_least for row in rows))
