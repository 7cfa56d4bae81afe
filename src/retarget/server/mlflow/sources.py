"""Resolves the source of a new model version to the location of its files."""

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlsplit

from retarget.control import models
from retarget.control.context import Context
from retarget.core.errors import Invalid, NotFound
from retarget.core.limits import MAX_LOCATION_LENGTH, check_length
from retarget.core.models import LATEST, Lineage, ModelVersion, check_stage, check_version

_LOCAL_HOSTS = ("", ".", "localhost", "127.0.0.1")


@dataclass(frozen=True)
class Source:
    source: str
    location: str
    run_id: str
    model_id: str | None
    lineage: Lineage


def read_source(context: Context, source: str, run_id: str, model_id: str, job_id: str) -> Source:
    """Resolve a source, or raise Invalid if a version cannot have it.

    `job_id` is the job that makes the request. It is the lineage of a version without a run.
    """
    check_length("source", source, MAX_LOCATION_LENGTH)
    try:
        scheme = urlsplit(source).scheme
    except ValueError:
        raise Invalid(f"Invalid model version source: '{source}'.", field="source") from None
    if scheme == "models":
        return _of_model(context, source, run_id, model_id, job_id)
    logged = context.store.logged_models.get(model_id) if model_id else None
    if _is_local(source):
        root = logged.location if logged else _run_location(context, source, run_id)
        _check_inside(source, root, "model_id" if model_id else "run_id")
    else:
        _check_absolute(source)
    run_id = run_id or (logged.run_id if logged else "") or ""
    creator = (logged.job_id if logged else "") or job_id
    lineage = models.lineage(context, run_id or creator)
    return Source(source, source, run_id, model_id or None, lineage)


def _of_model(context: Context, source: str, run_id: str, model_id: str, job_id: str) -> Source:
    """Resolve models:/…, which names a logged model by its id, or another version."""
    address = urlsplit(source, allow_fragments=False)
    names = address.path.strip("/").split("/")
    if address.netloc or len(names) > 2 or not all(name.strip() for name in names):
        raise _not_identified(source, "model_id")
    try:
        if len(names) == 1 and "@" not in names[0]:
            logged = context.store.logged_models.get(names[0])
            run_id = run_id or logged.run_id or ""
            lineage = models.lineage(context, run_id or logged.job_id or job_id)
            return Source(source, logged.location, run_id, logged.id, lineage)
        version = _version(context, names)
    except NotFound as error:
        raise NotFound(
            f"Unable to fetch model from model URI source artifact location '{source}'."
            f"Error: {error}"
        ) from None
    canonical = f"models:/{version.name}/{version.version}"
    model_id = model_id or version.model_id or ""
    return Source(
        canonical, version.location, run_id or version.run_id, model_id or None, version.lineage
    )


def _version(context: Context, names: list[str]) -> ModelVersion:
    """Return the version named by NAME/NUMBER, NAME/STAGE, NAME/latest or NAME@ALIAS."""
    if len(names) == 1:
        name, _, alias = names[0].rpartition("@")
        return context.store.models.by_alias(name, alias)
    name, selector = names
    if selector.isdecimal():
        return context.store.models.get_version(name, check_version(selector))
    if selector.lower() == LATEST:
        return context.store.models.by_alias(name, LATEST)
    versions = context.store.models.latest(name, [check_stage(selector)])
    if not versions:
        raise NotFound(f"No versions of model with name '{name}' and stage '{selector}' found")
    return versions[0]


def _is_local(source: str) -> bool:
    address = urlsplit(source)
    if address.scheme == "file" and (address.hostname or "") not in _LOCAL_HOSTS:
        raise Invalid(f"{source} is not a valid remote uri.", field="source")
    return address.scheme in ("", "file")


def _run_location(context: Context, source: str, run_id: str) -> str:
    if not run_id:
        return ""
    runs = context.store.runs.load([run_id])
    if not runs:
        raise _not_identified(source, "run_id")
    return runs[0].location


def _check_inside(source: str, root: str, field: str) -> None:
    """Raise Invalid unless a local path is inside the folder of the run or the logged model."""
    path, folder = _local_path(source), _local_path(root)
    inside = folder and _is_local(root) and f"{path}/".startswith(f"{folder}/")
    if not inside:
        raise Invalid(
            f"Invalid model version source: '{path}'. To use a local path as a model version "
            f"source, the {field} request parameter has to be specified and the local path has to "
            f"be contained within the artifact directory of the run specified by the {field}.",
            field="source",
        )


def _local_path(address: str) -> str:
    return posixpath.normpath(urlsplit(address).path) if address else ""


def _check_absolute(source: str) -> None:
    """Raise Invalid unless the address is absolute and free of relative references."""
    decoded = source
    while (unquoted := unquote_plus(decoded)) != decoded:
        decoded = unquoted
    path = re.sub(r"/+", "/", urlsplit(decoded).path.rstrip("/"))
    is_absolute = path.startswith("/") and posixpath.normpath(path) == path
    if not is_absolute or "\0" in path or ".." in decoded.split("/"):
        raise Invalid(
            f"Invalid model version source: '{source}'. If supplying a source as an http, https, "
            "local file path, ftp, objectstore, or mlflow-artifacts uri, an absolute path must be "
            "provided without relative path references present. Please provide an absolute path.",
            field="source",
        )


def _not_identified(source: str, field: str) -> Invalid:
    return Invalid(
        f"Invalid model version source: '{source}'. The {field} request parameter must identify "
        "the resource that contains the source.",
        field="source",
    )
