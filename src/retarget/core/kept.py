"""Files that a script wrote outside of outputs/: which to keep, and how to say what was kept."""

from collections.abc import Sequence
from dataclasses import dataclass

from retarget.core.units import show_memory

KEEP_NONE, KEEP_ALL = "none", "all"  # instead of patterns
DEFAULT_KEEP_LIMIT = 200 * 2**20  # bytes per job, unless `keep` is set
WORKDIR = "workdir"  # the folder of these files among the outputs
# as the runner writes them
OVER_LIMIT, EXCLUDED = "over the limit", "excluded by default"
OUTSIDE = "outside the code folder"
OTHERS = "*"  # the path of a row that sums up the rest
_MAX_NAMED = 5
_ADVICE = {
    EXCLUDED: "write results to outputs/",
    OUTSIDE: "write results to outputs/, or send the folder above with --code",
}


@dataclass(frozen=True, slots=True)
class Missed:
    """A path that was not kept, and why; of a folder, its files together."""

    path: str
    files: int
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What the last attempt of a job wrote outside of outputs/ and logs/.

    `paths` are the first of the files that were kept, below `workdir/`. `unmatched` are the
    patterns of `keep` that match no file.
    """

    files: int
    size: int
    paths: list[str]
    missed: list[Missed]
    unmatched: list[str]
    limit: int  # in bytes


def check_keep(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return what to keep, or raise ValueError: `none`, `all` or patterns below the code folder."""
    for pattern in patterns:
        if not pattern.strip("/. ") or ".." in pattern.split("/"):
            raise ValueError(f"{pattern!r} names no file in the code folder")
        if pattern in (KEEP_NONE, KEEP_ALL) and len(patterns) > 1:
            raise ValueError(f"{pattern!r} cannot be combined with other values")
    return tuple(pattern.removeprefix("./") for pattern in patterns)


def describe_kept(kept: Kept) -> list[str]:
    """Write what was kept and what was not, one line per reason."""
    lines: list[str] = []
    if kept.files:
        noun = f"{kept.files:,} file{'s' * (kept.files != 1)}"
        lines.append(f"also kept {noun} written outside outputs/: {_listed(kept)}")
    for reason in dict.fromkeys(row.reason for row in kept.missed):
        rows = [row for row in kept.missed if row.reason == reason]
        lines.append(f"not kept: {_listed_missed(rows)}: {_explained(reason, kept.limit)}")
    lines += [f"--keep {pattern}: the script wrote no such file" for pattern in kept.unmatched]
    return lines


def combine_nodes(reports: Sequence[Kept]) -> Kept | None:
    """Return the reports of all nodes as one; None if there is none."""
    if not reports:
        return None
    everywhere = set(reports[0].unmatched).intersection(*(kept.unmatched for kept in reports))
    return Kept(
        files=sum(kept.files for kept in reports),
        size=sum(kept.size for kept in reports),
        paths=[path for kept in reports for path in kept.paths],
        missed=[row for kept in reports for row in kept.missed],
        unmatched=[pattern for pattern in reports[0].unmatched if pattern in everywhere],
        limit=max(kept.limit for kept in reports),
    )


def _listed(kept: Kept) -> str:
    shown = [_printable(path) for path in kept.paths[:_MAX_NAMED]]
    more = kept.files - len(shown)
    return ", ".join(shown) + (f" and {more:,} more ({show_memory(kept.size)} in all)" * bool(more))


def _listed_missed(rows: Sequence[Missed]) -> str:
    named = [row for row in rows if row.path != OTHERS]
    rest = [*named[_MAX_NAMED:], *(row for row in rows if row.path == OTHERS)]
    shown = ", ".join(_describe(row) for row in named[:_MAX_NAMED])
    if not rest:
        return shown
    files, size = sum(max(row.files, 1) for row in rest), sum(row.size for row in rest)
    return f"{shown} and {files:,} more ({show_memory(size)})".strip()


def _describe(row: Missed) -> str:
    path = _printable(row.path)
    if row.path.endswith("/") and row.files:
        return f"{path} ({row.files:,} file{'s' * (row.files != 1)}, {show_memory(row.size)})"
    return f"{path} ({show_memory(row.size)})" if row.files else path


def _printable(path: str) -> str:
    """Return a path on one line, whatever its name holds."""
    return path if path.isprintable() else path.encode("unicode_escape").decode()


def _explained(reason: str, limit: int) -> str:
    if reason == OVER_LIMIT:
        size = show_memory(limit)
        return f"over the limit of {size}; use --keep PATTERN, or write to outputs/"
    advice = _ADVICE.get(reason)
    return f"{reason}; {advice}" if advice else reason
