"""The nodes of targets in SQL, each with its state and since when."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select

from retarget.core.events import Change, Noun
from retarget.core.targets import Inventory, Node
from retarget.store.changes import note
from retarget.store.schema import nodes, safe_text

Row = dict[str, Any]


def select_nodes(db: Connection) -> dict[str, list[Row]]:
    """Return the nodes of every target that has any, in the order of placement."""
    rows: dict[str, list[Row]] = {}
    for target, *row in db.execute(_SELECT_ALL):
        rows.setdefault(target, []).append(_named(row))
    return rows


def replace_nodes(db: Connection, target: str, inventory: Inventory | None) -> bool:
    """Store the nodes of a target in place of the earlier ones. Return whether any has changed."""
    before = [_named(row) for row in db.execute(_SELECT, {"the_target": target})]
    after = [_row(node) for node in inventory.nodes] if inventory else []
    if before == after:
        return False
    db.execute(_DELETE, {"the_target": target})
    if after:
        rows = [{"target": target, "position": index} | row for index, row in enumerate(after)]
        db.execute(_INSERT, rows)
    earlier, later = ({row["name"]: row for row in rows} for rows in (before, after))
    changed = [name for name in earlier | later if earlier.get(name) != later.get(name)]
    note(db, *(Change(Noun.NODE, f"{target}/{name}") for name in changed))
    return True


def _row(node: Node) -> Row:
    return node.model_dump(mode="json") | {
        "name": safe_text(node.name),
        "type": safe_text(node.type),
        "unavailable": safe_text(node.unavailable),
    }


def _named(row: Sequence[Any]) -> Row:
    return dict(zip(Node.model_fields, row, strict=True))


# Built once: building these statements costs more than running them.
_COLUMNS = [nodes.c[name] for name in Node.model_fields]
_SELECT_ALL = select(nodes.c.target, *_COLUMNS).order_by(nodes.c.target, nodes.c.position)
_SELECT = (
    select(*_COLUMNS).where(nodes.c.target == bindparam("the_target")).order_by(nodes.c.position)
)
_DELETE = delete(nodes).where(nodes.c.target == bindparam("the_target"))
_INSERT = insert(nodes)
