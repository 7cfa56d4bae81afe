"""Takes in what scripts log with `retarget.track`: lines of JSON, each of them once."""

import json
import re
from collections.abc import Callable
from typing import Any

from retarget.control.left import artifacts_of
from retarget.control.parts import Parts
from retarget.control.report import present
from retarget.core.errors import Invalid
from retarget.core.jobs import Attempt, Job, Output
from retarget.core.limits import LONGEST_KEY, check_key, check_length, check_param, check_tag
from retarget.core.tracking import Metric
from retarget.store.track import Logged

ARTIFACTS_TOP = "artifacts"  # the folder that artifacts come in
_NAME = re.compile(r"[\w.-]{1,100}")
_LARGEST = 1 << 63
_MOST_TOLD = 20


def take_lines(
    parts: Parts, key: str, name: str, offset: int, content: bytes
) -> tuple[int, list[str]]:
    """Take in lines of an attempt's file from `offset` on, those that are new.

    Return how much of the file is taken in, and sentences about what cannot be kept.
    """
    if not _NAME.fullmatch(name):
        raise Invalid(f"name: {name[:80]!r} is not the name of a track file", field="name")
    job, _ = present(parts, key)
    taken = parts.track.taken(key, name)
    whole = content[: content.rfind(b"\n") + 1]
    if not offset <= taken < offset + len(whole):
        return taken, []
    logged, refused = read(whole[taken - offset :])
    sizes = (taken, offset + len(whole))
    refused += parts.track.take((key, name), sizes, job.id, logged)
    return parts.track.taken(key, name), refused[:_MOST_TOLD]


def keep_files(
    parts: Parts, job: Job, attempt: Attempt, files: list[Output], node: int = 0
) -> list[str]:
    """Keep files of an attempt: as artifacts of the job's run, or as outputs of the job.

    An artifact is an output like others where the artifacts of the run are not ours to keep.
    Return sentences about what cannot be kept.
    """
    ours = [file for file in files if file.path.startswith(f"{ARTIFACTS_TOP}/")]
    left = [file for file in files if not file.path.startswith(f"{ARTIFACTS_TOP}/")]
    folder = artifacts_of(parts, job) if ours else None
    if folder is None:
        left, ours = files, []
    refused: list[str] = []
    if node:
        left, refused = _not_there_yet(parts, job, attempt, left)
    if left:
        parts.outputs.put(job.id, attempt.number, *left)
    for file in ours:
        try:
            path = file.path.removeprefix(f"{ARTIFACTS_TOP}/")
            parts.artifacts.put(f"{folder}/{path}", file.size, file.digest)
        except Invalid as error:
            refused.append(str(error))
    return refused


def _not_there_yet(
    parts: Parts, job: Job, attempt: Attempt, files: list[Output]
) -> tuple[list[Output], list[str]]:
    """Return the files whose names no other node has given to others, and what of the rest."""
    there = {each.path: each.digest for each in parts.outputs.list(job.id, attempt.number)}
    fresh = [file for file in files if there.get(file.path, file.digest) == file.digest]
    refused = [
        f"{file.path} is not kept: another node has one of that name"
        for file in files
        if file not in fresh
    ]
    return fresh, refused


def read(content: bytes) -> tuple[Logged, list[str]]:
    """Return what lines say, and a sentence for each kind of thing that cannot be kept."""
    reader = _Reader()
    for line in content.splitlines():
        reader.add(line)
    return reader.logged(), list(dict.fromkeys(reader.refused))


class _Reader:
    """Gathers what lines say. One that is bad does not keep the others from being taken in."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._metrics: list[Metric] = []
        self._params: list[tuple[str, str]] = []
        self._tags: dict[str, str] = {}
        self._tables: list[str] = []
        self._known: set[str] = set()
        self._kinds: dict[str, Callable[[Any, dict[str, Any]], None]] = {
            "m": self._add_metrics,
            "p": self._add_params,
            "g": self._add_tags,
            "a": self._add_table,
        }

    def logged(self) -> Logged:
        return Logged(self._metrics, self._params, self._tags, self._tables)

    def add(self, line: bytes) -> None:
        try:
            told = json.loads(line)
            kind = next((kind for kind in self._kinds if kind in told), None)
            if kind is None:
                self.refused.append("lines of a newer version are left out; upgrade the server")
            else:
                self._kinds[kind](told[kind], told)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            self.refused.append(f"a line is damaged and left out: {line[:80]!r}")

    def _add_metrics(self, points: dict[str, Any], told: dict[str, Any]) -> None:
        step, timestamp = _whole(told["s"]), _whole(told["t"])
        for key, value in points.items():
            if self._is_good(key):
                self._metrics.append(Metric(key, float(value), timestamp, step))

    def _add_params(self, pairs: dict[str, Any], _: dict[str, Any]) -> None:
        for key, value in pairs.items():
            if self._is_good(key):
                self._params.append((key, check_param(key, str(value))))

    def _add_tags(self, pairs: dict[str, Any], _: dict[str, Any]) -> None:
        for key, value in pairs.items():
            if self._is_good(key):
                self._tags[key] = check_tag(key, str(value))

    def _add_table(self, artifact: dict[str, Any], _: dict[str, Any]) -> None:
        if artifact["type"] == "table":
            self._tables.append(str(artifact["path"]))

    def _is_good(self, key: str) -> bool:
        if key in self._known:
            return True
        try:
            check_key(key, "name")
            check_length("name", key, LONGEST_KEY)
        except Invalid as error:
            self.refused.append(str(error)[:300])
            return False
        self._known.add(key)
        return True


def _whole(value: Any) -> int:
    if type(value) is not int or not -_LARGEST <= value < _LARGEST:
        raise ValueError(value)
    return value
