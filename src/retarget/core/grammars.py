"""What each of MLflow's searches understands: its attributes, and what they are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum


class Kind(StrEnum):
    """What a name in a filter stands for."""

    ATTRIBUTE = "attribute"
    METRIC = "metric"
    PARAM = "parameter"
    TAG = "tag"
    DATASET = "dataset"


class Sort(Enum):
    """What an attribute is compared with."""

    TEXT = "text"
    LISTED = "text, or a list of them"
    NUMBER = "a number"
    WHOLE = "a whole number, quoted or not"
    ID = "the id of an experiment, or a list of them"


@dataclass(frozen=True)
class Grammar:
    """What one of the searches understands."""

    kinds: Mapping[str, Kind]  # what may stand before the dot
    attributes: Mapping[str, Sort]
    orders: frozenset[str]  # the attributes to order by
    order_kinds: frozenset[Kind] = frozenset({Kind.ATTRIBUTE})
    nullable: frozenset[Kind] = frozenset()  # what IS NULL may be asked of
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    datasets: frozenset[str] = frozenset()
    bare: bool = False  # text may stand without quotes


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
        "run_id": Sort.LISTED,
        "run_name": Sort.TEXT,
        "user_id": Sort.TEXT,
        "status": Sort.TEXT,
        "artifact_uri": Sort.TEXT,
        "start_time": Sort.NUMBER,
        "end_time": Sort.NUMBER,
    },
    orders=frozenset(
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

EXPERIMENTS = Grammar(
    kinds=_TAGGED,
    attributes={
        "name": Sort.TEXT,
        "experiment_id": Sort.ID,
        "creation_time": Sort.WHOLE,
        "last_update_time": Sort.WHOLE,
    },
    orders=frozenset(("name", "experiment_id", "creation_time", "last_update_time")),
    nullable=frozenset({Kind.TAG}),
)

MODELS = Grammar(
    kinds=_TAGGED,
    attributes={"name": Sort.LISTED},
    orders=frozenset(("name", "last_updated_timestamp")),
    aliases={"timestamp": "last_updated_timestamp"},
)

VERSIONS = Grammar(
    kinds=_TAGGED,
    attributes={
        "name": Sort.LISTED,
        "run_id": Sort.LISTED,
        "source_path": Sort.TEXT,
        "version_number": Sort.WHOLE,
    },
    orders=frozenset(("name", "version_number", "creation_timestamp", "last_updated_timestamp")),
)

LOGGED_MODELS = Grammar(
    kinds={
        "attributes": Kind.ATTRIBUTE,
        "metrics": Kind.METRIC,
        "params": Kind.PARAM,
        "tags": Kind.TAG,
    },
    attributes={
        "creation_timestamp": Sort.NUMBER,
        "last_updated_timestamp": Sort.NUMBER,
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
            Sort.LISTED,
        ),
        "experiment_id": Sort.ID,
    },
    orders=frozenset(
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
    bare=True,
)
