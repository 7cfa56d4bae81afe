"""Models: as runs log them, and the registry with its versions. Times are in milliseconds.

The messages are those that MLflow's users know.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from retarget.core.errors import Invalid
from retarget.core.limits import LONGEST_KEY, check_key, check_length, check_shown
from retarget.core.tracking import ACTIVE, Metric
from retarget.core.values import Value

REGISTRY = "registry"  # the folder of the artifact tree with the files of versions
LATEST = "latest"  # what stands for the newest version where an alias could stand
STAGES = ("None", "Staging", "Production", "Archived")
ACTIVE_STAGES = ["Staging", "Production"]
READY = "READY"

_LONGEST_NAME = 256
_LONGEST_ALIAS = 255
_LONGEST_TAG = 100_000
_ALIAS = re.compile(r"[\w\-]*")
_LIKE_A_VERSION = re.compile(r"[vV]\d+")
_NOT_IN_LOGGED_NAMES = ("/", ":", ".", "%", '"', "'")
_LARGEST = (1 << 31) - 1


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
    created: int
    changed: int
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    metrics: tuple[ModelMetric, ...] = ()


class Lineage(Value):
    """What a version came from, as it was then: all of it may be gone."""

    job_id: str | None = None
    job_name: str | None = None
    snapshot: str | None = None
    environment: str | None = None
    metrics: dict[str, float | str] = {}  # what JSON cannot write is text: NaN, Infinity


class ModelVersion(Value):
    name: str
    version: int = 0  # 0 until the store has numbered it
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
    created: int
    changed: int
    lineage: Lineage = Lineage()
    tags: dict[str, str] = {}
    aliases: tuple[str, ...] = ()


class Model(Value):
    """A registered model."""

    name: str
    description: str = ""
    created: int
    changed: int
    tags: dict[str, str] = {}
    aliases: dict[str, int] = {}
    latest: tuple[ModelVersion, ...] = ()  # the newest version in each stage


class Registration(Value):
    """What a job left and is to become a version."""

    job: str
    path: str
    description: str = ""
    tags: dict[str, str] = {}


def check_model_name(name: str, field: str = "name") -> str:
    """Return `name` if a registered model can have it, or raise Invalid."""
    if not name.strip():
        raise Invalid(f"Missing value for required parameter '{field}'.", field=field)
    if "/" in name or ":" in name:
        raise Invalid(f"Invalid model name '{name}'. Names cannot contain '/' or ':'.", field=field)
    if name == "." or name.startswith(".."):
        check_key(name, field)
    return check_length(field, check_shown(name, field), _LONGEST_NAME)


def check_version(version: str) -> int:
    """Return the number that `version` is, or raise Invalid. No version has the number 0."""
    try:
        number = int(version)
    except ValueError:
        raise Invalid(
            f"Parameter 'version' must be an integer, got '{version}'.", field="version"
        ) from None
    return number if abs(number) <= _LARGEST else 0


def check_stage(stage: str) -> str:
    """Return the stage as it is written, whatever its case is here."""
    for known in STAGES:
        if known.lower() == stage.lower():
            return known
    raise Invalid(
        f"Invalid Model Version stage: {stage}. Value must be one of {', '.join(STAGES)}.",
        field="stage",
    )


def check_alias(alias: str) -> str:
    """Return `alias` if it can be asked for, or raise Invalid."""
    if not alias:
        raise Invalid("Registered model alias name cannot be empty.", field="alias")
    if not _ALIAS.fullmatch(alias):
        raise Invalid(
            f"Invalid alias name: '{alias}'. Names may only contain alphanumerics, "
            "underscores (_), and dashes (-).",
            field="alias",
        )
    return check_length("Registered model alias name", alias, _LONGEST_ALIAS)


def check_new_alias(alias: str) -> str:
    """Return `alias` if it can be given, or raise Invalid."""
    check_alias(alias)
    if alias.lower() == LATEST:
        raise Invalid("'latest' alias name (case insensitive) is reserved.", field="alias")
    if _LIKE_A_VERSION.fullmatch(alias):
        raise Invalid(f"Version alias name '{alias}' is reserved.", field="alias")
    return alias


def check_model_tag(key: str, value: str) -> None:
    check_key(key, "key")
    check_length("key", key, LONGEST_KEY)
    check_length("value", value, _LONGEST_TAG)


def check_logged_name(name: str) -> None:
    if any(each in name for each in _NOT_IN_LOGGED_NAMES):
        raise Invalid(
            f"Invalid model name ({name!r}) provided. Model name must be a non-empty string "
            f"and cannot contain the following characters: {_NOT_IN_LOGGED_NAMES}",
            field="name",
        )
