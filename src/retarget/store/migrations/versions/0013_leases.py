"""Servers, the leases of targets, locks on targets, and the experiments that scripts chose."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
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
    op.create_table(
        "experiment_choices",
        sa.Column(
            "attempt",
            sa.String,
            sa.ForeignKey("attempts.key", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column(
            "experiment_id",
            sa.Integer,
            sa.ForeignKey("experiments.id", ondelete="CASCADE"),
            nullable=False,
        ),
    )
