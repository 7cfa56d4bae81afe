"""Which paths of a folder belong to its snapshot: `.amlignore` or `.gitignore`, by git's rules.

The rules come from `.amlignore` files if the folder itself has one, else from `.gitignore` files,
those of the folders above it up to the git repository's root, and `.git/info/exclude`. Where the
rules from above leave out the whole folder they do not count: the user has named it.

The patterns are git's `wildmatch`, written here as regular expressions over bytes, and a test
holds them against git itself. Not `pathspec`: it lets `!src/` bring back `src/logs` after `logs`,
knows no `[[:digit:]]`, and takes 60 ms to import. As in git, an ignore file that is a link is not
read. Unlike git, a tracked file can be left out, and the user's own `core.excludesFile` is not
read, so that all who send one folder send the same snapshot.
"""

import os
import re
import stat
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from retarget.core.errors import Invalid

ALWAYS = frozenset(
    b".git __pycache__ .pytest_cache .mypy_cache .ruff_cache .ipynb_checkpoints .hypothesis .tox"
    b" .nox .DS_Store".split()
)
_ENVIRONMENT_MARKS = frozenset({b"pyvenv.cfg", b"conda-meta"})
_HOME_MARKS = {b"server.lock", b"token"}
_AML, _GIT, _DOCKER = b".amlignore", b".gitignore", b".dockerignore"


def walk(
    folder: bytes, refuse: Callable[[bytes, OSError], None]
) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Yield the path and entry of everything in the snapshot but the folders themselves.

    A folder that cannot be listed is handed to `refuse`; one that vanishes is passed over.
    """
    pending = [(b"", _scope_at(folder))]
    while pending:
        path, scope = pending.pop()
        entries = _list(folder, path, refuse)
        names = {entry.name for entry in entries}
        if path and not _ENVIRONMENT_MARKS.isdisjoint(names):
            continue  # a virtual environment, of venv or of conda
        if path and names >= _HOME_MARKS:
            continue  # a home of ours: it holds secrets, and changes while it is read
        if scope.source in names:
            scope = scope.reading(os.path.join(folder, path, scope.source))
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if _never(entry.name, is_folder) or scope.leaves_out(entry.name, is_folder):
                continue
            if is_folder:
                pending.append((path + entry.name + b"/", scope.below(entry.name)))
            else:
                yield path + entry.name, entry


def walk_context(
    folder: bytes, refuse: Callable[[bytes, OSError], None]
) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Yield what a folder gives to the build of an image: all that `.dockerignore` leaves in.

    Its rules are not git's: each counts from the folder itself on, covers what is below what it
    matches, and the last that does decides. A Dockerfile and the rules themselves are always in.
    """
    rules = list(_docker_patterns(_read(os.path.join(folder, _DOCKER), follow=True) or b""))
    may_return = any(rule.negated for rule in rules)
    pending = [b""]
    while pending:
        path = pending.pop()
        for entry in _list(folder, path, refuse):
            inside = path + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if _never(entry.name, is_folder):
                continue
            out = _left_out(inside, rules) and not _builds(entry.name)
            if is_folder and (not out or may_return):
                pending.append(inside + b"/")
            elif not is_folder and not out:
                yield inside, entry


def _left_out(path: bytes, rules: "list[_Pattern]") -> bool:
    names = path.split(b"/")
    above = [b"/".join(names[: count + 1]) for count in range(len(names))]
    out = False
    for rule in rules:
        if out == rule.negated and any(rule.regex.fullmatch(each) for each in above):
            out = not rule.negated
    return out


def _builds(name: bytes) -> bool:
    return name == _DOCKER or b"dockerfile" in name.lower()


def _docker_patterns(content: bytes) -> "Iterator[_Pattern]":
    for line in content.removeprefix(b"\xef\xbb\xbf").splitlines():
        text = line.strip()
        negated = text.startswith(b"!")
        path = os.path.normpath(text[negated:].strip() or b".").strip(b"/")
        if not text.startswith(b"#") and path != b".":
            yield _Pattern(path, negated, folders_only=False, by_name=False)


def source_of(folder: bytes) -> str:
    """Return the name of the ignore file that counts in this folder."""
    return (_AML if os.path.isfile(os.path.join(folder, _AML)) else _GIT).decode()


def _never(name: bytes, is_folder: bool) -> bool:
    return name in ALWAYS or (not is_folder and name.endswith(b".pyc"))


def _list(
    folder: bytes, path: bytes, refuse: Callable[[bytes, OSError], None]
) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(os.path.join(folder, path)) as found:
            return list(found)
    except FileNotFoundError:
        return []
    except OSError as error:
        refuse(path, error)
        return []


