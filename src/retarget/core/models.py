"""Logged models, registered models and their versions. Times are in milliseconds.

The messages are MLflow's.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from retarget.core.errors import Invalid
from retarget.core.limits import MAX_KEY_LENGTH, check_key, check_length, check_printable
from retarget.core.tracking import ACTIVE, Metric
from retarget.core.values import Value

REGISTRY = "registry"  # the folder of the artifact tree with the files of all versions
LATEST = "latest"  # the alias of the newest version
STAGES = ("None", "Staging", "Production", "Archived")
ACTIVE_STAGES = ["Staging", "Production"]
READY = "READY"

_MAX_NAME_LENGTH = 256
_MAX_ALIAS_LENGTH = 255
_MAX_TAG_VALUE_LENGTH = 100_000
_ALIAS = re.compile(r"[\w\-]*")
_VERSION_LIKE = re.compile(r"[vV]\d+")
_FORBIDDEN_IN_LOGGED_NAMES = ("/", ":", ".", "%", '"', "'")
_MAX_VERSION = (1 << 31) - 1


class LoggedModelStatus(StrEnum):
    UNSPECIFIED = "LOGGED_MODEL_STATUS_UNSPECIFIED"
    PENDING = "LOGGED_MODEL_PENDING"
    READY = "LOGGED_MODEL_READY"
    FAILED = "LOGGED_MODEL_UPLOAD_FAILED"


class ModelMetric(NamedTuple):
    """A point of a metric that a run logged about a model."""

    run_id: str
    metric: Metric


class LoggedModel(Value):
    """A model as a run logged it."""

    id: str
    experiment_id: str
    run_id: str | None = None
    job_id: str | None = None
    name: str
    type: str = ""
    status: LoggedModelStatus = LoggedModelStatus.PENDING
    message: str = ""
    stage: str = ACTIVE
    location: str
    created_at: int
    changed_at: int
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    metrics: tuple[ModelMetric, ...] = ()


class Lineage(Value):
    """Where a version came from, as it was at registration: all of it may be deleted since."""

    job_id: str | None = None
    job_name: str | None = None
    snapshot: str | None = None
    environment: str | None = None
    metrics: dict[str, float | str] = {}  # strings for what JSON has no number for: NaN, Infinity
    lock: str | None = None  # the id of the lock of the environment


class ModelVersion(Value):
    name: str
    version: int = 0  # 0 until the store assigns a number
    description: str = ""
    user: str = ""
    stage: str = "None"
    status: str = READY
    message: str = ""
    source: str
    location: str  # where its files are
    run_id: str = ""
    run_link: str = ""
    model_id: str | None = None
    created_at: int
    changed_at: int
    created_by_job: str | None = None  # the id of the job whose script created it
    lineage: Lineage = Lineage()
    tags: dict[str, str] = {}
    aliases: tuple[str, ...] = ()


class Model(Value):
    """A registered model."""

    name: str
    description: str = ""
    created_at: int
    changed_at: int
    tags: dict[str, str] = {}
    aliases: dict[str, int] = {}
    latest: tuple[ModelVersion, ...] = ()  # the newest version in each stage


class Registration(Value):
    """A request to register files of a job as a version."""

    job: str
    path: str
    description: str = ""
    tags: dict[str, str] = {}


def check_model_name(name: str, field: str = "name") -> str:
    """Return `name` if it is valid for a registered model, or raise Invalid."""
    if not name.strip():
        raise Invalid(f"Missing value for required parameter '{field}'.", field=field)
    if "/" in name or ":" in name:
        raise Invalid(f"Invalid model name '{name}'. Names cannot contain '/' or ':'.", field=field)
    if name == "." or name.startswith(".."):
        check_key(name, field)
    return check_length(field, check_printable(name, field), _MAX_NAME_LENGTH)


def check_version(version: str) -> int:
    """Return `version` as an integer, or raise Invalid. One that is too large becomes 0."""
    try:
        number = int(version)
    except ValueError:
        raise Invalid(
            f"Parameter 'version' must be an integer, got '{version}'.", field="version"
        ) from None
    return number if abs(number) <= _MAX_VERSION else 0


def check_stage(stage: str) -> str:
    """Return the stage in its usual spelling. `stage` may be in any case."""
    for known in STAGES:
        if known.lower() == stage.lower():
            return known
    raise Invalid(
        f"Invalid Model Version stage: {stage}. Value must be one of {', '.join(STAGES)}.",
        field="stage",
    )


def check_alias(alias: str) -> str:
    """Return `alias` if it is a valid name to look up, or raise Invalid."""
    if not alias:
        raise Invalid("Registered model alias name cannot be empty.", field="alias")
    if not _ALIAS.fullmatch(alias):
        raise Invalid(
            f"Invalid alias name: '{alias}'. Names may only contain alphanumerics, "
            "underscores (_), and dashes (-).",
            field="alias",
        )
    return check_length("Registered model alias name", alias, _MAX_ALIAS_LENGTH)


def check_new_alias(alias: str) -> str:
    """Return `alias` if it can be assigned, or raise Invalid."""
    check_alias(alias)
    if alias.lower() == LATEST:
        raise Invalid("'latest' alias name (case insensitive) is reserved.", field="alias")
    if _VERSION_LIKE.fullmatch(alias):
        raise Invalid(f"Version alias name '{alias}' is reserved.", field="alias")
    return alias


def check_model_tag(key: str, value: str) -> None:
    check_key(key, "key")
    check_length("key", key, MAX_KEY_LENGTH)
    check_length("value", value, _MAX_TAG_VALUE_LENGTH)


def check_logged_name(name: str) -> None:
    if any(character in name for character in _FORBIDDEN_IN_LOGGED_NAMES):
        raise Invalid(
            f"Invalid model name ({name!r}) provided. Model name must be a non-empty string "
            f"and cannot contain the following characters: {_FORBIDDEN_IN_LOGGED_NAMES}",
            field="name",
        )
