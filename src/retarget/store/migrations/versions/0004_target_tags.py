"""Labels of targets."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column(
        "targets", sa.Column("tags", sa.JSON, nullable=False, server_default=sa.text("'{}'"))
    )
