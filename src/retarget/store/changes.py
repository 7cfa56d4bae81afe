"""What a transaction changes: it is published once the transaction is committed."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from retarget.core.events import Change

Publish = Callable[[Sequence[Change]], None]


def note(db: Connection, *changes: Change) -> None:
    """Publish these changes if the transaction, which `writing` opened, is committed."""
    db.get_execution_options()["changes"].extend(changes)


def ignore(_: Sequence[Change]) -> None:
    """Publish nothing: nobody listens."""
