"""Manages the secrets of a workspace."""

from collections.abc import Iterator

from retarget.core.variables import check_secret_name, check_secret_value
from retarget.sdk import arguments
from retarget.sdk.arguments import address
from retarget.sdk.display import Collection, Listing
from retarget.sdk.http import Connection
from retarget.sdk.records import Secret, record, records


class Secrets(Collection[Secret]):
    """The secrets of a workspace. Their values can be set and used by jobs, but not read."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __iter__(self) -> Iterator[Secret]:
        return iter(self.list())

    def __contains__(self, name: object) -> bool:
        return any(secret.name == name for secret in self.list())

    def set(self, name: str, value: str) -> Secret:
        """Store a secret, or replace its value. Jobs that name it get its value.

        Args:
            name: The name of the environment variable, such as `HF_TOKEN`.
            value: At least 6 bytes and at most 65,536.
        """
        arguments.check("name", name, arguments.TEXT)
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise arguments.wrong("value", type(value), "the type of a secret; pass a string")
        body = {"value": check_secret_value(value)}
        return record(Secret, self._connection.put(_path(check_secret_name(name)), body))

    def delete(self, name: str) -> None:
        """Delete a secret. A queued job that uses it fails when it starts."""
        self._connection.delete(_path(name))

    def list(self) -> Listing[Secret]:
        """List all secrets by name, without their values."""
        return Listing(records(Secret, self._connection.get("/api/secrets")))

    def _preview(self) -> Listing[Secret]:
        return self.list()


def _path(name: str) -> str:
    return address("/api/secrets", name, "a secret")
