"""Several nodes of one attempt, and when an attempt is considered lost."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("attempts", sa.Column("fence", sa.Double))
    op.create_table(
        "members",
        sa.Column(
            "key", sa.String, sa.ForeignKey("attempts.key", ondelete="CASCADE"), primary_key=True
        ),
        sa.Column("node", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("confirmed", sa.BigInteger, nullable=False),
        sa.Column("heard", sa.Double, nullable=False),
        sa.Column("preparing", sa.Boolean, nullable=False),
        sa.Column("started", sa.Boolean, nullable=False),
        sa.Column("exited", sa.Double),
        sa.Column("finished", sa.Boolean, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("exit_code", sa.Integer),
    )
