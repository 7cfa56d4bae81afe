"""Decides which files of a folder belong to its snapshot, by the rules of git.

The rules come from the first of `.retargetignore`, `.amlignore` and `.gitignore` that the folder
itself has, and from the files of the same name below it. The `.gitignore` files of its parents, up
to the root of the git repository, and `.git/info/exclude` apply if it has neither of the other two.
If the rules of the parents exclude the whole folder, they are ignored, because the user named the
folder explicitly. `ignore` in the project's retarget.toml precedes all of these files. Some names
are excluded by default: runner/default_exclusions.py lists them.

As in git, a `.gitignore` file that is a link is not read. Unlike git, a tracked file can be
excluded, and the user's `core.excludesFile` is not read, so that everyone who sends a folder sends
the same snapshot.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from retarget.core.errors import Invalid
from retarget.core.exclusions import ALWAYS, DEFAULT
from retarget.runner import default_exclusions as names
from retarget.sdk.include import NO_INCLUDE, ExcludedPaths, Include, parents
from retarget.sdk.wildmatch import IgnoreFile, Pattern, has_letters

_RETARGET, _AML, _GIT, _DOCKER = b".retargetignore", b".amlignore", b".gitignore", b".dockerignore"
_PROJECT = "retarget.toml"
_ALWAYS = frozenset(name.encode() for name in names.ALWAYS if "*" not in name)
_SECRETS = IgnoreFile(
    "\n".join([*names.SECRETS, *(f"!{name}" for name in names.NOT_SECRET)]).encode()
)
_TOOL_FOLDERS = frozenset(name.rstrip("/").encode() for name in names.TOOL_FOLDERS)
_ENVIRONMENT_MARKS = frozenset(name.encode() for name in names.ENVIRONMENT_MARKS)
_HOME_MARKS = {name.encode() for name in names.HOME_MARKS}
_DOWNLOAD_MARK = names.DOWNLOAD_MARK.encode()

Refuse = Callable[[bytes, OSError], None]  # the path of a folder that cannot be listed, and why
Exclude = Callable[[bytes, str], None]  # a path, with a slash if it is a folder, and its rule


@dataclass(frozen=True, slots=True)
class ProjectRules:
    """The patterns that a project's retarget.toml ignores; they precede all ignore files."""

    folder: Path  # of the file: patterns with a slash are relative to it
    patterns: tuple[str, ...]


class CodeFiles:
    """The files of a code folder, and what is excluded."""

    def __init__(self, root: bytes, include: Include, project: ProjectRules | None = None) -> None:
        self.root = root
        self.excluded: list[tuple[bytes, str]] = []
        self.ignore_file = ignore_file_of(root)
        self._include = include
        self._project = project

    def walk(self, refuse: Refuse) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
        return walk(self.root, refuse, self._exclude, self._include, self._project)

    def _exclude(self, path: bytes, rule: str) -> None:
        self.excluded.append((path, rule))


class ContextFiles:
    """The files of a build context."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.excluded: list[tuple[bytes, str]] = []  # as with Docker, this is not reported
        self.ignore_file = ".dockerignore"

    def walk(self, refuse: Refuse) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
        return walk_context(self.root, refuse)


def walk(
    folder: bytes,
    refuse: Refuse,
    exclude: Exclude | None = None,
    include: Include = NO_INCLUDE,
    project: ProjectRules | None = None,
) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Yield the path and the entry of every file of the snapshot.

    A folder that was deleted is skipped. Raise Invalid, at the end, for a pattern of `include` that
    matches nothing, unless it is optional.

    Args:
        folder: The folder to walk.
        refuse: Called for a folder that cannot be listed.
        exclude: Called at the end for every path that is excluded, but not for those below it.
        include: Paths and patterns of what is included whatever the rules say.
        project: Patterns of the project's settings.
    """
    scope = _with_project(_scope_at(folder), folder, project)
    yield from _Walk(folder, refuse, exclude or _ignore, include).files(scope)


