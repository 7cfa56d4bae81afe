"""The tables. A change here needs a migration beside it in `migrations/versions`."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.types import TypeEngine


class Words(TypeDecorator[str]):
    """Text that any database takes: what a target or a client said may hold what SQL refuses."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class Path(Words):
    """Text in the order of its bytes everywhere: what is below a folder is one range of it."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(String(collation=collation))


def _of(column: Column[Any]) -> ForeignKey:
    return ForeignKey(column, ondelete="CASCADE")


def _model() -> ForeignKey:
    return ForeignKey("models.name", ondelete="CASCADE", onupdate="CASCADE")


def _version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["name", "version"],
        ["model_versions.name", "model_versions.version"],
        ondelete="CASCADE",
        onupdate="CASCADE",
    )


def _by_value(name: str, table: Table) -> Index:
    # PostgreSQL refuses long values in an index
    short = func.length(table.c.value) <= SHORT
    return Index(name, table.c.key, table.c.value, table.c.run_id, postgresql_where=short)


SHORT = 64  # characters of a param or a tag that is searched for by an index on PostgreSQL too

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", Words, primary_key=True),
    Column("name", Words, nullable=False, unique=True),
    Column("state", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("version", Integer, nullable=False),
    Column("spec", JSON, nullable=False),
    # these four are in the spec too; here they can be searched
    Column("target", Words, nullable=False),
    Column("experiment", Words, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("snapshot", Words),
    Column("attempt", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("created", Double, nullable=False),
    Column("changed", Double, nullable=False),
    Column("started", Double),
    Column("ended", Double),
)
# Every listing is a walk along one of these, newest first; none of them sorts.
Index("jobs_by_state", jobs.c.state, jobs.c.id)
Index("jobs_by_target", jobs.c.target, jobs.c.id)
Index("jobs_by_target_and_state", jobs.c.target, jobs.c.state, jobs.c.id)
Index("jobs_by_experiment", jobs.c.experiment, jobs.c.id)
Index("jobs_by_experiment_and_state", jobs.c.experiment, jobs.c.state, jobs.c.id)
Index("jobs_in_placing_order", jobs.c.target, jobs.c.state, jobs.c.priority.desc(), jobs.c.id)

history = Table(
    "history",
    metadata,
    Column("job_id", Words, ForeignKey(jobs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("event", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("at", Double, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("key", Words, primary_key=True),
    Column("job_id", Words, ForeignKey(jobs.c.id, ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("target", Words, nullable=False),
    Column("handle", Words),
    Column("shares", JSON, nullable=False),
    Column("confirmed", BigInteger, nullable=False),
    Column("heard", Double),
    Column("resumes", Integer, nullable=False),
    Column("fence", Double),
    Column("exit_code", Integer),
    Column("reason", Words, nullable=False),
    Column("created", Double, nullable=False),
    Column("launched", Double),
    Column("preparing", Double),
    Column("starting", Double),
    Column("started", Double),
    Column("output", Double),
    Column("exited", Double),
    Column("ended", Double),
    UniqueConstraint("job_id", "number"),
)
# few have a handle: those that are live, and those with something to clear away
Index(
    "attempts_with_handle",
    attempts.c.ended,
    sqlite_where=attempts.c.handle.is_not(None),
    postgresql_where=attempts.c.handle.is_not(None),
)

# What is heard of each node of an attempt that has several.
members = Table(
    "members",
    metadata,
    Column("key", Words, ForeignKey(attempts.c.key, ondelete="CASCADE"), primary_key=True),
    Column("node", Integer, primary_key=True, autoincrement=False),
    Column("confirmed", BigInteger, nullable=False),
    Column("heard", Double, nullable=False),
    Column("preparing", Boolean, nullable=False),
    Column("started", Boolean, nullable=False),
    Column("exited", Double),
    Column("finished", Boolean, nullable=False),
    Column("outcome", Words, nullable=False),
    Column("reason", Words, nullable=False),
    Column("exit_code", Integer),
)

outputs = Table(
    "outputs",
    metadata,
    Column("job_id", Words, ForeignKey(jobs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("path", Words, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("digest", Words, nullable=False),
)

targets = Table(
    "targets",
    metadata,
    Column("name", Words, primary_key=True),
    Column("kind", Words, nullable=False),
    Column("config", JSON, nullable=False),  # what is secret in it is encrypted
    Column("tags", JSON, nullable=False, server_default=text("'{}'")),
    Column("facts", JSON(none_as_null=True)),
    Column("checked", Double),
    Column("reason", Words, nullable=False),
    # how many attempts were ever placed there: who places the next one names the number it saw
    Column("placements", Integer, nullable=False, default=0),
)

environments = Table(
    "environments",
    metadata,
    Column("digest", Words, primary_key=True),
    Column("definition", JSON, nullable=False),
    Column("created", Double, nullable=False),
)

environment_names = Table(
    "environment_names",
    metadata,
    Column("name", Words, primary_key=True),
    Column("digest", Words, ForeignKey(environments.c.digest, ondelete="CASCADE"), nullable=False),
)

# -- tracking. Times are whole milliseconds, as MLflow's clients send them.

experiments = Table(
    "experiments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Words, nullable=False, unique=True),
    Column("location", Words, nullable=False),
    Column("stage", Words, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    sqlite_autoincrement=True,  # the id of one that is gone is never another's
)

experiment_tags = Table(
    "experiment_tags",
    metadata,
    Column("experiment_id", Integer, _of(experiments.c.id), primary_key=True, autoincrement=False),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Words, primary_key=True),  # a job's own run has the job's id
    Column("experiment_id", Integer, _of(experiments.c.id), nullable=False),
    Column("job_id", Words),  # the job that made it and may write to it; none: a client outside
    Column("name", Words, nullable=False),
    Column("user", Words, nullable=False),
    Column("status", Words, nullable=False),
    Column("stage", Words, nullable=False),
    Column("started", BigInteger),
    Column("ended", BigInteger),
    Column("deleted", BigInteger),
    Column("location", Words, nullable=False),
)
Index("runs_by_start", runs.c.experiment_id, runs.c.stage, runs.c.started.desc(), runs.c.id)
Index("runs_by_job", runs.c.job_id)

params = Table(
    "params",
    metadata,
    Column("run_id", Words, _of(runs.c.id), primary_key=True),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)
_by_value("params_by_value", params)

tags = Table(
    "tags",
    metadata,
    Column("run_id", Words, _of(runs.c.id), primary_key=True),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)
_by_value("tags_by_value", tags)

# One row for each metric of a run, with its latest point; all its points are in `points`.
metrics = Table(
    "metrics",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Words, _of(runs.c.id), nullable=False),
    Column("key", Words, nullable=False),
    Column("value", Double, nullable=False),
    Column("nan", Boolean, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("timestamp", BigInteger, nullable=False),
    UniqueConstraint("run_id", "key"),
)
Index("metrics_by_value", metrics.c.key, metrics.c.nan, metrics.c.value, metrics.c.run_id)

# All columns are the key: a batch that is sent twice changes nothing.
points = Table(
    "points",
    metadata,
    Column("metric_id", Integer, _of(metrics.c.id), primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("timestamp", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, primary_key=True),
    Column("nan", Boolean, primary_key=True),  # then the value is 0: SQL has no NaN that compares
    sqlite_with_rowid=False,
)

# How much of each file that `retarget.track` writes has been taken in.
track_files = Table(
    "track_files",
    metadata,
    Column("attempt", Words, _of(attempts.c.key), primary_key=True),
    Column("name", Words, primary_key=True),
    Column("taken", BigInteger, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Words, primary_key=True),
    Column("experiment_id", Integer, _of(experiments.c.id), nullable=False),
    Column("name", Words, nullable=False),
    Column("digest", Words, nullable=False),
    Column("source_type", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("schema", Words),
    Column("profile", Words),
    UniqueConstraint("experiment_id", "name", "digest"),
)

run_datasets = Table(
    "run_datasets",
    metadata,
    Column("run_id", Words, _of(runs.c.id), primary_key=True),
    Column("dataset_id", Words, _of(datasets.c.id), primary_key=True),
    Column("number", Integer, nullable=False),  # they are shown in the order they were logged in
)

run_dataset_tags = Table(
    "run_dataset_tags",
    metadata,
    Column("run_id", Words, _of(runs.c.id), primary_key=True),
    Column("dataset_id", Words, _of(datasets.c.id), primary_key=True),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

# A file in the tree that MLflow's clients know as mlflow-artifacts:/
artifacts = Table(
    "artifacts",
    metadata,
    Column("path", Path, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("digest", Words, nullable=False),
)

# Models as a run logged them (MLflow: logged models).
logged_models = Table(
    "logged_models",
    metadata,
    Column("id", Words, primary_key=True),
    Column("experiment_id", Integer, _of(experiments.c.id), nullable=False),
    Column("run_id", Words),  # the run that made it; it may be gone
    Column("job_id", Words),  # the job that made it and may write to it
    Column("name", Words, nullable=False),
    Column("type", Words, nullable=False),
    Column("status", Words, nullable=False),
    Column("message", Words, nullable=False),
    Column("stage", Words, nullable=False),
    Column("location", Words, nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)
Index("logged_models_by_experiment", logged_models.c.experiment_id, logged_models.c.created.desc())

logged_model_params = Table(
    "logged_model_params",
    metadata,
    Column("model_id", Words, _of(logged_models.c.id), primary_key=True),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

logged_model_tags = Table(
    "logged_model_tags",
    metadata,
    Column("model_id", Words, _of(logged_models.c.id), primary_key=True),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

logged_model_metrics = Table(
    "logged_model_metrics",
    metadata,
    Column("model_id", Words, _of(logged_models.c.id), primary_key=True),
    Column("run_id", Words, primary_key=True),
    Column("key", Words, primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("timestamp", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
    Column("nan", Boolean, nullable=False),
    Column("dataset_id", Words),
    Column("dataset_name", Words),
    Column("dataset_digest", Words),
)

# Which logged models a run was given, and which it made.
run_models = Table(
    "run_models",
    metadata,
    Column("run_id", Words, _of(runs.c.id), primary_key=True),
    Column("model_id", Words, primary_key=True),
    Column("role", Words, primary_key=True),  # input or output
    Column("step", BigInteger, nullable=False),
)

# The registry: models by name, their versions, and where each came from.
models = Table(
    "models",
    metadata,
    Column("name", Words, primary_key=True),
    Column("description", Words, nullable=False),
    Column("versions", Integer, nullable=False),  # how many there ever were
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
)

model_tags = Table(
    "model_tags",
    metadata,
    Column("name", Words, _model(), primary_key=True),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("name", Words, _model(), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("description", Words, nullable=False),
    Column("user", Words, nullable=False),
    Column("stage", Words, nullable=False),
    Column("status", Words, nullable=False),
    Column("message", Words, nullable=False),
    Column("source", Words, nullable=False),
    Column("location", Words, nullable=False),  # where its files are
    Column("run_id", Words, nullable=False),
    Column("run_link", Words, nullable=False),
    Column("model_id", Words),  # of the logged model
    Column("created", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),
    # what it came from, as it was then: the job may be deleted
    Column("job_id", Words),
    Column("job_name", Words),
    Column("snapshot", Words),
    Column("environment", Words),
    Column("metrics", JSON, nullable=False),
)

model_version_tags = Table(
    "model_version_tags",
    metadata,
    Column("name", Words, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("key", Words, primary_key=True),
    Column("value", Words, nullable=False),
    _version(),
)

model_aliases = Table(
    "model_aliases",
    metadata,
    Column("name", Words, primary_key=True),
    Column("alias", Words, primary_key=True),
    Column("version", Integer, nullable=False),
    _version(),
)
