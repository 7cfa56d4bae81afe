"""Where the files of a new version are: what may be given as its source, and what it means."""

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote_plus, urlsplit

from retarget.control import models
from retarget.control.parts import Parts
from retarget.core.errors import Invalid, NotFound
from retarget.core.limits import LONGEST_LOCATION, check_length
from retarget.core.models import LATEST, Lineage, ModelVersion, check_stage, check_version

_HERE = ("", ".", "localhost", "127.0.0.1")


@dataclass(frozen=True)
class Source:
    source: str
    location: str
    run_id: str
    model_id: str | None
    lineage: Lineage


def read_source(parts: Parts, source: str, run_id: str, model_id: str, job_id: str) -> Source:
    """Return what a source means, or raise Invalid for one that cannot be a version's.

    `job_id` is the job that asks, which is where a version comes from that names no run.
    """
    check_length("source", source, LONGEST_LOCATION)
    try:
        scheme = urlsplit(source).scheme
    except ValueError:
        raise Invalid(f"Invalid model version source: '{source}'.", field="source") from None
    if scheme == "models":
        return _of_model(parts, source, run_id, model_id, job_id)
    logged = parts.logged_models.get(model_id) if model_id else None
    if _is_local(source):
        root = logged.location if logged else _run_location(parts, source, run_id)
        _check_inside(source, root, "model_id" if model_id else "run_id")
    else:
        _check_absolute(source)
    run_id = run_id or (logged.run_id if logged else "") or ""
    made_by = (logged.job_id if logged else "") or job_id
    lineage = models.lineage(parts, run_id or made_by)
    return Source(source, source, run_id, model_id or None, lineage)


def _of_model(parts: Parts, source: str, run_id: str, model_id: str, job_id: str) -> Source:
    """Read models:/…: a logged model by its id, or another version."""
    address = urlsplit(source, allow_fragments=False)
    names = address.path.strip("/").split("/")
    if address.netloc or len(names) > 2 or not all(name.strip() for name in names):
        raise _wrong(source, "model_id")
    try:
        if len(names) == 1 and "@" not in names[0]:
            logged = parts.logged_models.get(names[0])
            run_id = run_id or logged.run_id or ""
            lineage = models.lineage(parts, run_id or logged.job_id or job_id)
            return Source(source, logged.location, run_id, logged.id, lineage)
        seen = _version(parts, names)
    except NotFound as error:
        raise NotFound(
            f"Unable to fetch model from model URI source artifact location '{source}'."
            f"Error: {error}"
        ) from None
    given = f"models:/{seen.name}/{seen.version}"
    known = model_id or seen.model_id
    return Source(given, seen.location, run_id or seen.run_id, known, seen.lineage)


def _version(parts: Parts, names: list[str]) -> ModelVersion:
    """Return the version that NAME/NUMBER, NAME/STAGE, NAME/latest or NAME@ALIAS means."""
    if len(names) == 1:
        name, _, alias = names[0].rpartition("@")
        return parts.models.by_alias(name, alias)
    name, end = names
    if end.isdecimal():
        return parts.models.get_version(name, check_version(end))
    if end.lower() == LATEST:
        return parts.models.by_alias(name, LATEST)
    found = parts.models.latest(name, [check_stage(end)])
    if not found:
        raise NotFound(f"No versions of model with name '{name}' and stage '{end}' found")
    return found[0]


def _is_local(source: str) -> bool:
    address = urlsplit(source)
    if address.scheme == "file" and (address.hostname or "") not in _HERE:
        raise Invalid(f"{source} is not a valid remote uri.", field="source")
    return address.scheme in ("", "file")


def _run_location(parts: Parts, source: str, run_id: str) -> str:
    if not run_id:
        return ""
    found = parts.runs.load([run_id])
    if not found:
        raise _wrong(source, "run_id")
    return found[0].location


def _check_inside(source: str, root: str, field: str) -> None:
    """Raise Invalid unless a local path is in the folder of the run or the logged model."""
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
    """Raise Invalid for an address that leads out of where it seems to lead."""
    plain = source
    while (unquoted := unquote_plus(plain)) != plain:
        plain = unquoted
    path = re.sub(r"/+", "/", urlsplit(plain).path.rstrip("/"))
    upright = path.startswith("/") and posixpath.normpath(path) == path
    if not upright or "\0" in path or ".." in plain.split("/"):
        raise Invalid(
            f"Invalid model version source: '{source}'. If supplying a source as an http, https, "
            "local file path, ftp, objectstore, or mlflow-artifacts uri, an absolute path must be "
            "provided without relative path references present. Please provide an absolute path.",
            field="source",
        )


def _wrong(source: str, field: str) -> Invalid:
    return Invalid(
        f"Invalid model version source: '{source}'. The {field} request parameter must identify "
        "the resource that contains the source.",
        field="source",
    )
