"""The nodes of targets are rows, with their state and since when."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    nodes = op.create_table(
        "nodes",
        sa.Column(
            "target",
            sa.String,
            sa.ForeignKey("targets.name", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("name", sa.String, primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("since", sa.Double),
        sa.Column("type", sa.String, nullable=False),
        sa.Column("cpus", sa.Double, nullable=False),
        sa.Column("memory", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.JSON, nullable=False),
        sa.Column("unavailable", sa.String, nullable=False),
    )
    targets = sa.table(
        "targets",
        sa.column("name"),
        sa.column("inventory", sa.JSON(none_as_null=True)),
        sa.column("checked_at"),
    )
    db = op.get_bind()
    for name, inventory, checked_at in db.execute(
        sa.select(targets.c.name, targets.c.inventory, targets.c.checked_at)
    ).all():
        if inventory is None:
            continue
        rows = [
            _row(node) | {"target": name, "position": position, "since": checked_at}
            for position, node in enumerate(inventory.pop("nodes", ()))
        ]
        if rows:
            db.execute(sa.insert(nodes), rows)
        db.execute(sa.update(targets).where(targets.c.name == name).values(inventory=inventory))


def _row(node: Mapping[str, Any]) -> dict[str, Any]:
    unavailable = node.get("unavailable", "")
    return {
        "name": node.get("name", ""),
        "state": "unavailable" if unavailable else "ready",
        "type": "",
        "cpus": node["cpus"],
        "memory": node["memory"],
        "gpus": node.get("gpus", []),
        "unavailable": unavailable,
    }
