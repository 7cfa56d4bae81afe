"""Secrets of the server, and those of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("sealed", sa.String, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("updated_at", sa.Double, nullable=False),
    )
    op.create_table(
        "job_secrets",
        sa.Column(
            "job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("attempt", sa.String, primary_key=True),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("sealed", sa.String, nullable=False),
    )
    op.create_index("job_secrets_by_attempt", "job_secrets", ["attempt"])
