"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _jobs()
    _history()
    _attempts()
    _outputs()
    _targets()
    _environments()


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
        sa.Column("exit_code", sa.Integer),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("changed", sa.Double, nullable=False),
        sa.Column("started", sa.Double),
        sa.Column("ended", sa.Double),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "id"])
    op.create_index("jobs_by_target", "jobs", ["target", "id"])
    op.create_index("jobs_by_target_and_state", "jobs", ["target", "state", "id"])
    op.create_index("jobs_by_experiment", "jobs", ["experiment", "id"])
    op.create_index("jobs_by_experiment_and_state", "jobs", ["experiment", "state", "id"])
    order = ["target", "state", sa.text("priority DESC"), "id"]
    op.create_index("jobs_in_placing_order", "jobs", order)


def _history() -> None:
    op.create_table(
        "history",
        sa.Column("job_id", sa.String, _of("jobs.id"), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("event", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("job_id", sa.String, _of("jobs.id"), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("handle", sa.String),
        sa.Column("shares", sa.JSON, nullable=False),
        sa.Column("confirmed", sa.BigInteger, nullable=False),
        sa.Column("heard", sa.Double),
        sa.Column("resumes", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("started", sa.Double),
        sa.Column("ended", sa.Double),
        sa.UniqueConstraint("job_id", "number"),
    )
    has_handle = sa.text("handle IS NOT NULL")
    op.create_index(
        "attempts_with_handle",
        "attempts",
        ["ended"],
        sqlite_where=has_handle,
        postgresql_where=has_handle,
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


def _targets() -> None:
    op.create_table(
        "targets",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("facts", sa.JSON),
        sa.Column("checked", sa.Double),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("placements", sa.Integer, nullable=False),
    )


def _environments() -> None:
    op.create_table(
        "environments",
        sa.Column("digest", sa.String, primary_key=True),
        sa.Column("definition", sa.JSON, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
    )
    op.create_table(
        "environment_names",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("digest", sa.String, _of("environments.digest"), nullable=False),
    )


def _of(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")
