"""The tables. Every change here needs a migration in `migrations/versions`."""

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


def safe_text(value: str) -> str:
    """Return a string as `SafeText` stores it."""
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


class SafeText(TypeDecorator[str]):
    """Text that every database accepts. Text of a target or a client may hold what SQL refuses."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else safe_text(value)


class Path(SafeText):
    """Text that every database sorts by bytes, so that the paths below a folder are one range."""

    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        collation = "C" if dialect.name == "postgresql" else None
        return dialect.type_descriptor(String(collation=collation))


def _belongs_to(column: Column[Any]) -> ForeignKey:
    return ForeignKey(column, ondelete="CASCADE")


def _belongs_to_model() -> ForeignKey:
    return ForeignKey("models.name", ondelete="CASCADE", onupdate="CASCADE")


def _belongs_to_version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(
        ["name", "version"],
        ["model_versions.name", "model_versions.version"],
        ondelete="CASCADE",
        onupdate="CASCADE",
    )


def _by_value(name: str, table: Table) -> Index:
    # PostgreSQL refuses long values in an index
    short = func.length(table.c.value) <= MAX_INDEXED_LENGTH
    return Index(name, table.c.key, table.c.value, table.c.run_id, postgresql_where=short)


MAX_INDEXED_LENGTH = (
    64  # characters of a param or tag; on PostgreSQL, longer values are not in the index
)

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
    Column("id", SafeText, primary_key=True),
    Column("name", SafeText, nullable=False, unique=True),
    Column("state", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("version", Integer, nullable=False),
    Column("spec", JSON, nullable=False),
    # these four are also in the spec; as columns they can be searched
    Column("target", SafeText, nullable=False),
    Column("experiment", SafeText, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("snapshot", SafeText),
    Column("attempt", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("preemptions", Integer, nullable=False),
    Column("exit_code", Integer),
    Column("created_at", Double, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
)
# Every listing walks along one of these indexes, newest first, and none sorts.
Index("jobs_by_state", jobs.c.state, jobs.c.id)
Index("jobs_by_target", jobs.c.target, jobs.c.id)
Index("jobs_by_target_and_state", jobs.c.target, jobs.c.state, jobs.c.id)
Index("jobs_by_experiment", jobs.c.experiment, jobs.c.id)
Index("jobs_by_experiment_and_state", jobs.c.experiment, jobs.c.state, jobs.c.id)
Index("jobs_in_placing_order", jobs.c.target, jobs.c.state, jobs.c.priority.desc(), jobs.c.id)

history = Table(
    "history",
    metadata,
    Column("job_id", SafeText, ForeignKey(jobs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("event", SafeText, nullable=False),
    Column("state", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("at", Double, nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    Column("key", SafeText, primary_key=True),
    Column("job_id", SafeText, ForeignKey(jobs.c.id, ondelete="CASCADE"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("target", SafeText, nullable=False),
    Column("handle", SafeText),
    Column("allocations", JSON, nullable=False),
    Column("events_acked", BigInteger, nullable=False),
    Column("last_seen_at", Double),
    Column("resumes", Integer, nullable=False),
    Column("lost_after_seconds", Double),
    Column("exit_code", Integer),
    Column("reason", SafeText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("launched_at", Double),
    Column("preparing_at", Double),
    Column("starting_at", Double),
    Column("started_at", Double),
    Column("first_output_at", Double),
    Column("exited_at", Double),
    Column("ended_at", Double),
    Column("lock", SafeText),  # the id of the lock that it ran with
    UniqueConstraint("job_id", "number"),
)
# few attempts have a handle: live ones, and ended ones with something to clean up
Index(
    "attempts_with_handle",
    attempts.c.ended_at,
    sqlite_where=attempts.c.handle.is_not(None),
    postgresql_where=attempts.c.handle.is_not(None),
)

# The reports of each node of an attempt that has several.
node_reports = Table(
    "node_reports",
    metadata,
    Column("key", SafeText, ForeignKey(attempts.c.key, ondelete="CASCADE"), primary_key=True),
    Column("node", Integer, primary_key=True, autoincrement=False),
    Column("events_acked", BigInteger, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("preparing", Boolean, nullable=False),
    Column("started", Boolean, nullable=False),
    Column("exited_at", Double),
    Column("finished", Boolean, nullable=False),
    Column("outcome", SafeText, nullable=False),
    Column("reason", SafeText, nullable=False),
    Column("exit_code", Integer),
)

outputs = Table(
    "outputs",
    metadata,
    Column("job_id", SafeText, ForeignKey(jobs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("path", SafeText, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("digest", SafeText, nullable=False),
)

# what each node of an attempt wrote outside of outputs/, as JSON
kept_files = Table(
    "kept_files",
    metadata,
    Column("job_id", SafeText, _belongs_to(jobs.c.id), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("node", Integer, primary_key=True, autoincrement=False),
    Column("report", SafeText, nullable=False),
)

# values are encrypted: see control/sealing.py
secrets = Table(
    "secrets",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("sealed", SafeText, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

# the values of a job's own secrets, and those that an attempt has taken from `secrets`
job_secrets = Table(
    "job_secrets",
    metadata,
    Column("job_id", SafeText, _belongs_to(jobs.c.id), primary_key=True),
    Column("attempt", SafeText, primary_key=True),  # its key; empty: of the job itself
    Column("name", SafeText, primary_key=True),
    Column("sealed", SafeText, nullable=False),
)
Index("job_secrets_by_attempt", job_secrets.c.attempt)

targets = Table(
    "targets",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("kind", SafeText, nullable=False),
    Column("config", JSON, nullable=False),  # its secrets are encrypted
    Column("tags", JSON, nullable=False, server_default=text("'{}'")),
    Column("inventory", JSON(none_as_null=True)),
    Column("checked_at", Double),
    Column("reason", SafeText, nullable=False),
    # how many attempts were ever placed there; placing the next one names the count that it expects
    Column("placements", Integer, nullable=False, default=0),
)

nodes = Table(
    "nodes",  # of a target, as of its last check; `inventory` holds the rest
    metadata,
    Column("target", SafeText, ForeignKey(targets.c.name, ondelete="CASCADE"), primary_key=True),
    Column("name", SafeText, primary_key=True),
    Column("position", Integer, nullable=False),  # jobs are placed in this order
    Column("state", SafeText, nullable=False),
    Column("changed_at", Double),
    Column("type", SafeText, nullable=False),
    Column("cpus", Double, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("gpus", JSON, nullable=False),
    Column("unavailable", SafeText, nullable=False),
)

environments = Table(
    "environments",
    metadata,
    Column("digest", SafeText, primary_key=True),
    Column("definition", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
)

environment_names = Table(
    "environment_names",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("versions", Integer, nullable=False),  # how many were numbered
)

environment_versions = Table(
    "environment_versions",
    metadata,
    Column(
        "name",
        SafeText,
        ForeignKey(environment_names.c.name, ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column(
        "digest", SafeText, ForeignKey(environments.c.digest, ondelete="CASCADE"), nullable=False
    ),
    Column("created_at", Double, nullable=False),
)

locks = Table(
    "locks",
    metadata,
    Column("id", SafeText, primary_key=True),  # the digest of its content
    Column("content", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
)

# Not tied to `environments`: a lock outlives a definition that is removed and submitted again.
environment_locks = Table(
    "environment_locks",
    metadata,
    Column("digest", SafeText, primary_key=True),  # of the environment
    Column("platform", SafeText, primary_key=True),
    Column("python", SafeText, primary_key=True),
    Column("source", SafeText, primary_key=True),
    Column("lock_id", SafeText, ForeignKey(locks.c.id), nullable=False),
    Column("created_at", Double, nullable=False),
)

# Tracking. Times are integer milliseconds, as MLflow clients send them.

experiments = Table(
    "experiments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", SafeText, nullable=False, unique=True),
    Column("location", SafeText, nullable=False),
    Column("stage", SafeText, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("created_by_job", SafeText),  # the id of that job; NULL: a client outside a job
    sqlite_autoincrement=True,  # an id is never used again
)

experiment_tags = Table(
    "experiment_tags",
    metadata,
    Column(
        "experiment_id",
        Integer,
        _belongs_to(experiments.c.id),
        primary_key=True,
        autoincrement=False,
    ),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", SafeText, primary_key=True),  # the run of a job has the job's id
    Column("experiment_id", Integer, _belongs_to(experiments.c.id), nullable=False),
    Column(
        "job_id", SafeText
    ),  # the job that created it and may write to it; NULL: a client outside a job
    Column("name", SafeText, nullable=False),
    Column("user", SafeText, nullable=False),
    Column("status", SafeText, nullable=False),
    Column("stage", SafeText, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("deleted_at", BigInteger),
    Column("location", SafeText, nullable=False),
)
Index("runs_by_start", runs.c.experiment_id, runs.c.stage, runs.c.started_at.desc(), runs.c.id)
Index("runs_by_job", runs.c.job_id)

params = Table(
    "params",
    metadata,
    Column("run_id", SafeText, _belongs_to(runs.c.id), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)
_by_value("params_by_value", params)

tags = Table(
    "tags",
    metadata,
    Column("run_id", SafeText, _belongs_to(runs.c.id), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)
_by_value("tags_by_value", tags)

# of jobs; a row never changes
properties = Table(
    "properties",
    metadata,
    Column("run_id", SafeText, _belongs_to(runs.c.id), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)
_by_value("properties_by_value", properties)

# One row per metric of a run, with its latest point. All points are in `points`.
metrics = Table(
    "metrics",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", SafeText, _belongs_to(runs.c.id), nullable=False),
    Column("key", SafeText, nullable=False),
    Column("value", Double, nullable=False),
    Column("nan", Boolean, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("logged_at", BigInteger, nullable=False),
    UniqueConstraint("run_id", "key"),
)
Index("metrics_by_value", metrics.c.key, metrics.c.nan, metrics.c.value, metrics.c.run_id)

# All columns are the key, so a batch that is sent twice changes nothing.
points = Table(
    "points",
    metadata,
    Column("metric_id", Integer, _belongs_to(metrics.c.id), primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("logged_at", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, primary_key=True),
    Column("nan", Boolean, primary_key=True),  # then the value is 0: SQL cannot compare NaN
    sqlite_with_rowid=False,
)

# How many bytes of each file of `retarget.track` have been processed.
track_files = Table(
    "track_files",
    metadata,
    Column("attempt", SafeText, _belongs_to(attempts.c.key), primary_key=True),
    Column("name", SafeText, primary_key=True),
    Column("processed_bytes", BigInteger, nullable=False),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("experiment_id", Integer, _belongs_to(experiments.c.id), nullable=False),
    Column("name", SafeText, nullable=False),
    Column("digest", SafeText, nullable=False),
    Column("source_type", SafeText, nullable=False),
    Column("source", SafeText, nullable=False),
    Column("schema", SafeText),
    Column("profile", SafeText),
    UniqueConstraint("experiment_id", "name", "digest"),
)

run_datasets = Table(
    "run_datasets",
    metadata,
    Column("run_id", SafeText, _belongs_to(runs.c.id), primary_key=True),
    Column("dataset_id", SafeText, _belongs_to(datasets.c.id), primary_key=True),
    Column(
        "number", Integer, nullable=False
    ),  # datasets are shown in the order in which they were logged
)

run_dataset_tags = Table(
    "run_dataset_tags",
    metadata,
    Column("run_id", SafeText, _belongs_to(runs.c.id), primary_key=True),
    Column("dataset_id", SafeText, _belongs_to(datasets.c.id), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)

# The files of the tree that MLflow clients know as mlflow-artifacts:/
artifacts = Table(
    "artifacts",
    metadata,
    Column("path", Path, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("digest", SafeText, nullable=False),
)

# Models as a run logged them (MLflow's logged models).
logged_models = Table(
    "logged_models",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("experiment_id", Integer, _belongs_to(experiments.c.id), nullable=False),
    Column("run_id", SafeText),  # the run that created it, which may be deleted
    Column("job_id", SafeText),  # the job that created it and may write to it
    Column("name", SafeText, nullable=False),
    Column("type", SafeText, nullable=False),
    Column("status", SafeText, nullable=False),
    Column("message", SafeText, nullable=False),
    Column("stage", SafeText, nullable=False),
    Column("location", SafeText, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
)
Index(
    "logged_models_by_experiment", logged_models.c.experiment_id, logged_models.c.created_at.desc()
)

logged_model_params = Table(
    "logged_model_params",
    metadata,
    Column("model_id", SafeText, _belongs_to(logged_models.c.id), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)

logged_model_tags = Table(
    "logged_model_tags",
    metadata,
    Column("model_id", SafeText, _belongs_to(logged_models.c.id), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)

logged_model_metrics = Table(
    "logged_model_metrics",
    metadata,
    Column("model_id", SafeText, _belongs_to(logged_models.c.id), primary_key=True),
    Column("run_id", SafeText, primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("logged_at", BigInteger, primary_key=True, autoincrement=False),
    Column("value", Double, nullable=False),
    Column("nan", Boolean, nullable=False),
    Column("dataset_id", SafeText),
    Column("dataset_name", SafeText),
    Column("dataset_digest", SafeText),
)

# The logged models that a run used as input, and those that it created.
run_models = Table(
    "run_models",
    metadata,
    Column("run_id", SafeText, _belongs_to(runs.c.id), primary_key=True),
    Column("model_id", SafeText, primary_key=True),
    Column("role", SafeText, primary_key=True),  # input or output
    Column("step", BigInteger, nullable=False),
)

# The registry: models by name, their versions, and the origin of each version.
models = Table(
    "models",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("description", SafeText, nullable=False),
    Column("versions", Integer, nullable=False),  # how many were ever created
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("created_by_job", SafeText),  # as for experiments
)

model_tags = Table(
    "model_tags",
    metadata,
    Column("name", SafeText, _belongs_to_model(), primary_key=True),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("name", SafeText, _belongs_to_model(), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("description", SafeText, nullable=False),
    Column("user", SafeText, nullable=False),
    Column("stage", SafeText, nullable=False),
    Column("status", SafeText, nullable=False),
    Column("message", SafeText, nullable=False),
    Column("source", SafeText, nullable=False),
    Column("location", SafeText, nullable=False),  # the address of its files
    Column("run_id", SafeText, nullable=False),
    Column("run_link", SafeText, nullable=False),
    Column("model_id", SafeText),  # of the logged model
    Column("created_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Column("created_by_job", SafeText),  # as for experiments
    # its origin, copied because the job may be deleted later
    Column("job_id", SafeText),
    Column("job_name", SafeText),
    Column("snapshot", SafeText),
    Column("environment", SafeText),
    Column("metrics", JSON, nullable=False),
    Column("lock", SafeText),
)

model_version_tags = Table(
    "model_version_tags",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("key", SafeText, primary_key=True),
    Column("value", SafeText, nullable=False),
    _belongs_to_version(),
)

model_aliases = Table(
    "model_aliases",
    metadata,
    Column("name", SafeText, primary_key=True),
    Column("alias", SafeText, primary_key=True),
    Column("version", Integer, nullable=False),
    _belongs_to_version(),
)

# The servers that use this database. A row that has expired may be removed by any other server;
# it never expires on SQLite, which one server uses at a time.
servers = Table(
    "servers",
    metadata,
    Column("id", SafeText, primary_key=True),
    Column("incarnation", SafeText, nullable=False, unique=True),
    Column("host", SafeText, nullable=False),
    Column("host_name", SafeText, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("url", SafeText, nullable=False),
    Column("version", SafeText, nullable=False),
    Column("identity", SafeText, nullable=False),  # of home and secret
    Column("home", SafeText, nullable=False),
    Column("started_at", Double, nullable=False),  # these two by the clock of the database
    Column("expires_at", Double),
)

# Which server looks after a target. The row stays when the target is detached: its epoch must not
# be used again. A lease is free if no server has its incarnation.
leases = Table(
    "leases",
    metadata,
    Column("target", SafeText, primary_key=True),
    Column("server", SafeText, nullable=False),  # its incarnation
    Column("holder", SafeText, nullable=False),  # its id
    Column("epoch", BigInteger, nullable=False),
    Column("host", SafeText),  # the only machine whose servers may have it
)

# Targets that are being attached, changed or detached.
target_locks = Table(
    "target_locks",
    metadata,
    Column("target", SafeText, primary_key=True),
    Column("server", SafeText, nullable=False),  # its incarnation
    Column("token", SafeText, nullable=False),
)

# The experiment that a script requested by name last, until its next search or run.
experiment_choices = Table(
    "experiment_choices",
    metadata,
    Column("attempt", SafeText, _belongs_to(attempts.c.key), primary_key=True),
    Column("experiment_id", Integer, _belongs_to(experiments.c.id), nullable=False),
)
