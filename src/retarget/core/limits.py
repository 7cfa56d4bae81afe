"""Limits on what can be logged: names, lengths, numbers. The messages are MLflow's."""

import json
import posixpath
import re
from collections.abc import Collection, Iterable
from typing import Any

from retarget.core.errors import Invalid
from retarget.core.tracking import Dataset, Metric

MAX_METRICS_IN_BATCH = 1000
MAX_PAIRS_IN_BATCH = 100  # of params, and of tags
MAX_ITEMS_IN_BATCH = 1000  # metrics, params and tags together
MAX_KEY_LENGTH = 250
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000
MAX_EXPERIMENT_TAG_LENGTH = 20_000
MAX_EXPERIMENT_NAME_LENGTH = 500
MAX_LOCATION_LENGTH = 2048

_KEY = re.compile(r"[/\w.\- :]*")
_RUN_ID = re.compile(r"[a-zA-Z0-9][\w\-]{0,255}")
_MAX_DATASET_LENGTHS = {
    "name": 500,
    "digest": 36,
    "source": 65_535,
    "schema": 1_048_575,
    "profile": 16_777_215,
}


def invalid(name: str, value: Any, why: str = "") -> Invalid:
    """Return the error for a value that a parameter cannot have."""
    shown = json.dumps(value, sort_keys=True, separators=(",", ":"))
    end = f": {why}" if why else "."
    return Invalid(f"Invalid value {shown} for parameter '{name}' supplied{end}", field=name)


def check_key(name: str, path: str) -> None:
    """Raise Invalid unless `name` can be the name of a metric, a param or a tag."""
    if not _KEY.fullmatch(name):
        raise invalid(
            path,
            name,
            "Names may only contain alphanumerics, underscores (_), dashes (-), periods (.), "
            "spaces ( ), colon(:) and slashes (/).",
        )
    normalized = posixpath.normpath(name)
    if normalized != name or normalized == "." or normalized.startswith(("..", "/")):
        raise invalid(
            path,
            name,
            "Names may be treated as files in certain cases, and must not resolve to other names "
            f"when treated as such. This name would resolve to {normalized!r}",
        )


def check_length(field: str, value: str, limit: int) -> str:
    if len(value) > limit:
        raise Invalid(f"'{field}' exceeds the maximum length of {limit} characters", field=field)
    return value


def check_metrics(metrics: list[Metric], *, alone: bool = False) -> None:
    """Raise Invalid for the first metric that cannot be stored."""
    seen: set[str] = set()
    for index, metric in enumerate(metrics):
        path = "" if alone else f"metrics[{index}]."
        if metric.key not in seen:
            check_key(metric.key, f"{path}name")
            check_length("Metric name", metric.key, MAX_KEY_LENGTH)
            seen.add(metric.key)
        if metric.logged_at < 0:
            raise invalid(
                f"{path}timestamp",
                metric.logged_at,
                f"metric '{metric.key}' (value={metric.value}). "
                "Timestamp must be a nonnegative long (64-bit integer) ",
            )


def check_param(key: str, value: str, prefix: str = "") -> str:
    """Return the value of a param as it is stored: truncated if it is too long."""
    check_key(key, f"{prefix}key")
    check_length("Param key", key, MAX_KEY_LENGTH)
    return value[:MAX_PARAM_LENGTH]


def check_tag(key: str, value: str, prefix: str = "") -> str:
    """Return the value of a tag as it is stored: truncated if it is too long."""
    check_key(key, f"{prefix}key")
    check_length(f"{prefix}key", key, MAX_KEY_LENGTH)
    return value[:MAX_TAG_LENGTH]


def check_experiment_tag(key: str, value: str) -> None:
    check_key(key, "key")
    check_length("key", key, MAX_KEY_LENGTH)
    check_length("value", value, MAX_EXPERIMENT_TAG_LENGTH)


def check_experiment_name(name: str) -> str:
    if not name:
        raise Invalid(f"Invalid experiment name: '{name}'", field="name")
    return check_length("name", check_printable(name), MAX_EXPERIMENT_NAME_LENGTH)


def check_printable(name: str, field: str = "name") -> str:
    """Return a name, or raise Invalid if it has control characters such as line breaks."""
    if not name.isprintable():
        shown = ascii(name[:80])
        raise Invalid(f"{field}: {shown} contains characters that cannot be printed", field=field)
    return name


def check_run_id(run_id: str) -> str:
    if not _RUN_ID.fullmatch(run_id):
        raise invalid("run_id", run_id)
    return run_id


def check_batch(metrics: Collection[Any], params: Collection[Any], tags: Collection[Any]) -> None:
    total = len(metrics) + len(params) + len(tags)
    for items, count, limit in (
        ("metrics", len(metrics), MAX_METRICS_IN_BATCH),
        ("params", len(params), MAX_PAIRS_IN_BATCH),
        ("tags", len(tags), MAX_PAIRS_IN_BATCH),
        ("metrics, params, and tags", total, MAX_ITEMS_IN_BATCH),
    ):
        if count > limit:
            raise Invalid(
                f"A batch logging request can contain at most {limit} {items}. "
                f"Got {count} {items}. Please split up {items} across multiple requests "
                "and try again."
            )


def check_unique(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    repeated: list[str] = []
    for key in keys:
        if key in seen:
            repeated.append(key)
        seen.add(key)
    if repeated:
        raise Invalid(
            f"Duplicate parameter keys have been submitted: {repeated}. Please ensure the "
            "request contains only one param value per param key."
        )


def check_dataset(dataset: Dataset, tags: dict[str, str]) -> None:
    for name, limit in _MAX_DATASET_LENGTHS.items():
        value = getattr(dataset, "schema_" if name == "schema" else name)
        check_length(name, value or "", limit)
    for key, value in tags.items():
        check_length("key", key, 255)
        check_length("value", value, 500)
