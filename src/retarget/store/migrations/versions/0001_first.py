"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _jobs()
    _outputs()
    _secrets()
    _targets()
    _environments()
    _experiments()
    _runs()
    _metrics()
    _datasets()
    _logged_models()
    _registry()
    _servers()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("experiment", sa.String, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("snapshot", sa.String),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("preemptions", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
    )
    op.create_index("jobs_by_experiment", "jobs", ["experiment", "id"])
    op.create_index("jobs_by_experiment_and_state", "jobs", ["experiment", "state", "id"])
    op.create_index("jobs_by_state", "jobs", ["state", "id"])
    op.create_index("jobs_by_target", "jobs", ["target", "id"])
    op.create_index("jobs_by_target_and_state", "jobs", ["target", "state", "id"])
    op.create_index(
        "jobs_in_placing_order", "jobs", ["target", "state", sa.text("priority DESC"), "id"]
    )
    op.create_table(
        "history",
        sa.Column("job_id", sa.String, _of("jobs.id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_table(
        "attempts",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, _of("jobs.id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("handle", sa.String),
        sa.Column("allocations", sa.JSON, nullable=False),
        sa.Column("events_acked", sa.BigInteger, nullable=False),
        sa.Column("last_seen_at", sa.Double),
        sa.Column("resumes", sa.Integer, nullable=False),
        sa.Column("lost_after_seconds", sa.Double),
        sa.Column("exit_code", sa.Integer),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("launched_at", sa.Double),
        sa.Column("preparing_at", sa.Double),
        sa.Column("starting_at", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("first_output_at", sa.Double),
        sa.Column("exited_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.Column("lock", sa.String),
        sa.UniqueConstraint("job_id", "number"),
    )
    has_handle = sa.text("handle IS NOT NULL")
    op.create_index(
        "attempts_with_handle",
        "attempts",
        ["ended_at"],
        sqlite_where=has_handle,
        postgresql_where=has_handle,
    )
    op.create_table(
        "node_reports",
        sa.Column("key", sa.String, _of("attempts.key"), primary_key=True),
        sa.Column("node", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("events_acked", sa.BigInteger, nullable=False),
        sa.Column("last_seen_at", sa.Double, nullable=False),
        sa.Column("preparing", sa.Boolean, nullable=False),
        sa.Column("started", sa.Boolean, nullable=False),
        sa.Column("exited_at", sa.Double),
        sa.Column("finished", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("exit_code", sa.Integer),
    )


def _outputs() -> None:
    op.create_table(
        "outputs",
        sa.Column("job_id", sa.String, _of("jobs.id"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("path", sa.String, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )
    op.create_table(
        "kept_files",
        sa.Column("job_id", sa.String, _of("jobs.id"), primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("node", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("report", sa.String, nullable=False),
    )
    op.create_table(
        "track_files",
        sa.Column("attempt", sa.String, _of("attempts.key"), primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("processed_bytes", sa.BigInteger, nullable=False),
    )


def _secrets() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    op.create_table(
        "job_secrets",
        sa.Column("job_id", sa.String, _of("jobs.id"), primary_key=True),
        sa.Column("attempt", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("sealed", sa.String, nullable=False),
    )
    op.create_index("job_secrets_by_attempt", "job_secrets", ["attempt"])


def _targets() -> None:
    op.create_table(
        "targets",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("tags", sa.JSON, nullable=False, server_default=sa.text("'{}'")),
        sa.Column("inventory", sa.JSON),
        sa.Column("checked_at", sa.Double),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("placements", sa.Integer, nullable=False),
    )
    op.create_table(
        "nodes",
        sa.Column("target", sa.String, _of("targets.name"), primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("changed_at", sa.Double),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
        sa.Column("memory", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.JSON, nullable=False),
        sa.Column("unavailable", sa.String, nullable=False),
    )


def _environments() -> None:
    op.create_table(
        "environments",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "environment_names",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("versions", sa.Integer, nullable=False),
    )
    op.create_table(
        "environment_versions",
        sa.Column("name", sa.String, _of("environment_names.name"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String, _of("environments.digest"), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "locks",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.create_table(
        "environment_locks",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("platform", sa.String, primary_key=True),
        sa.Column("python", sa.String, primary_key=True),
        sa.Column("source", sa.String, primary_key=True),
        sa.Column("lock_id", sa.String, sa.ForeignKey("locks.id"), nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
    )


def _experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("location", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("created_by_job", sa.String),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "experiment_tags",
        sa.Column(
            "experiment_id",
            sa.Integer,
            _of("experiments.id"),
            primary_key=True,
            autoincrement=False,
        ),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "experiment_choices",
        sa.Column("attempt", sa.String, _of("attempts.key"), primary_key=True),
        sa.Column("experiment_id", sa.Integer, _of("experiments.id"), nullable=False),
    )
    op.execute(
        "INSERT INTO experiments (id, name, location, stage, created_at, changed_at) "
        "VALUES (0, 'Default', 'mlflow-artifacts:/0', 'active', 0, 0)"
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("experiment_id", sa.Integer, _of("experiments.id"), nullable=False),
        sa.Column("job_id", sa.String),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("location", sa.String, nullable=False),
    )
    op.create_index("runs_by_job", "runs", ["job_id"])
    op.create_index(
        "runs_by_start", "runs", ["experiment_id", "stage", sa.text("started_at DESC"), "id"]
    )
    op.create_table(
        "params",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_index(
        "params_by_value",
        "params",
        ["key", "value", "run_id"],
        postgresql_where=sa.text("length(value) <= 64"),
    )
    op.create_table(
        "tags",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_index(
        "tags_by_value",
        "tags",
        ["key", "value", "run_id"],
        postgresql_where=sa.text("length(value) <= 64"),
    )
    op.create_table(
        "properties",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_index(
        "properties_by_value",
        "properties",
        ["key", "value", "run_id"],
        postgresql_where=sa.text("length(value) <= 64"),
    )


def _metrics() -> None:
    op.create_table(
        "metrics",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, _of("runs.id"), nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("nan", sa.Boolean, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("logged_at", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("run_id", "key"),
    )
    op.create_index("metrics_by_value", "metrics", ["key", "nan", "value", "run_id"])
    op.create_table(
        "points",
        sa.Column(
            "metric_id", sa.Integer, _of("metrics.id"), primary_key=True, autoincrement=False
        ),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("logged_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("value", sa.Double, primary_key=True),
        sa.Column("nan", sa.Boolean, primary_key=True),
        sqlite_with_rowid=False,
    )


def _datasets() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("experiment_id", sa.Integer, _of("experiments.id"), nullable=False),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
        sa.Column("source_type", sa.String, nullable=False),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("schema", sa.String),
        sa.Column("profile", sa.String),
        sa.UniqueConstraint("experiment_id", "name", "digest"),
    )
    op.create_table(
        "run_datasets",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("dataset_id", sa.String, _of("datasets.id"), primary_key=True),
        sa.Column("number", sa.Integer, nullable=False),
    )
    op.create_table(
        "run_dataset_tags",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("dataset_id", sa.String, _of("datasets.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "artifacts",
        sa.Column("path", _path(), primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String, nullable=False),
    )


def _logged_models() -> None:
    op.create_table(
        "logged_models",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("experiment_id", sa.Integer, _of("experiments.id"), nullable=False),
        sa.Column("run_id", sa.String),
        sa.Column("job_id", sa.String),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("location", sa.String, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
    )
    op.create_index(
        "logged_models_by_experiment",
        "logged_models",
        ["experiment_id", sa.text("created_at DESC")],
    )
    op.create_table(
        "logged_model_params",
        sa.Column("model_id", sa.String, _of("logged_models.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "logged_model_tags",
        sa.Column("model_id", sa.String, _of("logged_models.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "logged_model_metrics",
        sa.Column("model_id", sa.String, _of("logged_models.id"), primary_key=True),
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("logged_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("nan", sa.Boolean, nullable=False),
        sa.Column("dataset_id", sa.String),
        sa.Column("dataset_name", sa.String),
        sa.Column("dataset_digest", sa.String),
    )
    op.create_table(
        "run_models",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("model_id", sa.String, primary_key=True),
        sa.Column("role", sa.String, primary_key=True),
        sa.Column("step", sa.BigInteger, nullable=False),
    )


def _registry() -> None:
    op.create_table(
        "models",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("description", sa.String, nullable=False),
        sa.Column("versions", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("created_by_job", sa.String),
    )
    op.create_table(
        "model_tags",
        sa.Column("name", sa.String, _of_model(), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "model_versions",
        sa.Column("name", sa.String, _of_model(), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("description", sa.String, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("message", sa.String, nullable=False),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("location", sa.String, nullable=False),
        sa.Column("run_id", sa.String, nullable=False),
        sa.Column("run_link", sa.String, nullable=False),
        sa.Column("model_id", sa.String),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        sa.Column("created_by_job", sa.String),
        sa.Column("job_id", sa.String),
        sa.Column("job_name", sa.String),
        sa.Column("snapshot", sa.String),
        sa.Column("environment", sa.String),
        sa.Column("metrics", sa.JSON, nullable=False),
        sa.Column("lock", sa.String),
    )
    op.create_table(
        "model_version_tags",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
        _of_version(),
    )
    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("alias", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        _of_version(),
    )


def _servers() -> None:
    op.create_table(
        "servers",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("incarnation", sa.String, nullable=False, unique=True),
        sa.Column("host", sa.String, nullable=False),
        sa.Column("host_name", sa.String, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("url", sa.String, nullable=False),
        sa.Column("version", sa.String, nullable=False),
        sa.Column("identity", sa.String, nullable=False),
        sa.Column("home", sa.String, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
    )
    op.create_table(
        "leases",
        sa.Column("target", sa.String, primary_key=True),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("holder", sa.String, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("host", sa.String),
    )
    op.create_table(
        "target_locks",
        sa.Column("target", sa.String, primary_key=True),
        sa.Column("server", sa.String, nullable=False),
        sa.Column("token", sa.String, nullable=False),
    )


def _path() -> sa.String:
    # sorted by bytes, as SQLite does: what is below a folder is one range
    return sa.String().with_variant(sa.String(collation="C"), "postgresql")


def _of(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")


def _of_model() -> sa.ForeignKey:
    return sa.ForeignKey("models.name", ondelete="CASCADE", onupdate="CASCADE")


def _of_version() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["name", "version"],
        ["model_versions.name", "model_versions.version"],
        ondelete="CASCADE",
        onupdate="CASCADE",
    )
