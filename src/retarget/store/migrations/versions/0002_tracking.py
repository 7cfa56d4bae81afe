"""Tracking: experiments, runs, metrics, artifacts, models. Every existing job gets a run."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    _experiments()
    _runs()
    _datasets()
    _logged_models()
    _registry()
    _jobs_as_runs()


def _experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String, nullable=False, unique=True),
        sa.Column("location", sa.String, nullable=False),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
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
        sa.Column("started", sa.BigInteger),
        sa.Column("ended", sa.BigInteger),
        sa.Column("deleted", sa.BigInteger),
        sa.Column("location", sa.String, nullable=False),
    )
    op.create_index("runs_by_job", "runs", ["job_id"])
    op.create_index(
        "runs_by_start", "runs", ["experiment_id", "stage", sa.text("started DESC"), "id"]
    )
    op.create_table(
        "params",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "tags",
        sa.Column("run_id", sa.String, _of("runs.id"), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "metrics",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String, _of("runs.id"), nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("value", sa.Double, nullable=False),
        sa.Column("nan", sa.Boolean, nullable=False),
        sa.Column("step", sa.BigInteger, nullable=False),
        sa.Column("timestamp", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("run_id", "key"),
    )
    op.create_index("metrics_by_value", "metrics", ["key", "nan", "value", "run_id"])
    for table in ("params", "tags"):
        op.create_index(
            f"{table}_by_value",
            table,
            ["key", "value", "run_id"],
            postgresql_where=sa.text("length(value) <= 64"),
        )
    op.create_table(
        "points",
        sa.Column(
            "metric_id", sa.Integer, _of("metrics.id"), primary_key=True, autoincrement=False
        ),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("timestamp", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("value", sa.Double, primary_key=True),
        sa.Column("nan", sa.Boolean, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "track_files",
        sa.Column("attempt", sa.String, _of("attempts.key"), primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("taken", sa.BigInteger, nullable=False),
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
        # by its bytes, as SQLite sorts too: what is below a folder is one range
        sa.Column(
            "path",
            sa.String().with_variant(sa.String(collation="C"), "postgresql"),
            primary_key=True,
        ),
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
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_index(
        "logged_models_by_experiment", "logged_models", ["experiment_id", sa.text("created DESC")]
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
        sa.Column("timestamp", sa.BigInteger, primary_key=True, autoincrement=False),
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
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "model_tags",
        sa.Column("name", sa.String, _model(), primary_key=True),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
    )
    op.create_table(
        "model_versions",
        sa.Column("name", sa.String, _model(), primary_key=True),
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
        sa.Column("created", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("job_id", sa.String),
        sa.Column("job_name", sa.String),
        sa.Column("snapshot", sa.String),
        sa.Column("environment", sa.String),
        sa.Column("metrics", sa.JSON, nullable=False),
    )
    op.create_table(
        "model_version_tags",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.String, nullable=False),
        _version(),
    )
    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("alias", sa.String, primary_key=True),
        sa.Column("version", sa.Integer, nullable=False),
        _version(),
    )


def _jobs_as_runs() -> None:
    op.execute(
        "INSERT INTO experiments (id, name, location, stage, created, changed) "
        "VALUES (0, 'Default', 'mlflow-artifacts:/0', 'active', 0, 0)"
    )
    op.execute(
        "INSERT INTO experiments (name, location, stage, created, changed) "
        "SELECT experiment, '', 'active', CAST(1000 * min(created) AS BIGINT), "
        "CAST(1000 * min(created) AS BIGINT) FROM jobs WHERE experiment <> 'Default' "
        "GROUP BY experiment"
    )
    op.execute("UPDATE experiments SET location = 'mlflow-artifacts:/' || id WHERE location = ''")
    op.execute(
        'INSERT INTO runs (id, experiment_id, job_id, name, "user", status, stage, started, ended, '
        "location) SELECT jobs.id, experiments.id, jobs.id, jobs.name, '', "
        "CASE jobs.state WHEN 'succeeded' THEN 'FINISHED' WHEN 'failed' THEN 'FAILED' "
        "WHEN 'canceled' THEN 'KILLED' WHEN 'running' THEN 'RUNNING' ELSE 'SCHEDULED' END, "
        "'active', CAST(1000 * coalesce(jobs.started, jobs.created) AS BIGINT), "
        "CAST(1000 * jobs.ended AS BIGINT), "
        "experiments.location || '/' || jobs.id || '/artifacts' "
        "FROM jobs JOIN experiments ON experiments.name = jobs.experiment"
    )


def _of(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")


def _model() -> sa.ForeignKey:
    return sa.ForeignKey("models.name", ondelete="CASCADE", onupdate="CASCADE")


def _version() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["name", "version"],
        ["model_versions.name", "model_versions.version"],
        ondelete="CASCADE",
        onupdate="CASCADE",
    )