@dataclass(frozen=True, slots=True)
class _Scope:
    """The rules in force in one folder; each with the path from its own folder to this one."""

    source: bytes
    layers: "tuple[tuple[bytes, IgnoreFile], ...]" = ()  # the deepest first: it wins

    def leaves_out(self, name: bytes, is_folder: bool) -> bool:
        for prefix, rules in self.layers:
            verdict = rules.verdict(prefix + name, name, is_folder)
            if verdict is not None:
                return verdict
        return False

    def below(self, name: bytes) -> "_Scope":
        if not self.layers:
            return self
        return replace(self, layers=tuple((p + name + b"/", rules) for p, rules in self.layers))

    def reading(self, path: bytes) -> "_Scope":
        content = _read(path, follow=self.source == _AML)
        if content is None:
            return self
        return replace(self, layers=((b"", IgnoreFile(content)), *self.layers))


def _scope_at(folder: bytes) -> _Scope:
    if source_of(folder) == _AML.decode():
        return _Scope(_AML)
    folder = os.path.realpath(folder)
    top = _repository(folder)
    if top is None:
        return _Scope(_GIT)
    scope = _Scope(_GIT).reading(os.path.join(_git_folder(top), b"info", b"exclude"))
    at = top
    for name in os.path.relpath(folder, top).split(b"/") if folder != top else ():
        scope = scope.reading(os.path.join(at, _GIT))
        if scope.leaves_out(name, is_folder=True):
            return _Scope(_GIT)
        scope, at = scope.below(name), os.path.join(at, name)
    return scope


