"""The registry of models, and what a version came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retarget.core.errors import NotFound
from retarget.sdk.given import address
from retarget.sdk.http import Connection
from retarget.sdk.records import Output, number, record, records, rows, view

_MODELS = "/api/models"

# What views of a version and of a model tell at least.
_VERSION: dict[str, Any] = {
    **dict.fromkeys(("name", "description", "stage", "source", "location"), str),
    **dict.fromkeys(("created", "changed"), float),
    "version": int,
    "tags": dict[str, str],
    "aliases": list[str],
    "lineage": dict[str, Any],
}
_MODEL: dict[str, Any] = {
    **dict.fromkeys(("name", "description"), str),
    **dict.fromkeys(("created", "changed"), float),
    "tags": dict[str, str],
    "aliases": dict[str, int],
    "latest": dict[str, Any] | None,
    "versions": list[Any] | None,
}


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a version came from, as it was then: the job may be gone."""

    job_id: str | None
    job_name: str | None
    snapshot: str | None
    environment: str | None
    metrics: dict[str, float]


class ModelVersion:
    """A version of a model, as of when it was looked at."""

    def __init__(self, connection: Connection, told: Any) -> None:
        self._connection = connection
        self._view = view(told, _VERSION)

    def __repr__(self) -> str:
        return f"<ModelVersion {self.name}:{self.version}>"

    @property
    def name(self) -> str:
        return self._view["name"]

    @property
    def version(self) -> int:
        return self._view["version"]

    @property
    def description(self) -> str:
        return self._view["description"]

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._view["tags"])

    @property
    def aliases(self) -> list[str]:
        return list(self._view["aliases"])

    @property
    def lineage(self) -> Lineage:
        """The job it came from, its code, its environment, and what it measured."""
        raw = view(self._view["lineage"], {"metrics": dict[str, float | str]})
        metrics = {key: number(value) for key, value in raw["metrics"].items()}
        return record(Lineage, raw | {"metrics": metrics})

    def to_json(self) -> dict[str, Any]:
        """Return all the server told."""
        return dict(self._view)

    def files(self) -> list[Output]:
        """List its files; paths begin at the version's own folder."""
        return records(Output, self._connection.get(f"{self._path}/files"))

    def download(self, folder: str | Path = ".") -> list[Path]:
        """Fetch all its files into `folder`, and return where they are.

        Each appears complete or not at all, and is checked against its digest.
        """
        from retarget.sdk.downloads import download

        found = self.files()
        if not found:
            where = self._view["location"]
            raise NotFound(f"{self.name}:{self.version} has no files here; look at {where}")
        source = f"{self._path}/files"
        return [download(self._connection, source, each, Path(folder)) for each in found]

    def alias(self, alias: str) -> None:
        """Have an alias mean this version; it leaves the one that had it before."""
        path = address(f"{model_path(self.name)}/aliases", alias, "an alias")
        self._view = view(self._connection.put(path, {"version": self.version}), _VERSION)

    def delete(self) -> None:
        """Remove the version with its files. Its number is not given again."""
        self._connection.delete(self._path)

    @property
    def _path(self) -> str:
        return f"{model_path(self.name)}/versions/{self.version}"


class Model:
    """A registered model, as of when it was looked at."""

    def __init__(self, connection: Connection, told: Any) -> None:
        self._connection = connection
        self._view = view(told, _MODEL)

    def __repr__(self) -> str:
        return f"<Model {self.name}>"

    def __getitem__(self, version: int | str) -> ModelVersion:
        """Return the version with this number or alias; `latest` is the newest."""
        path = address(f"{model_path(self.name)}/versions", str(version), "a version")
        return ModelVersion(self._connection, self._connection.get(path))

    @property
    def name(self) -> str:
        return self._view["name"]

    @property
    def description(self) -> str:
        return self._view["description"]

    @property
    def tags(self) -> dict[str, str]:
        return dict(self._view["tags"])

    @property
    def aliases(self) -> dict[str, int]:
        """Each alias, and the version it means."""
        return dict(self._view["aliases"])

    @property
    def latest(self) -> ModelVersion | None:
        """The newest version, None if there is none."""
        raw = self._view["latest"]
        return None if raw is None else ModelVersion(self._connection, raw)

    def versions(self) -> list[ModelVersion]:
        """List its versions, the newest first."""
        if self._view["versions"] is None:  # a listing leaves them out
            self._view = view(self._connection.get(model_path(self.name)), _MODEL)
        return [ModelVersion(self._connection, raw) for raw in rows(self._view["versions"])]

    def remove_alias(self, alias: str) -> None:
        """Have an alias mean nothing. One that is not there is fine."""
        self._connection.delete(address(f"{model_path(self.name)}/aliases", alias, "an alias"))

    def delete(self) -> None:
        """Remove the model with all versions and their files."""
        self._connection.delete(model_path(self.name))

    def to_json(self) -> dict[str, Any]:
        """Return all the server told."""
        return dict(self._view)


def list_models(connection: Connection) -> list[Model]:
    return [Model(connection, raw) for raw in rows(connection.get(_MODELS))]


def read_model(connection: Connection, name: str) -> Model:
    return Model(connection, connection.get(model_path(name)))


def register(connection: Connection, name: str, body: dict[str, Any]) -> ModelVersion:
    """Make a version of what a job left."""
    return ModelVersion(connection, connection.post(f"{model_path(name)}/versions", body))


def model_path(name: str) -> str:
    return address(_MODELS, name, "a model")
