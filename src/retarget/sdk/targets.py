"""Manages the targets of a workspace."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from retarget.core.home import Home
from retarget.sdk import arguments
from retarget.sdk.arguments import address
from retarget.sdk.display import Collection, Listing
from retarget.sdk.http import Connection
from retarget.sdk.records import Target, record, records, rows, view


class Targets(Collection[Target]):
    """The targets of a workspace: the named places where jobs run."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __getitem__(self, name: str) -> Target:
        """Return the target with this name; raise NotFound if there is none."""
        return record(Target, self._connection.get(_path(name)))

    def __iter__(self) -> Iterator[Target]:
        return iter(self.list())

    def kinds(self) -> list[dict[str, Any]]:
        """List the kinds that the server knows, with the JSON schema of their settings."""
        return rows(self._connection.get("/api/targets/kinds"))

    def attach(
        self, name: str, *, kind: str, tags: Mapping[str, str] | None = None, **config: Any
    ) -> Target:
        """Register an existing machine or cluster as a target. Retarget connects to it first.

        Args:
            name: The name of the new target.
            kind: The type of the target, such as `ssh`; `kinds()` lists them.
            tags: Your own labels for the target.
            **config: The settings of the kind, such as `hosts=["ml@lab1"]`; see `kinds()`.

        Raises:
            TargetUnreachable: The target does not answer. It is not registered then.
            Invalid: A setting is wrong; the error names it.
        """
        arguments.check("name", name, arguments.TEXT)
        arguments.check("kind", kind, arguments.TEXT)
        body: dict[str, Any] = {"name": name, "kind": kind, "config": arguments.settings(config)}
        if tags is not None:
            body["tags"] = arguments.tags(tags)
        return record(Target, self._connection.post("/api/targets", body))

    create = attach

    def update(self, name: str, *, tags: Mapping[str, str] | None = None, **config: Any) -> Target:
        """Change settings of a target, provided that it answers with the new ones.

        Settings that you do not pass keep their value; None restores the default of a setting.
        `tags` replaces all tags.
        """
        body: dict[str, Any] = {"config": arguments.settings(config)}
        if tags is not None:
            body["tags"] = arguments.tags(tags)
        return record(Target, self._connection.patch(_path(name), body))

    def detach(self, name: str, *, force: bool = False) -> list[str]:
        """Remove a target from Retarget. Nothing on the machine is deleted.

        Raise Conflict if jobs are running on the target or are waiting for it. With `force` these
        jobs fail instead; their names are returned.
        """
        answer = self._connection.delete(_path(name), {"force": force})
        return view(answer, {"failed": list[str]})["failed"]

    def check(self, name: str) -> Target:
        """Ask a target what it has and update its inventory, over the open connection if any.

        Raise TargetUnreachable, with what to do, if the target does not answer.
        """
        return record(Target, self._connection.post(f"{_path(name)}/check", repeatable=True))

    def list(self) -> Listing[Target]:
        """List all targets."""
        return Listing(records(Target, self._connection.get("/api/targets")))

    def _preview(self) -> Listing[Target]:
        return self.list()


def _path(name: str) -> str:
    return address("/api/targets", name, "a target")


def default_target(home: Home) -> str:
    """Return the target of jobs that name none: that of the settings, or else `local`."""
    if not os.environ.get("RETARGET_TARGET") and not os.path.lexists(home.config):
        return "local"  # without reading TOML, which takes longer
    from retarget.sdk.config_file import resolve_config

    return str(resolve_config(home, os.environ)["target"].value)
