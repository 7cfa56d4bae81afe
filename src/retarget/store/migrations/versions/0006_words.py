"""Columns and stored JSON get the names that the glossary gives them."""

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_ROWS_PER_READ = 1000

_COLUMNS: dict[str, dict[str, str]] = {
    "jobs": {
        "created": "created_at",
        "changed": "changed_at",
        "started": "started_at",
        "ended": "ended_at",
    },
    "attempts": {
        "shares": "allocations",
        "confirmed": "events_acked",
        "heard": "last_seen_at",
        "fence": "lost_after",
        "created": "created_at",
        "launched": "launched_at",
        "preparing": "preparing_at",
        "starting": "starting_at",
        "started": "started_at",
        "output": "first_output_at",
        "exited": "exited_at",
        "ended": "ended_at",
    },
    "members": {"confirmed": "events_acked", "heard": "last_seen_at", "exited": "exited_at"},
    "targets": {"facts": "inventory", "checked": "checked_at"},
    "environments": {"created": "created_at"},
    "experiments": {"created": "created_at", "changed": "changed_at"},
    "runs": {"started": "started_at", "ended": "ended_at", "deleted": "deleted_at"},
    "metrics": {"timestamp": "logged_at"},
    "points": {"timestamp": "logged_at"},
    "logged_models": {"created": "created_at", "changed": "changed_at"},
    "logged_model_metrics": {"timestamp": "logged_at"},
    "models": {"created": "created_at", "changed": "changed_at"},
    "model_versions": {"created": "created_at", "changed": "changed_at"},
}


def upgrade() -> None:
    # Both databases rename the columns inside indexes and keys along with them.
    for table, names in _COLUMNS.items():
        for old, new in names.items():
            op.alter_column(table, old, new_column_name=new)
    _rewrite("jobs", "id", "spec", _spec)
    _rewrite("targets", "name", "inventory", _inventory)
    _rewrite("targets", "name", "config", _ssh_config, kind="ssh")
    op.execute("UPDATE history SET event = 'unplaced' WHERE event = 'returned'")


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(spec, env="variables")


def _inventory(inventory: Mapping[str, Any]) -> dict[str, Any]:
    renamed = _renamed(inventory, fence="lost_after")
    renamed["nodes"] = [_renamed(node, reason="unavailable") for node in inventory.get("nodes", ())]
    return renamed


def _ssh_config(config: Mapping[str, Any]) -> dict[str, Any]:
    return _renamed(config, pins="host_keys", fence="lost_after")


def _renamed(stored: Mapping[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in stored.items()}


def _rewrite(
    table: str, key: str, column: str, change: Callable[[Any], Any], *, kind: str | None = None
) -> None:
    """Replace the JSON of a column, a page of rows at a time: there may be many jobs."""
    db = op.get_bind()
    rows = sa.table(table, sa.column(key), sa.column("kind"), sa.column(column, sa.JSON))
    key_column, json_column = rows.c[key], rows.c[column]
    page = sa.select(key_column, json_column).where(json_column.is_not(None))
    if kind is not None:
        page = page.where(rows.c.kind == kind)
    page = page.order_by(key_column).limit(_ROWS_PER_READ)
    rewrite = (
        sa.update(rows)
        .where(key_column == sa.bindparam("row_key"))
        .values({column: sa.bindparam("rewritten", type_=sa.JSON)})
    )
    rows_read = db.execute(page).all()
    while rows_read:
        changes = [
            {"row_key": row, "rewritten": change(old)}
            for row, old in rows_read
            if old is not None  # JSON has its own null
        ]
        if changes:
            db.execute(rewrite, changes)
        rows_read = db.execute(page.where(key_column > rows_read[-1][0])).all()
