"""What may be logged: names, lengths, numbers. The messages are those MLflow's users know."""

import json
import posixpath
import re
from collections.abc import Collection, Iterable
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.tracking import Dataset, Metric

METRICS_IN_BATCH = 1000
PAIRS_IN_BATCH = 100  # params, and tags
BATCH = 1000  # metrics, params and tags together
LONGEST_KEY = 250
LONGEST_PARAM = 6000
LONGEST_TAG = 8000
LONGEST_EXPERIMENT_TAG = 20_000
LONGEST_EXPERIMENT_NAME = 500
LONGEST_LOCATION = 2048

_KEY = re.compile(r"[/\w.\- :]*")
_RUN = re.compile(r"[a-zA-Z0-9][\w\-]{0,255}")
_DATASET = {"name": 500, "digest": 36, "source": 65_535, "schema": 1_048_575, "profile": 16_777_215}


def invalid(name: str, value: Any, why: str = "") -> Invalid:
    shown = json.dumps(value, sort_keys=True, separators=(",", ":"))
    end = f": {why}" if why else "."
    return Invalid(f"Invalid value {shown} for parameter '{name}' supplied{end}", field=name)


def check_key(name: str, where: str) -> None:
    """Raise Invalid unless `name` can be the name of a metric, a param or a tag."""
    if not _KEY.fullmatch(name):
        raise invalid(
            where,
            name,
            "Names may only contain alphanumerics, underscores (_), dashes (-), periods (.), "
            "spaces ( ), colon(:) and slashes (/).",
        )
    plain = posixpath.normpath(name)
    if plain != name or plain == "." or plain.startswith(("..", "/")):
        raise invalid(
            where,
            name,
            "Names may be treated as files in certain cases, and must not resolve to other names "
            f"when treated as such. This name would resolve to {plain!r}",
        )


def check_length(what: str, value: str, most: int) -> str:
    if len(value) > most:
        raise Invalid(f"'{what}' exceeds the maximum length of {most} characters", field=what)
    return value


def check_metrics(metrics: list[Metric], *, alone: bool = False) -> None:
    """Raise Invalid for the first metric that cannot be kept."""
    seen: set[str] = set()
    for index, metric in enumerate(metrics):
        path = "" if alone else f"metrics[{index}]."
        if metric.key not in seen:
            check_key(metric.key, f"{path}name")
            check_length("Metric name", metric.key, LONGEST_KEY)
            seen.add(metric.key)
        if metric.timestamp < 0:
            raise invalid(
                f"{path}timestamp",
                metric.timestamp,
                f"metric '{metric.key}' (value={metric.value}). "
                "Timestamp must be a nonnegative long (64-bit integer) ",
            )


def check_param(key: str, value: str, where: str = "") -> str:
    """Return the value of a param as it will be kept: one that is too long is cut."""
    check_key(key, f"{where}key")
    check_length("Param key", key, LONGEST_KEY)
    return value[:LONGEST_PARAM]


def check_tag(key: str, value: str, where: str = "") -> str:
    """Return the value of a tag as it will be kept: one that is too long is cut."""
    check_key(key, f"{where}key")
    check_length(f"{where}key", key, LONGEST_KEY)
    return value[:LONGEST_TAG]


def check_experiment_tag(key: str, value: str) -> None:
    check_key(key, "key")
    check_length("key", key, LONGEST_KEY)
    check_length("value", value, LONGEST_EXPERIMENT_TAG)


def check_experiment_name(name: str) -> str:
    if not name:
        raise Invalid(f"Invalid experiment name: '{name}'", field="name")
    return check_length("name", check_shown(name), LONGEST_EXPERIMENT_NAME)


def check_shown(name: str, field: str = "name") -> str:
    """Return a name without line breaks, escapes and such, or raise Invalid."""
    if not name.isprintable():
        shown = ascii(name[:80])
        raise Invalid(f"{field}: {shown} has characters that cannot be shown", field=field)
    return name


def check_run_id(run_id: str) -> str:
    if not _RUN.fullmatch(run_id):
        raise invalid("run_id", run_id)
    return run_id


def check_batch(metrics: Collection[Any], params: Collection[Any], tags: Collection[Any]) -> None:
    together = len(metrics) + len(params) + len(tags)
    for what, count, most in (
        ("metrics", len(metrics), METRICS_IN_BATCH),
        ("params", len(params), PAIRS_IN_BATCH),
        ("tags", len(tags), PAIRS_IN_BATCH),
        ("metrics, params, and tags", together, BATCH),
    ):
        if count > most:
            raise Invalid(
                f"A batch logging request can contain at most {most} {what}. Got {count} {what}. "
                f"Please split up {what} across multiple requests and try again."
            )


def check_unique(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    twice: list[str] = []
    for key in keys:
        if key in seen:
            twice.append(key)
        seen.add(key)
    if twice:
        raise Invalid(
            f"Duplicate parameter keys have been submitted: {twice}. Please ensure the request "
            "contains only one param value per param key."
        )


def check_dataset(dataset: Dataset, tags: dict[str, str]) -> None:
    for name, most in _DATASET.items():
        value = getattr(dataset, "schema_" if name == "schema" else name)
        check_length(name, value or "", most)
    for key, value in tags.items():
        check_length("key", key, 255)
        check_length("value", value, 500)
