"""Manages the environments that a server knows."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from retarget.sdk import arguments
from retarget.sdk.arguments import address
from retarget.sdk.display import Collection, Listing
from retarget.sdk.http import Connection
from retarget.sdk.records import KnownEnvironment, record, records, view

if TYPE_CHECKING:
    from pathlib import Path

    from retarget.sdk.environments import Environment
    from retarget.sdk.own_packages import Expanded


class Environments(Collection[KnownEnvironment]):
    """The environments of a workspace: registered under a name, or built for jobs."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __getitem__(self, name: str) -> KnownEnvironment:
        """Return an environment by name: `torch` or `torch@latest` is the newest version, `torch:3`
        the third. Its digest names it too; 8 characters of it suffice.
        """
        return record(KnownEnvironment, self._connection.get(_path(name)))

    def __iter__(self) -> Iterator[KnownEnvironment]:
        return iter(self.list())

    def register(
        self, name: str, environment: "Environment | Mapping[str, Any]"
    ) -> KnownEnvironment:
        """Store a definition under a name. Jobs can then refer to it by that name.

        If the name has another definition, this one becomes its next version.
        """
        from retarget.sdk.environments import environment_from

        if isinstance(environment, Mapping):
            environment = environment_from(environment)
        environment.refuse_own_packages("a registered environment")
        definition = {**environment.to_json(), "name": name}
        send_context(self._connection, environment)
        return record(KnownEnvironment, self._connection.put(_path(name), definition))

    def versions(self, name: str) -> Listing[KnownEnvironment]:
        """List the versions of a name, the newest first."""
        return Listing(records(KnownEnvironment, self._connection.get(f"{_path(name)}/versions")))

    def update(self, name: str) -> KnownEnvironment:
        """Add a version with the same definition, which its first build resolves again.

        Earlier versions and their jobs keep their locked packages.
        """
        return record(KnownEnvironment, self._connection.post(f"{_path(name)}/update"))

    def delete(self, name: str) -> list[str]:
        """Delete an environment and everything that was built for it.

        `torch` deletes all versions of this name, `torch:3` only the third. Return the names of the
        targets it was built on. Raise Conflict while a job uses it.
        """
        return view(self._connection.delete(_path(name)), {"removed": list[str]})["removed"]

    def list(self) -> Listing[KnownEnvironment]:
        """List all environments."""
        return Listing(records(KnownEnvironment, self._connection.get("/api/environments")))

    def _preview(self) -> Listing[KnownEnvironment]:
        return self.list()


def definition_of(
    connection: Connection, environment: object, code: "Path | None" = None
) -> dict[str, Any]:
    """Return the definition of an environment, without the packages in the code folder."""
    from retarget.sdk.environments import Environment

    result = find_environment(connection, environment)
    return result.to_json(code) if isinstance(result, Environment) else result.to_json()


def own_packages_of(environment: object, code: "Path") -> dict[str, Any]:
    """Return the fields of a request for the user's own packages.

    They are those that an environment names, and that of a code folder with a src layout.
    """
    from retarget.sdk.own_packages import with_implicit

    expanded = expanded_of(environment, code)
    packages = [package.to_json(code) for package in with_implicit(expanded.packages, code)]
    return {"own_packages": packages, "warnings": list(expanded.warnings)}


def expanded_of(environment: object, code: "Path | None" = None) -> "Expanded":
    """Read the files of an environment; a registered one has none."""
    from retarget.sdk.environments import Environment, environment_from

    if isinstance(environment, Mapping):
        environment = environment_from(cast("Mapping[str, Any]", environment))
    environment = environment if isinstance(environment, Environment) else Environment()
    return environment.expanded(code)


def find_environment(
    connection: Connection, environment: object
) -> "Environment | KnownEnvironment":
    """Return the environment that a name or a mapping stands for; raise Invalid if it is neither.

    None stands for the Python of the client.
    """
    from retarget.sdk.environments import Environment, environment_from

    if environment is None:
        return Environment()
    if isinstance(environment, str):
        return Environments(connection)[environment]
    if isinstance(environment, Mapping):
        return environment_from(cast("Mapping[str, Any]", environment))
    expected = "an Environment, a mapping of its arguments, or the name of a registered one"
    arguments.check("environment", environment, ((Environment, KnownEnvironment), expected))
    return cast("Environment | KnownEnvironment", environment)


def send_context(
    connection: Connection, environment: "Environment", cache: "Path | None" = None
) -> None:
    """Send the files that the server lacks of the build context; do nothing without one."""
    from retarget.sdk.snapshot import upload
    from retarget.sdk.uploads import Uploads

    scan = environment.scan_context(cache)
    if scan is not None:
        upload(scan, Uploads(connection))


def _path(name: str) -> str:
    return address("/api/environments", name, "an environment")
