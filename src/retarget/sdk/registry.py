"""The environments a server knows."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from retarget.sdk.given import address
from retarget.sdk.http import Connection
from retarget.sdk.records import KnownEnvironment, record, records, view

if TYPE_CHECKING:
    from pathlib import Path

    from retarget.sdk.environments import Environment


class Environments:
    """Definitions registered under a name, and those that were built for jobs."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, name: str) -> KnownEnvironment:
        """Return the one with this name, or this digest (8 characters of it are enough)."""
        return record(KnownEnvironment, self._connection.get(_path(name)))

    def __iter__(self) -> Iterator[KnownEnvironment]:
        return iter(self.list())

    def register(self, name: str, environment: "Environment") -> KnownEnvironment:
        """Keep a definition under a name, so that jobs can ask for it by that."""
        definition = {**environment.to_json(), "name": name}
        send_context(self._connection, environment)
        return record(KnownEnvironment, self._connection.put(_path(name), definition))

    def delete(self, name: str) -> list[str]:
        """Forget an environment and remove what was built; return the targets it was on.

        Conflict while a job uses it.
        """
        return view(self._connection.delete(_path(name)), {"removed": list[str]})["removed"]

    def list(self) -> list[KnownEnvironment]:
        return records(KnownEnvironment, self._connection.get("/api/environments"))


def send_context(
    connection: Connection, environment: "Environment", cache: "Path | None" = None
) -> None:
    """Send what the server lacks of the folder that an image is built from, if one is."""
    from retarget.sdk.snapshot import upload
    from retarget.sdk.uploads import Uploads

    found = environment.scan_context(cache)
    if found is not None:
        upload(found, Uploads(connection))


def _path(name: str) -> str:
    return address("/api/environments", name, "an environment")
