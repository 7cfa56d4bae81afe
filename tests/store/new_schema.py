"""Gives an empty database the current schema: once by migration, then by repeating its statements.

Alembic takes most of the time of a test that needs a new database.
"""

from typing import Any

from sqlalchemy import Engine, event

from retarget.store.engine import migrate, writing

_statements: dict[str, list[str]] = {}


def create_schema(engine: Engine) -> None:
    """Create the tables of an empty database as `migrate` does."""
    dialect = engine.dialect.name
    if dialect not in _statements:
        _statements[dialect] = _migrate(engine)
        return
    with writing(engine) as db:
        for statement in _statements[dialect]:
            db.exec_driver_sql(statement)


def _migrate(engine: Engine) -> list[str]:
    """Migrate, and return the statements that have changed the database."""
    statements: list[str] = []

    def record(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(engine, "before_cursor_execute", record)
    migrate(engine)
    event.remove(engine, "before_cursor_execute", record)
    return [text for text in statements if text.lstrip().startswith(("CREATE", "INSERT"))]
