"""What attempts wrote outside of outputs/."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "kept_files",
        sa.Column(
            "job_id", sa.String, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("node", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("report", sa.String, nullable=False),
    )
