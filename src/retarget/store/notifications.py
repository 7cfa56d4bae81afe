"""Notifications between the servers of one PostgreSQL database."""

from typing import cast

import psycopg
from sqlalchemy import Engine

MAX_BYTES = 7999  # of one notification
Error = psycopg.Error  # what every method raises when the database does not answer
_CHANNEL = "retarget_events"


class Notifications:
    """A connection that sends and receives notifications, also its own. For one thread."""

    def __init__(self, engine: Engine) -> None:
        pooled = engine.raw_connection()
        self._connection = cast("psycopg.Connection", pooled.driver_connection)
        pooled.detach()  # no other code may get a connection that listens
        self._connection.autocommit = True
        # what a notification is about is committed already: it need not wait for the disk
        self._connection.execute("SET synchronous_commit = off")
        self._connection.execute(f"LISTEN {_CHANNEL}")

    def fileno(self) -> int:
        """The descriptor that is readable once something may have arrived."""
        return self._connection.fileno()

    def send(self, payload: str) -> None:
        self._connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, payload))

    def receive(self) -> list[str]:
        """Return what has arrived, without waiting."""
        return [notify.payload for notify in self._connection.notifies(timeout=0)]

    def last_commit(self) -> str:
        """Return a string that changes whenever any transaction that writes begins or ends."""
        row = self._connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        return str(row[0]) if row else ""

    def close(self) -> None:
        self._connection.close()
