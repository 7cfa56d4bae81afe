"""The grammar of each of MLflow's searches: its attributes and the types of their values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class Kind(StrEnum):
    """What a name in a filter refers to."""

    ATTRIBUTE = "attribute"
    METRIC = "metric"
    PARAM = "parameter"
    TAG = "tag"
    PROPERTY = "property"
    DATASET = "dataset"


class ValueType(Enum):
    """What an attribute can be compared with."""

    STRING = "a string"
    STRINGS = "a string or a list of strings"
    NUMBER = "a number"
    INTEGER = "an integer, quoted or not"
    EXPERIMENT_ID = "an experiment id or a list of them"
    TIME = "a time, quoted: ISO 8601"


@dataclass(frozen=True)
class Grammar:
    """What one search supports."""

    kinds: Mapping[str, Kind]  # by the prefix before the dot
    attributes: Mapping[str, ValueType]
    order_attributes: frozenset[str]  # attributes that ORDER BY supports
    order_kinds: frozenset[Kind] = frozenset({Kind.ATTRIBUTE})
    nullable: frozenset[Kind] = frozenset()  # kinds that IS NULL supports
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    datasets: frozenset[str] = frozenset()
    allows_unquoted: bool = False  # strings need no quotes
    has_numeric_params: bool = False  # `params.lr > 0.1` compares numbers


_TAGS = {"tag": Kind.TAG, "tags": Kind.TAG}
_TAGGED = {"attribute": Kind.ATTRIBUTE, **_TAGS}

RUNS = Grammar(
    kinds={
        **dict.fromkeys(("metric", "metrics"), Kind.METRIC),
        **dict.fromkeys(("parameter", "parameters", "param", "params"), Kind.PARAM),
        **_TAGS,
        **dict.fromkeys(("attribute", "attributes", "attr", "run"), Kind.ATTRIBUTE),
        **dict.fromkeys(("dataset", "datasets"), Kind.DATASET),
    },
    attributes={
        "run_id": ValueType.STRINGS,
        "run_name": ValueType.STRING,
        "user_id": ValueType.STRING,
        "status": ValueType.STRING,
        "artifact_uri": ValueType.STRING,
        "start_time": ValueType.NUMBER,
        "end_time": ValueType.NUMBER,
    },
    order_attributes=frozenset(
        ("run_id", "run_name", "user_id", "status", "artifact_uri", "start_time", "end_time")
    ),
    order_kinds=frozenset({Kind.ATTRIBUTE, Kind.METRIC, Kind.PARAM, Kind.TAG}),
    nullable=frozenset({Kind.PARAM, Kind.TAG}),
    aliases={
        **dict.fromkeys(("created", "Created"), "start_time"),
        **dict.fromkeys(("run name", "Run name", "Run Name"), "run_name"),
    },
    datasets=frozenset({"name", "digest", "context"}),
)

_JOB_ATTRIBUTES = {
    **dict.fromkeys(("id", "name", "state", "target", "experiment", "reason"), ValueType.STRINGS),
    **dict.fromkeys(("display_name", "description"), ValueType.STRINGS),
    **dict.fromkeys(("exit_code", "priority", "took"), ValueType.NUMBER),
    **dict.fromkeys(("created_at", "started_at", "ended_at"), ValueType.TIME),
}

# of our own listing of jobs
JOBS = Grammar(
    kinds={
        **{prefix: kind for prefix, kind in RUNS.kinds.items() if kind != Kind.DATASET},
        **dict.fromkeys(("property", "properties"), Kind.PROPERTY),
    },
    attributes=_JOB_ATTRIBUTES,
    order_attributes=frozenset(_JOB_ATTRIBUTES),
    order_kinds=RUNS.order_kinds | {Kind.PROPERTY},
    nullable=RUNS.nullable | {Kind.PROPERTY},
    allows_unquoted=True,
    has_numeric_params=True,
)

EXPERIMENTS = Grammar(
    kinds=_TAGGED,
    attributes={
        "name": ValueType.STRING,
        "experiment_id": ValueType.EXPERIMENT_ID,
        "creation_time": ValueType.INTEGER,
        "last_update_time": ValueType.INTEGER,
    },
    order_attributes=frozenset(("name", "experiment_id", "creation_time", "last_update_time")),
    nullable=frozenset({Kind.TAG}),
)

MODELS = Grammar(
    kinds=_TAGGED,
    attributes={"name": ValueType.STRINGS},
    order_attributes=frozenset(("name", "last_updated_timestamp")),
    aliases={"timestamp": "last_updated_timestamp"},
)

VERSIONS = Grammar(
    kinds=_TAGGED,
    attributes={
        "name": ValueType.STRINGS,
        "run_id": ValueType.STRINGS,
        "source_path": ValueType.STRING,
        "version_number": ValueType.INTEGER,
    },
    order_attributes=frozenset(
        ("name", "version_number", "creation_timestamp", "last_updated_timestamp")
    ),
)

LOGGED_MODELS = Grammar(
    kinds={
        "attributes": Kind.ATTRIBUTE,
        "metrics": Kind.METRIC,
        "params": Kind.PARAM,
        "tags": Kind.TAG,
    },
    attributes={
        "creation_timestamp": ValueType.NUMBER,
        "last_updated_timestamp": ValueType.NUMBER,
        **dict.fromkeys(
            (
                "model_id",
                "name",
                "model_type",
                "status",
                "status_message",
                "source_run_id",
                "artifact_location",
            ),
            ValueType.STRINGS,
        ),
        "experiment_id": ValueType.EXPERIMENT_ID,
    },
    order_attributes=frozenset(
        (
            "model_id",
            "name",
            "model_type",
            "status",
            "source_run_id",
            "experiment_id",
            "creation_timestamp",
            "last_updated_timestamp",
        )
    ),
    order_kinds=frozenset({Kind.ATTRIBUTE, Kind.METRIC}),
    aliases={
        **dict.fromkeys(("creation_time", "creation_timestamp_ms"), "creation_timestamp"),
        "last_updated_timestamp_ms": "last_updated_timestamp",
    },
    allows_unquoted=True,
)
