"""The targets of a workspace."""

from collections.abc import Iterator
from typing import Any

from retarget.sdk.given import address
from retarget.sdk.http import Connection
from retarget.sdk.records import Target, record, records, rows


class Targets:
    """Named places to run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, name: str) -> Target:
        """Return the target with this name; NotFound if there is none."""
        return record(Target, self._connection.get(_path(name)))

    def __iter__(self) -> Iterator[Target]:
        return iter(self.list())

    def kinds(self) -> list[dict[str, Any]]:
        """List the kinds the server knows, each with the JSON schema of its settings."""
        return rows(self._connection.get("/api/targets/kinds"))

    def check(self, name: str) -> Target:
        """Ask a target what it has now; TargetUnreachable, with what to do, if it is silent."""
        return record(Target, self._connection.post(f"{_path(name)}/check", repeatable=True))

    def list(self) -> list[Target]:
        return records(Target, self._connection.get("/api/targets"))


def _path(name: str) -> str:
    return address("/api/targets", name, "a target")
