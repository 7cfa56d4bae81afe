"""The targets of a workspace."""

from collections.abc import Iterator, Mapping
from typing import Any

from retarget.sdk import given
from retarget.sdk.given import address
from retarget.sdk.http import Connection
from retarget.sdk.records import Target, record, records, rows, view


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

    def attach(
        self, name: str, *, kind: str, tags: Mapping[str, str] | None = None, **config: Any
    ) -> Target:
        """Make a place of this kind a target; `config` are its settings (see `kinds`).

        It is asked what it has first: TargetUnreachable, with what to do, if it is silent, and
        then there is no new target. Invalid names the setting that is wrong.
        """
        given.check("name", name, given.TEXT)
        given.check("kind", kind, given.TEXT)
        body: dict[str, Any] = {"name": name, "kind": kind, "config": given.settings(config)}
        if tags is not None:
            body["tags"] = given.tags(tags)
        return record(Target, self._connection.post("/api/targets", body))

    create = attach

    def update(self, name: str, *, tags: Mapping[str, str] | None = None, **config: Any) -> Target:
        """Change settings of a target, if it answers with them; those not given stay.

        One that is None has its default again. `tags` take the place of all that there were.
        """
        body: dict[str, Any] = {"config": given.settings(config)}
        if tags is not None:
            body["tags"] = given.tags(tags)
        return record(Target, self._connection.patch(_path(name), body))

    def detach(self, name: str, *, force: bool = False) -> list[str]:
        """Have a target no longer; Conflict while jobs are on it or wait for it.

        With `force` these fail: their names are returned.
        """
        told = view(self._connection.delete(_path(name), {"force": force}), {"failed": list[str]})
        return told["failed"]

    def check(self, name: str) -> Target:
        """Ask a target what it has now; TargetUnreachable, with what to do, if it is silent."""
        return record(Target, self._connection.post(f"{_path(name)}/check", repeatable=True))

    def list(self) -> list[Target]:
        return records(Target, self._connection.get("/api/targets"))


def _path(name: str) -> str:
    return address("/api/targets", name, "a target")