def _repository(folder: bytes) -> bytes | None:
    """Return the nearest folder, this one or above, that is the root of a git work tree."""
    while True:
        mark = os.path.join(folder, b".git")
        if os.path.isfile(mark) or os.path.exists(os.path.join(mark, b"HEAD")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _git_folder(top: bytes) -> bytes:
    """Return the folder that has `info/`: a worktree's and a submodule's `.git` is a file."""
    git = os.path.join(top, b".git")
    pointer = _read(git) or b""
    if pointer.startswith(b"gitdir:"):
        git = os.path.join(top, pointer[len(b"gitdir:") :].strip())
        git = os.path.join(git, (_read(os.path.join(git, b"commondir")) or b"").strip())
    return git


def _read(path: bytes, *, follow: bool = False) -> bytes | None:
    """Return the content of a plain file, None if there is none, Invalid if it may not be read."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        with open(os.open(path, flags), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except PermissionError as error:
        raise Invalid(f"{os.fsdecode(path)} cannot be read: {error.strerror}") from error
    except (OSError, ValueError):  # the latter for a path with a NUL, which a .git file may give
        return None


@dataclass(frozen=True)
class _Pattern:
    text: bytes
    negated: bool
    folders_only: bool
    by_name: bool  # without a slash a pattern is held against the name, else against the path

    @property
    def is_literal(self) -> bool:
        return _literal_length(self.text) == len(self.text)

    @property
    def is_ending(self) -> bool:
        return (
            self.by_name
            and self.text[:1] == b"*"
            and _literal_length(self.text[1:]) == (len(self.text) - 1)
        )

    @cached_property
    def expression(self) -> bytes:
        return _expression(self.text)

    @cached_property
    def regex(self) -> re.Pattern[bytes]:
        return re.compile(self.expression, re.DOTALL)


class IgnoreFile:
    """The patterns of one ignore file. The last that matches decides."""

    def __init__(self, content: bytes) -> None:
        self._last_first = list(_patterns(content))[::-1]
        literals = [pattern for pattern in self._last_first if pattern.is_literal]
        endings = [pattern for pattern in self._last_first if pattern.is_ending]
        globs = [p for p in self._last_first if not p.is_literal and not p.is_ending]
        self._names = frozenset(pattern.text for pattern in literals if pattern.by_name)
        self._paths = frozenset(pattern.text for pattern in literals if not pattern.by_name)
        self._endings = tuple(pattern.text[1:] for pattern in endings)
        self._name_globs = _any_of([pattern for pattern in globs if pattern.by_name])
        self._path_globs = _any_of([pattern for pattern in globs if not pattern.by_name])

    def verdict(self, path: bytes, name: bytes, is_folder: bool) -> bool | None:
        """Tell whether `path`, from this file's folder on, is left out; None: no pattern says."""
        if not self._concerns(path, name):
            return None
        for pattern in self._last_first:
            if pattern.folders_only and not is_folder:
                continue
            if pattern.regex.fullmatch(name if pattern.by_name else path):
                return not pattern.negated
        return None

    def _concerns(self, path: bytes, name: bytes) -> bool:
        # most paths match no pattern: a few set lookups must be all they cost
        return (
            name in self._names
            or name.endswith(self._endings)
            or path in self._paths
            or (self._name_globs is not None and self._name_globs.fullmatch(name) is not None)
            or (self._path_globs is not None and self._path_globs.fullmatch(path) is not None)
        )


def _any_of(patterns: list[_Pattern]) -> re.Pattern[bytes] | None:
    if not patterns:
        return None
    return re.compile(b"|".join(pattern.expression for pattern in patterns), re.DOTALL)


def _patterns(content: bytes) -> Iterator[_Pattern]:
    for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        text = line.removesuffix(b"\r").partition(b"\0")[0]
        if text and not line.startswith(b"#"):
            yield _pattern(_without_trailing_spaces(text))


def _without_trailing_spaces(text: bytes) -> bytes:
    stripped = text.rstrip(b" ")
    backslashes = len(stripped) - len(stripped.rstrip(b"\\"))
    return text[: len(stripped) + backslashes % 2]  # an odd one keeps the space behind it


def _pattern(text: bytes) -> _Pattern:
    negated = text.startswith(b"!")
    text = text[1:] if negated else text
    folders_only = text.endswith(b"/")
    text = text[:-1] if folders_only else text
    by_name = b"/" not in text
    return _Pattern(text.removeprefix(b"/"), negated, folders_only, by_name)


def _literal_length(text: bytes) -> int:
    found = re.search(rb"[*?[\\]", text)
    return len(text) if found is None else found.start()


_NOTHING = rb"(?!)"


def _expression(text: bytes) -> bytes:
    """Translate a pattern; a malformed one matches nothing, as in git."""
    # git compares the part before the first wildcard by itself: `a**/b` is `a` and then `**/b`
    at = _literal_length(text)
    parts, text = [re.escape(text[:at])], text[at:]
    at = 0
    while at < len(text):
        part, at = _WILDCARDS.get(text[at], _literal)(text, at)
        parts.append(part)
    return _NOTHING if _NOTHING in parts else b"".join(parts)


def _literal(text: bytes, at: int) -> tuple[bytes, int]:
    return re.escape(text[at : at + 1]), at + 1


def _escaped(text: bytes, at: int) -> tuple[bytes, int]:
    return re.escape(text[at + 1 : at + 2]) or _NOTHING, at + 2


def _one(_text: bytes, at: int) -> tuple[bytes, int]:
    return b"[^/]", at + 1


def _stars(text: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while text[end : end + 1] == b"*":
        end += 1
    crosses = end - at > 1 and (at == 0 or text[at - 1 : at] == b"/")
    if crosses and text[end : end + 1] == b"/":
        return b"(?:.*/)?", end + 1
    if crosses and (end == len(text) or text[end : end + 2] == rb"\/"):
        return b".*", end
    return b"[^/]*", end


_ITEM = re.compile(rb"\[:([^\]]*):\]|(\\.|[^\\])-(\\.|[^\]\\])|(\\.|[^\\])", re.DOTALL)
_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, range(32))) + "\x7f",
    b"digit": string.digits,
    b"graph": string.ascii_letters + string.digits + string.punctuation,
    b"lower": string.ascii_lowercase,
    b"print": string.ascii_letters + string.digits + string.punctuation + " ",
    b"punct": string.punctuation,
    b"space": " \t\n\r",
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}


def _bracket(text: bytes, at: int) -> tuple[bytes, int]:
    at += 1
    negated = text[at : at + 1] in (b"!", b"^")
    first = at = at + negated
    chosen: set[int] = set()
    while at == first or text[at : at + 1] != b"]":
        item = _ITEM.match(text, at)
        if item is None or (item[1] is not None and item[1] not in _CLASSES):
            return _NOTHING, len(text)
        chosen |= _chosen(item)
        at = item.end()
    kept = (set(range(256)) - chosen if negated else chosen) - {ord("/")}
    members = b"".join(rb"\x%02x" % byte for byte in sorted(kept))
    return b"[" + members + b"]" if members else _NOTHING, at + 1


def _chosen(item: re.Match[bytes]) -> set[int]:
    if item[1] is not None:
        return set(_CLASSES[item[1]].encode())
    if item[4] is not None:
        return {item[4][-1]}
    return set(range(item[2][-1], item[3][-1] + 1))


_WILDCARDS: dict[int, Callable[[bytes, int], tuple[bytes, int]]] = {
    ord("*"): _stars,
    ord("?"): _one,
    ord("["): _bracket,
    ord("\\"): _escaped,
}
