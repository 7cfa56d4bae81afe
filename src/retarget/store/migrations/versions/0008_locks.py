"""The resolved versions of environments, and which of them an attempt ran with."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
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
    op.add_column("attempts", sa.Column("lock", sa.String))
    op.add_column("model_versions", sa.Column("lock", sa.String))
