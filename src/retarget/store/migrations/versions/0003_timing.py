"""When each stage of an attempt was reached."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    for name in ("launched", "preparing", "starting", "output", "exited"):
        op.add_column("attempts", sa.Column(name, sa.Double))
