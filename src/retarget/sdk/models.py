"""Reads and changes the registry of models."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from retarget.core.errors import NotFound
from retarget.sdk.arguments import address
from retarget.sdk.display import Collection, Columns, Displayable, Listing
from retarget.sdk.http import Connection
from retarget.sdk.records import Output, number, parse_time, record, records, rows, view

_MODELS = "/api/models"

# The fields that views of a version and of a model must have, with their types.
_VERSION_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("name", "description", "stage", "source", "location"), str),
    **dict.fromkeys(("created_at", "changed_at"), datetime),
    "version": int,
    "tags": dict[str, str],
    "aliases": list[str],
    "lineage": dict[str, Any],
}
_MODEL_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("name", "description"), str),
    **dict.fromkeys(("created_at", "changed_at"), datetime),
    "tags": dict[str, str],
    "aliases": dict[str, int],
    "latest": dict[str, Any] | None,
    "versions": list[Any] | None,
}


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a version came from, recorded when it was registered: the job may be deleted since."""

    job_id: str | None
    job_name: str | None
    snapshot: str | None
    environment: str | None
    metrics: dict[str, float]
    lock: str | None = None


class ModelVersion(Displayable):
    """A version of a model. Its fields show the version as it was when it was last read."""

    def __init__(self, connection: Connection, raw: Any) -> None:
        self._connection = connection
        self._view = view(raw, _VERSION_FIELDS)

    def __repr__(self) -> str:
        return f"<ModelVersion {self.name}:{self.version}>"

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._view["name"]

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._view["version"]

    @property
    def description(self) -> str:
        """The description of the version."""
        return self._view["description"]

    @property
    def created_at(self) -> datetime:
        """When the version was registered, in UTC."""
        return parse_time(self._view["created_at"])

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the version."""
        return dict(self._view["tags"])

    @property
    def aliases(self) -> list[str]:
        """The aliases that refer to this version."""
        return list(self._view["aliases"])

    @property
    def lineage(self) -> Lineage:
        """The job that the version came from, with its code, environment and metrics."""
        raw = view(self._view["lineage"], {"metrics": dict[str, float | str]})
        metrics = {key: number(value) for key, value in raw["metrics"].items()}
        return record(Lineage, raw | {"metrics": metrics})

    def to_json(self) -> dict[str, Any]:
        """Return the server's response; times in it are ISO 8601 strings."""
        return dict(self._view)

    def files(self) -> list[Output]:
        """List the files of the version; their paths are relative to its folder."""
        return Listing(records(Output, self._connection.get(f"{self._path}/files")))

    def download(
        self,
        folder: str | Path = ".",
        *,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Path]:
        """Download all files into `folder` and return their paths.

        A file appears only once it is complete and its digest is verified. Raise Conflict if it
        would replace a file with other content, unless `overwrite` is true. `progress` is called
        with the bytes received so far, and their total.
        """
        from retarget.sdk.downloads import download_all, protect_files

        files = self.files()
        if not files:
            location = self._view["location"]
            raise NotFound(
                f"{self.name}:{self.version} has no files on this server; they are at {location}"
            )
        source = f"{self._path}/files"
        if not overwrite:
            protect_files(Path(folder), files)
        return download_all(self._connection, source, files, Path(folder), progress)

    def alias(self, alias: str) -> None:
        """Make an alias refer to this version. It no longer refers to any other version."""
        path = address(f"{model_path(self.name)}/aliases", alias, "an alias")
        self._view = view(self._connection.put(path, {"version": self.version}), _VERSION_FIELDS)

    def delete(self) -> None:
        """Delete the version and its files. Its number is never used again."""
        self._connection.delete(self._path)

    @property
    def _path(self) -> str:
        return f"{model_path(self.name)}/versions/{self.version}"

    def _columns(self) -> Columns:
        return {
            "model": self.name,
            "version": self.version,
            "aliases": ", ".join(self.aliases),
            "job": self._view["lineage"].get("job_name"),
            "created": self.created_at,
            "description": self.description,
            "tags": self.tags,
        }


class Model(Displayable):
    """A registered model. Its fields show the model as it was when it was last read."""

    def __init__(self, connection: Connection, raw: Any) -> None:
        self._connection = connection
        self._view = view(raw, _MODEL_FIELDS)

    def __repr__(self) -> str:
        return f"<Model {self.name}>"

    def __getitem__(self, version: int | str) -> ModelVersion:
        """Return a version by its number or an alias; `latest` is the newest version."""
        path = address(f"{model_path(self.name)}/versions", str(version), "a version")
        return ModelVersion(self._connection, self._connection.get(path))

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._view["name"]

    @property
    def description(self) -> str:
        """The description of the model."""
        return self._view["description"]

    @property
    def created_at(self) -> datetime:
        """When the model was registered, in UTC."""
        return parse_time(self._view["created_at"])

    @property
    def changed_at(self) -> datetime:
        """When the model or one of its versions last changed, in UTC."""
        return parse_time(self._view["changed_at"])

    @property
    def tags(self) -> dict[str, str]:
        """The tags of the model."""
        return dict(self._view["tags"])

    @property
    def aliases(self) -> dict[str, int]:
        """The aliases, with the number of the version that each refers to."""
        return dict(self._view["aliases"])

    @property
    def latest(self) -> ModelVersion | None:
        """The newest version, or None if there is none."""
        raw = self._view["latest"]
        return None if raw is None else ModelVersion(self._connection, raw)

    def versions(self) -> list[ModelVersion]:
        """List the versions, newest first."""
        if self._view["versions"] is None:  # a listing of models does not include them
            self._view = view(self._connection.get(model_path(self.name)), _MODEL_FIELDS)
        return Listing(ModelVersion(self._connection, raw) for raw in rows(self._view["versions"]))

    def remove_alias(self, alias: str) -> None:
        """Remove an alias. It is not an error if the model does not have it."""
        self._connection.delete(address(f"{model_path(self.name)}/aliases", alias, "an alias"))

    def delete(self) -> None:
        """Delete the model with all its versions and their files."""
        self._connection.delete(model_path(self.name))

    def to_json(self) -> dict[str, Any]:
        """Return the server's response; times in it are ISO 8601 strings."""
        return dict(self._view)

    def _columns(self) -> Columns:
        latest = self.latest
        return {
            "model": self.name,
            "latest": None if latest is None else latest.version,
            "aliases": self.aliases,
            "changed": self.changed_at,
            "description": self.description,
            "tags": self.tags,
        }

    def _ipython_key_completions_(self) -> list[str]:
        # IPython calls this for `model["<Tab>`
        return [*self.aliases, "latest"]


class Models(Collection[Model]):
    """The registered models of a workspace."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.label)
        self._connection = connection

    def __getitem__(self, name: str) -> Model:
        """Return the model with this name; raise NotFound if there is none."""
        return Model(self._connection, self._connection.get(model_path(name)))

    def __iter__(self) -> Iterator[Model]:
        return iter(self.list())

    def list(self) -> Listing[Model]:
        """List all registered models by name."""
        raw_models = rows(self._connection.get(_MODELS))
        return Listing(Model(self._connection, raw) for raw in raw_models)

    def _preview(self) -> Listing[Model]:
        return self.list()


def register(connection: Connection, name: str, body: dict[str, Any]) -> ModelVersion:
    """Register a file, a folder or a logged model of a job as a new version."""
    return ModelVersion(connection, connection.post(f"{model_path(name)}/versions", body))


def model_path(name: str) -> str:
    return address(_MODELS, name, "a model")
