"""Versions of named environments: a name had one definition before."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.execute("CREATE TABLE names_before AS SELECT name, digest FROM environment_names")
    op.drop_table("environment_names")
    op.create_table(
        "environment_names",
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("versions", sa.Integer, nullable=False),
    )
    op.create_table(
        "environment_versions",
        sa.Column(
            "name",
            sa.String,
            sa.ForeignKey("environment_names.name", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column(
            "digest",
            sa.String,
            sa.ForeignKey("environments.digest", ondelete="CASCADE"),
            nullable=False,
        ),
        sa.Column("created_at", sa.Double, nullable=False),
    )
    op.execute("INSERT INTO environment_names SELECT name, 1 FROM names_before")
    op.execute(
        "INSERT INTO environment_versions SELECT names_before.name, 1, names_before.digest, "
        "environments.created_at FROM names_before JOIN environments USING (digest)"
    )
    op.drop_table("names_before")
