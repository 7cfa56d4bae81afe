"""Processes what scripts log with `retarget.track`: lines of JSON, each once."""

import json
import re
from collections.abc import Callable
from typing import Any

from retarget.control.attempts import current_attempt
from retarget.control.context import Context
from retarget.control.outputs import artifact_folder
from retarget.core.errors import Invalid
from retarget.core.jobs import Attempt, Job, Output
from retarget.core.limits import MAX_KEY_LENGTH, check_key, check_length, check_param, check_tag
from retarget.core.tracking import Metric
from retarget.store.track import Logged

ARTIFACTS_TOP = "artifacts"  # the folder in which a runner sends artifacts
_NAME = re.compile(r"[\w.-]{1,100}")
_INT64_LIMIT = 1 << 63
_MAX_MESSAGES = 20


def process_lines(
    context: Context, key: str, name: str, offset: int, content: bytes
) -> tuple[int, list[str]]:
    """Process the new lines of an attempt's file. `content` begins at `offset`.

    Return how many bytes of the file are processed, and messages about what cannot be stored.
    """
    if not _NAME.fullmatch(name):
        raise Invalid(f"name: {name[:80]!r} is not a valid name for a track file", field="name")
    job, _ = current_attempt(context, key)
    processed = context.store.track.processed_bytes(key, name)
    complete = content[: content.rfind(b"\n") + 1]
    if not offset <= processed < offset + len(complete):
        return processed, []
    logged, refused = parse_lines(complete[processed - offset :])
    sizes = (processed, offset + len(complete))
    refused += context.store.track.log_lines((key, name), sizes, job.id, logged)
    return context.store.track.processed_bytes(key, name), refused[:_MAX_MESSAGES]


def keep_files(
    context: Context, job: Job, attempt: Attempt, files: list[Output], node: int = 0
) -> list[str]:
    """Store files of an attempt: as artifacts of the job's run, or as outputs of the job.

    If the artifacts of the run are not stored on this server, they are stored as outputs.
    Return messages about what cannot be stored.
    """
    artifacts = [file for file in files if file.path.startswith(f"{ARTIFACTS_TOP}/")]
    outputs = [file for file in files if not file.path.startswith(f"{ARTIFACTS_TOP}/")]
    folder = artifact_folder(context, job) if artifacts else None
    if folder is None:
        outputs, artifacts = files, []
    refused: list[str] = []
    if node:
        outputs, refused = _without_collisions(context, job, attempt, outputs)
    if outputs:
        context.store.outputs.put(job.id, attempt.number, *outputs)
    for file in artifacts:
        try:
            path = file.path.removeprefix(f"{ARTIFACTS_TOP}/")
            context.store.artifacts.put(f"{folder}/{path}", file.size, file.digest)
        except Invalid as error:
            refused.append(str(error))
    return refused


def _without_collisions(
    context: Context, job: Job, attempt: Attempt, files: list[Output]
) -> tuple[list[Output], list[str]]:
    """Return the files whose paths no other node has used, and messages about the others."""
    stored = {file.path: file.digest for file in context.store.outputs.list(job.id, attempt.number)}
    accepted = [file for file in files if stored.get(file.path, file.digest) == file.digest]
    refused = [
        f"{file.path} is not stored: another node wrote a different file to this path"
        for file in files
        if file not in accepted
    ]
    return accepted, refused


def parse_lines(content: bytes) -> tuple[Logged, list[str]]:
    """Return what the lines log, and messages about what cannot be stored, each once."""
    reader = _Reader()
    for line in content.splitlines():
        reader.add(line)
    return reader.logged(), list(dict.fromkeys(reader.refused))


class _Reader:
    """Collects what lines log. A bad line does not affect the others."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self._metrics: list[Metric] = []
        self._params: list[tuple[str, str]] = []
        self._tags: dict[str, str] = {}
        self._tables: list[str] = []
        self._valid_keys: set[str] = set()
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
            record = json.loads(line)
            kind = next((kind for kind in self._kinds if kind in record), None)
            if kind is None:
                self.refused.append("lines of a newer version are ignored; upgrade the server")
            else:
                self._kinds[kind](record[kind], record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            self.refused.append(f"a damaged line is ignored: {line[:80]!r}")

    def _add_metrics(self, points: dict[str, Any], record: dict[str, Any]) -> None:
        step, timestamp = _integer(record["s"]), _integer(record["t"])
        for key, value in points.items():
            if self._is_valid(key):
                self._metrics.append(Metric(key, float(value), timestamp, step))

    def _add_params(self, pairs: dict[str, Any], _: dict[str, Any]) -> None:
        for key, value in pairs.items():
            if self._is_valid(key):
                self._params.append((key, check_param(key, str(value))))

    def _add_tags(self, pairs: dict[str, Any], _: dict[str, Any]) -> None:
        for key, value in pairs.items():
            if self._is_valid(key):
                self._tags[key] = check_tag(key, str(value))

    def _add_table(self, artifact: dict[str, Any], _: dict[str, Any]) -> None:
        if artifact["type"] == "table":
            self._tables.append(str(artifact["path"]))

    def _is_valid(self, key: str) -> bool:
        if key in self._valid_keys:
            return True
        try:
            check_key(key, "name")
            check_length("name", key, MAX_KEY_LENGTH)
        except Invalid as error:
            self.refused.append(str(error)[:300])
            return False
        self._valid_keys.add(key)
        return True


def _integer(value: Any) -> int:
    if type(value) is not int or not -_INT64_LIMIT <= value < _INT64_LIMIT:
        raise ValueError(value)
    return value