def _ignore(_path: bytes, _rule: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder to be read, and what applies in it."""

    path: bytes  # empty, or with a slash at the end
    scope: "_Scope"
    included: bool = False  # the user asked for it or for a folder above
    rule: str | None = None  # excludes all of it but the paths that the user asked for


class _Walk:
    def __init__(self, folder: bytes, refuse: Refuse, exclude: Exclude, include: Include) -> None:
        self._folder = folder
        self._refuse = refuse
        self._exclude = exclude
        self._include = include
        self._has_include = include != NO_INCLUDE
        self._above_include = {folder for path in include.paths for folder in parents(path)}
        self._unmatched = dict.fromkeys(include.patterns)
        self._excluded = ExcludedPaths()

    def files(self, scope: "_Scope") -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
        pending = [_Folder(b"", scope, included=b"" in self._include.paths)]
        while pending:
            folder = pending.pop()
            entries = _list(self._folder, folder.path, self._refuse)
            content = {entry.name for entry in entries}
            folder = self._with_content(folder, content)
            if folder.rule is not None:
                is_home = content >= _HOME_MARKS
                if is_home:
                    self._refuse_to_include(folder.path)
                if is_home or not self._is_searched(folder.path[:-1], folder.rule):
                    self._excluded.add(folder.path, folder.rule)
                    continue
                self._excluded.search(folder.path, folder.rule)
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                rule, included = self._rule(folder, entry.name, is_folder)
                path = folder.path + entry.name
                if is_folder and (rule is None or self._is_searched(path, rule)):
                    scope = folder.scope.below(entry.name)
                    pending.append(_Folder(path + b"/", scope, included, rule))
                elif rule is None:
                    self._excluded.send(path)
                    yield path, entry
                else:
                    self._excluded.add(path + b"/" if is_folder else path, rule)
        self._finish()

    def _is_searched(self, path: bytes, rule: str) -> bool:
        """Return whether an excluded folder may contain something that the user asked for."""
        if path in self._above_include:
            return True
        is_open = rule != ALWAYS and self._include.reaches(path)
        return is_open and _default_rule(path.rpartition(b"/")[2], is_folder=True) is None

    def _refuse_to_include(self, home: bytes) -> None:
        for path in self._include.paths:
            if (path + b"/").startswith(home):
                raise Invalid(
                    f"include: {os.fsdecode(path)!r} cannot be sent: {os.fsdecode(home)} is a home "
                    "of Retarget, which holds secrets",
                    field="include",
                )

    def _with_content(self, folder: _Folder, content: set[bytes]) -> _Folder:
        """Return the folder with the rules that follow from the names in it."""
        rule = _rule_of_content(content) if folder.path else None
        is_stricter = folder.rule is None or rule == ALWAYS
        if rule and is_stricter and not self._is_named(folder.path[:-1], rule, content):
            return replace(folder, rule=rule, included=False)
        if folder.scope.source not in content or folder.included:
            return folder
        file = folder.path + folder.scope.source
        return replace(
            folder,
            scope=folder.scope.with_file(os.path.join(self._folder, file), os.fsdecode(file)),
        )

    def _is_named(self, folder: bytes, rule: str, content: set[bytes]) -> bool:
        """Return whether the user named a folder that this rule excludes for its content."""
        if content >= _HOME_MARKS:
            return False
        if folder in self._include.paths:
            return True
        return rule == DEFAULT and bool(self._include.patterns_of(folder, is_folder=True))

    def _rule(self, folder: _Folder, name: bytes, is_folder: bool) -> tuple[str | None, bool]:
        """Return the rule that excludes this name, and whether the user asked for its path."""
        if not self._has_include:
            return folder.rule or folder.scope.rule(name, is_folder), False
        path = folder.path + name
        if path in self._include.paths:
            return None, True
        if folder.included:
            rule = _default_rule(name, is_folder)
        else:
            rule = folder.rule or folder.scope.rule(name, is_folder)
        patterns = self._include.patterns_of(path, is_folder=is_folder)
        if not patterns or folder.rule == ALWAYS:
            return rule, folder.included and rule is None
        if rule is not None:
            rule = _rule_despite(patterns, name, is_folder)
        if rule is None:
            for pattern in patterns:
                self._unmatched.pop(pattern, None)
        return rule, rule is None

    def _finish(self) -> None:
        for path, rule in self._excluded.rules().items():
            self._exclude(path, rule)
        if self._include.is_optional:
            return
        for pattern in self._unmatched:
            folder = os.fsdecode(self._folder)
            raise Invalid(
                f"{self._include.origin}: {pattern!r} matches nothing in {folder}", field="include"
            )


def _rule_despite(patterns: list[str], name: bytes, is_folder: bool) -> str | None:
    """Return the rule that excludes a name although these patterns include it."""
    rule = _default_rule(name, is_folder)
    last_names = [os.fsencode(pattern.rstrip("/").rpartition("/")[2]) for pattern in patterns]
    if rule == DEFAULT and any(map(has_letters, last_names)):
        return None  # but `data/*` does not ask for files that may hold secrets
    return rule


def _rule_of_content(content: set[bytes]) -> str | None:
    """Return the rule that excludes a folder with this content."""
    if not _ENVIRONMENT_MARKS.isdisjoint(content) or content >= _HOME_MARKS:
        return ALWAYS
    return DEFAULT if _DOWNLOAD_MARK in content else None


def walk_context(folder: bytes, refuse: Refuse) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    """Yield the path and the entry of every file of a build context.

    `.dockerignore` has other rules than git: patterns are relative to the context, a match covers
    everything below it, and the last matching pattern decides. Dockerfiles and `.dockerignore`
    itself are always included.
    """
    rules = list(_docker_patterns(_read(os.path.join(folder, _DOCKER), follow=True) or b""))
    has_exceptions = any(rule.negated for rule in rules)
    pending = [b""]
    while pending:
        path = pending.pop()
        for entry in _list(folder, path, refuse):
            inside = path + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if _is_always_ignored(entry.name, is_folder):
                continue
            excluded = _is_excluded(inside, rules) and not _is_build_file(entry.name)
            if is_folder and (not excluded or has_exceptions):
                pending.append(inside + b"/")
            elif not is_folder and not excluded:
                yield inside, entry


def _is_excluded(path: bytes, rules: "list[Pattern]") -> bool:
    names = path.split(b"/")
    prefixes = [b"/".join(names[: count + 1]) for count in range(len(names))]
    excluded = False
    for rule in rules:
        if excluded == rule.negated and any(rule.regex.fullmatch(prefix) for prefix in prefixes):
            excluded = not rule.negated
    return excluded


def _is_build_file(name: bytes) -> bool:
    return name == _DOCKER or b"dockerfile" in name.lower()


def _docker_patterns(content: bytes) -> "Iterator[Pattern]":
    for line in content.removeprefix(b"\xef\xbb\xbf").splitlines():
        text = line.strip()
        negated = text.startswith(b"!")
        path = os.path.normpath(text[negated:].strip() or b".").strip(b"/")
        if not text.startswith(b"#") and path != b".":
            yield Pattern(path, negated, folders_only=False, by_name=False)


def ignore_file_of(folder: bytes) -> str:
    """Return the name of the ignore files that apply to this folder."""
    for name in (_RETARGET, _AML):
        if os.path.isfile(os.path.join(folder, name)):
            return name.decode()
    return _GIT.decode()


def _is_always_ignored(name: bytes, is_folder: bool) -> bool:
    return name in _ALWAYS or (not is_folder and name.endswith(b".pyc"))


def _default_rule(name: bytes, is_folder: bool) -> str | None:
    """Return the rule that excludes a name even in a folder that the user asked for."""
    if _is_always_ignored(name, is_folder):
        return ALWAYS
    secret = _SECRETS.match(name, name, is_folder)
    return DEFAULT if secret is not None and not secret.negated else None


def _list(folder: bytes, path: bytes, refuse: Refuse) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(os.path.join(folder, path)) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        refuse(path, error)
        return []


@dataclass(frozen=True, slots=True)
class _Layer:
    """The rules of one file, with the path from its folder to the folder that is being read."""

    path: bytes
    rules: IgnoreFile
    name: str  # the path of the file, for people

    def below(self, name: bytes) -> "_Layer":
        return replace(self, path=self.path + name + b"/")


@dataclass(frozen=True, slots=True)
class _Scope:
    """The rules that apply to one folder."""

    source: bytes
    layers: tuple[_Layer, ...] = ()  # the deepest first: it has precedence
    project: _Layer | None = None  # has precedence over all of them

    def rule(self, name: bytes, is_folder: bool) -> str | None:
        """Return the rule that excludes a name, or None."""
        if _is_always_ignored(name, is_folder):
            return ALWAYS
        pattern, file = self.match(name, is_folder)
        if pattern is not None and not pattern.negated:
            return file
        if pattern is not None and pattern.has_letters:
            return None  # but `!*` does not ask for files that may hold secrets
        return _excluded_by_default(name, is_folder)

    def match(self, name: bytes, is_folder: bool) -> tuple[Pattern | None, str]:
        """Return the pattern that decides about a name, if any, and the file that it is in."""
        for layer in (self.project, *self.layers) if self.project else self.layers:
            pattern = layer.rules.match(layer.path + name, name, is_folder)
            if pattern is not None:
                return pattern, layer.name
        return None, ""

    def below(self, name: bytes) -> "_Scope":
        if not self.layers and self.project is None:
            return self
        layers = tuple(layer.below(name) for layer in self.layers)
        project = None if self.project is None else self.project.below(name)
        return replace(self, layers=layers, project=project)

    def with_file(self, path: bytes, name: str) -> "_Scope":
        content = _read(path, follow=self.source != _GIT)
        if content is None:
            return self
        return replace(self, layers=(_Layer(b"", IgnoreFile(content), name), *self.layers))


def _excluded_by_default(name: bytes, is_folder: bool) -> str | None:
    if is_folder and name in _TOOL_FOLDERS:
        return DEFAULT
    return _default_rule(name, is_folder)


def _with_project(scope: _Scope, folder: bytes, project: ProjectRules | None) -> _Scope:
    if project is None:
        return scope
    path = os.path.relpath(os.path.realpath(folder), os.path.realpath(os.fsencode(project.folder)))
    rules = IgnoreFile(b"\n".join(pattern.encode() for pattern in project.patterns))
    return replace(scope, project=_Layer(b"" if path == b"." else path + b"/", rules, _PROJECT))


def _scope_at(folder: bytes) -> _Scope:
    source = ignore_file_of(folder).encode()
    if source != _GIT:
        return _Scope(source)
    folder = os.path.realpath(folder)
    top = _repository(folder)
    if top is None:
        return _Scope(_GIT)
    excludes = os.path.join(_git_folder(top), b"info", b"exclude")
    scope = _Scope(_GIT).with_file(excludes, ".git/info/exclude")
    parent = top
    for name in os.path.relpath(folder, top).split(b"/") if folder != top else ():
        file = os.path.join(parent, _GIT)
        scope = scope.with_file(file, os.fsdecode(os.path.relpath(file, folder)))
        pattern, _ = scope.match(name, is_folder=True)
        if pattern is not None and not pattern.negated:
            return _Scope(_GIT)
        scope, parent = scope.below(name), os.path.join(parent, name)
    return scope


def _repository(folder: bytes) -> bytes | None:
    """Return the root of the git work tree that the folder is in, or None."""
    while True:
        mark = os.path.join(folder, b".git")
        if os.path.isfile(mark) or os.path.exists(os.path.join(mark, b"HEAD")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _git_folder(top: bytes) -> bytes:
    """Return the folder that has `info/`: in a worktree or a submodule, `.git` is a file."""
    git = os.path.join(top, b".git")
    pointer = _read(git) or b""
    if pointer.startswith(b"gitdir:"):
        git = os.path.join(top, pointer[len(b"gitdir:") :].strip())
        git = os.path.join(git, (_read(os.path.join(git, b"commondir")) or b"").strip())
    return git


def _read(path: bytes, *, follow: bool = False) -> bytes | None:
    """Return the content of a regular file, or None; raise Invalid without permission to read."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        with open(os.open(path, flags), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except PermissionError as error:
        raise Invalid(f"{os.fsdecode(path)} cannot be read: {error.strerror}") from error
    except (OSError, ValueError):  # ValueError: a .git file may contain a path with a NUL
        return None
