"""The registry: what jobs left becomes versions of models, each with where it came from."""

import math
from dataclasses import dataclass

from retarget.control.left import below, left, named
from retarget.control.parts import Parts
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Job, Output
from retarget.core.models import (
    REGISTRY,
    Lineage,
    ModelVersion,
    Registration,
    check_model_name,
    check_model_tag,
)
from retarget.core.names import new_id
from retarget.core.tracking import ARTIFACTS, Run, artifact_path
from retarget.store.environments import digest_for


@dataclass(frozen=True)
class Found:
    """What a job left at a path."""

    source: str
    files: list[Output]
    model_id: str | None = None


def register(parts: Parts, name: str, wanted: Registration) -> ModelVersion:
    """Make a version of what a job left, and the model if there is none.

    A version has its own files: it stays when the job is deleted.
    """
    check_model_name(name)
    for key, value in wanted.tags.items():
        check_model_tag(key, value)
    now = parts.now()
    job = parts.jobs.find(wanted.job)
    run = _run(parts, job.id)
    found = _find(parts, job, _plain(wanted.path))
    _keep_blobs(parts, found.files, now)
    draft = ModelVersion(
        name=name,
        description=wanted.description,
        source=found.source,
        location=f"{ARTIFACTS}{REGISTRY}/{new_id(now)}",
        run_id=run.id if run else "",
        model_id=found.model_id,
        created=int(now * 1000),
        changed=int(now * 1000),
        lineage=_lineage(job, run),
        tags=wanted.tags,
    )
    return parts.models.add_version(draft, found.files, make=True)


def lineage(parts: Parts, run_id: str) -> Lineage:
    """Tell what is known now about a run and the job that made it; nothing of one that is gone.

    A job's id is its own run's.
    """
    run = _run(parts, run_id)
    if run is None or run.job_id is None:
        return _lineage(None, run)
    try:
        return _lineage(parts.jobs.read(run.job_id), run)
    except NotFound:
        return _lineage(None, run)


def delete(parts: Parts, name: str, version: int | None = None) -> None:
    """Remove a version, or the model with all of them. Blobs go at the next collection."""
    if version is None:
        parts.models.delete(name)
    else:
        parts.models.delete_version(name, version, now=int(parts.now() * 1000))


def files_of(parts: Parts, version: ModelVersion) -> list[Output]:
    """List the files of a version; those of one that is kept elsewhere are not known here."""
    folder = artifact_path(version.location)
    return below(parts, folder) if folder else []


def _run(parts: Parts, run_id: str) -> Run | None:
    found = parts.runs.load([run_id]) if run_id else []
    return found[0] if found else None


def _plain(path: str) -> str:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or ".." in names or path.startswith("/"):
        raise Invalid(
            f"path: {path!r} is not what a job left; name a file or a folder, such as "
            "outputs/model.pkl",
            field="path",
        )
    return "/".join(names)


def _find(parts: Parts, job: Job, path: str) -> Found:
    """Return a file or a folder of the job, or else a model that its run logged by this name."""
    there = left(parts, job)
    files = [_inside(file, path) for file in there if f"{file.path}/".startswith(f"{path}/")]
    if files:
        return Found(f"runs:/{job.id}/{path}", files)
    logged = parts.logged_models.made_by(job.id)
    for model in logged:
        folder = artifact_path(model.location)
        files = below(parts, folder) if folder and model.name == path else []
        if files:
            return Found(f"models:/{model.id}", files, model.id)
    names = named(there, *(model.name for model in logged))
    raise NotFound(f"job {job.name!r} left no {path!r}; it left {names}")


def _inside(file: Output, path: str) -> Output:
    """Return a file as it stands in its version: what is in a folder, without the folder."""
    inner = file.path[len(path) + 1 :] or path.rpartition("/")[2]
    return file.model_copy(update={"path": inner})


def _keep_blobs(parts: Parts, files: list[Output], now: float) -> None:
    """Have a collection that is under way spare the files."""
    gone = parts.blobs.missing({file.digest for file in files}, now=now)
    if gone:
        raise NotFound(f"{len(gone)} of the files are gone from the server")


def _lineage(job: Job | None, run: Run | None) -> Lineage:
    metrics = {metric.key: _number(metric.value) for metric in run.metrics} if run else {}
    if job is None:
        return Lineage(job_id=run.job_id if run else None, metrics=metrics)
    return Lineage(
        job_id=job.id,
        job_name=job.name,
        snapshot=job.spec.snapshot,
        environment=digest_for(job.spec.environment),
        metrics=metrics,
    )


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
