"""The job that created an experiment, a model or a version."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    for table in ("experiments", "models", "model_versions"):
        op.add_column(table, sa.Column("created_by_job", sa.String))
