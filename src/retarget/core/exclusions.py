"""What a snapshot excludes, and by which rule: how to write it, and what it explains."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from retarget.core.units import show_memory

ALWAYS = "always"  # the rule of .git, caches and virtual environments
DEFAULT = "default"  # the rule of other names that are excluded by default
OTHERS = "*"  # the path of a row that sums up the rest
MAX_EXCLUSIONS = 50  # rows that a job may have
MAX_SURROUNDINGS = 200  # paths outside of the code folder that a job may name
LARGE_SNAPSHOT_BYTES = 200 * 10**6

_MISSING = re.compile(
    r"No such file|FileNotFound|not found|does not exist|doesn't exist|cannot open|can't open",
    re.IGNORECASE,
)
_MISSING_MODULE = re.compile(r"\bNo module named '?([A-Za-z_][\w.]*)")
_NOTEBOOK = re.compile(r"\bcell \d+ of (?:(.+)/)?[^/]+\.ipynb\b")  # it runs in its own folder
_WORD = re.compile(r"[^\s'\"`(),;:<>|=\[\]]+")


class Exclusion(Protocol):
    """One path that is not sent, or the sum of several."""

    @property
    def path(self) -> str: ...  # a folder ends in a slash
    @property
    def rule(self) -> str: ...  # ALWAYS, DEFAULT or the path of an ignore file
    @property
    def files(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def at_least(self) -> bool: ...  # more files exist, but counting all takes too long


@dataclass(frozen=True, slots=True)
class Excluded:
    """The plain form of an Exclusion."""

    path: str
    rule: str
    files: int = 0
    size: int = 0
    at_least: bool = False


def describe_exclusions(exclusions: Iterable[Exclusion], *, limit: int = 5) -> list[str]:
    """Write one line per rule: `excluded by .gitignore: data/ (1 file, 21.0 KiB)`.

    What is always excluded is not named: it is in almost every folder, and no job misses it.
    """
    by_rule: dict[str, list[Exclusion]] = {}
    for exclusion in sorted(exclusions, key=lambda exclusion: exclusion.rule == DEFAULT):
        if exclusion.rule != ALWAYS:
            by_rule.setdefault(_file_name(exclusion.rule), []).append(exclusion)
    return [f"excluded by {rule}: {_listed(rows, limit)}" for rule, rows in by_rule.items()]


def describe_exclusion(exclusion: Exclusion) -> str:
    """Write `data/ (1 file, 21.0 KiB)`."""
    name = "other paths" if exclusion.path == OTHERS else exclusion.path
    amount = describe_amount(exclusion)
    return f"{name} ({amount})" if amount else name


def describe_amount(exclusion: Exclusion) -> str:
    """Write `1 file, 21.0 KiB`, or only the size of a single file."""
    if not exclusion.files:
        return ""  # not counted, or an empty folder
    size = show_memory(exclusion.size)
    if exclusion.files == 1 and not exclusion.path.endswith(("/", OTHERS)):
        return size
    prefix = "at least " if exclusion.at_least else ""
    return f"{prefix}{exclusion.files:,} file{'s' * (exclusion.files != 1)}, {size}"


def explain_missing(message: str, exclusions: Sequence[Exclusion]) -> str | None:
    """Return why a file is missing, if a message says that an excluded path does not exist."""
    exclusion = find_missing(message, exclusions)
    return None if exclusion is None else explain_exclusion(exclusion)


def explain_exclusion(exclusion: Exclusion) -> str:
    """Write `data/ was not sent because .gitignore excludes it`."""
    rule = exclusion.rule if exclusion.rule not in (ALWAYS, DEFAULT) else "the default rules"
    verb = "exclude" if exclusion.rule in (ALWAYS, DEFAULT) else "excludes"
    return f"{exclusion.path} was not sent because {rule} {verb} it"


def find_missing(message: str, exclusions: Sequence[Exclusion]) -> Exclusion | None:
    """Return the excluded path that does not exist according to a message."""
    module = _MISSING_MODULE.search(message)
    exclusion = find_module(module[1], exclusions) if module and "." in module[1] else None
    if exclusion is not None:
        return exclusion
    if not exclusions or not _MISSING.search(message):
        return None
    notebook = notebook_folder(message)
    folder = f"{notebook}/" if notebook else ""
    for word in _WORD.findall(message):
        path = _path_in_snapshot(word)
        for exclusion in exclusions:
            if _covers(exclusion.path, path) or _covers(exclusion.path, folder + path):
                return exclusion
    return None


def notebook_folder(message: str) -> str | None:
    """Return the folder of the notebook that a message is about; it runs there.

    An empty string is the code folder; None means that the message is not about a notebook.
    """
    notebook = _NOTEBOOK.search(message)
    return (notebook[1] or "") if notebook else None


def find_module(module: str, exclusions: Sequence[Exclusion]) -> Exclusion | None:
    """Return the excluded path whose end is this module, or the part of it that is missing.

    `src/flowers/models/` for `flowers.models` and for `flowers.models.tree`.
    """
    names = module.split(".")
    for length in range(len(names), min(len(names), 2) - 1, -1):
        path = "/".join(names[:length])
        for exclusion in exclusions:
            excluded = exclusion.path.rstrip("/").removesuffix(".py")
            if f"/{excluded}".endswith(f"/{path}"):
                return exclusion
    return None


def _file_name(rule: str) -> str:
    """Return the name that all ignore files of one kind share: `.gitignore` for `a/.gitignore`."""
    name = rule.rpartition("/")[2]
    return name if name.endswith("ignore") else rule


def _listed(rows: Sequence[Exclusion], limit: int) -> str:
    shown = [describe_exclusion(row) for row in rows[:limit]]
    more = len(rows) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _path_in_snapshot(word: str) -> str:
    """Return a path of a message relative to the code folder, where the script starts."""
    if word.startswith("/"):
        word = word.partition("/work/")[2]  # the folder of a launch
    while word.startswith(("./", "../")):
        word = word.partition("/")[2]
    return word.rstrip(".")


def _covers(excluded: str, path: str) -> bool:
    if not path:
        return False
    if excluded.startswith("**/"):
        return f"/{excluded[3:]}" in f"/{path}/"
    return path == excluded.rstrip("/") or (excluded.endswith("/") and path.startswith(excluded))
