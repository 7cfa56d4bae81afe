"""The model registry: registers files of jobs as versions of models, with their lineage."""

import math
from dataclasses import dataclass

from retarget.control.context import Context
from retarget.control.outputs import format_paths, list_artifacts, list_files
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
class RegistrationSource:
    """The files to register, and where they come from."""

    uri: str
    files: list[Output]
    model_id: str | None = None


def register(context: Context, name: str, registration: Registration) -> ModelVersion:
    """Register files of a job as a new version. Create the model if it does not exist.

    A version has its own files: it stays when the job is deleted.
    """
    check_model_name(name)
    for key, value in registration.tags.items():
        check_model_tag(key, value)
    now = context.clock()
    job = context.store.jobs.find(registration.job)
    run = _run(context, job.id)
    source = _find_source(context, job, _normalize(registration.path))
    _protect_blobs(context, source.files, now)
    draft = ModelVersion(
        name=name,
        description=registration.description,
        source=source.uri,
        location=f"{ARTIFACTS}{REGISTRY}/{new_id(now)}",
        run_id=run.id if run else "",
        model_id=source.model_id,
        created_at=int(now * 1000),
        changed_at=int(now * 1000),
        lineage=_lineage(job, run, _lock_of(context, job)),
        tags=registration.tags,
    )
    return context.store.models.add_version(draft, source.files, make=True)


def lineage(context: Context, run_id: str) -> Lineage:
    """Return what is known about a run and its job. It is empty if they are deleted.

    A job and its own run have the same id.
    """
    run = _run(context, run_id)
    if run is None or run.job_id is None:
        return _lineage(None, run)
    try:
        job = context.store.jobs.read(run.job_id)
        return _lineage(job, run, _lock_of(context, job))
    except NotFound:
        return _lineage(None, run)


def delete(
    context: Context, name: str, version: int | None = None, *, by_job: str | None = None
) -> None:
    """Remove a version, or the model with all versions. The next prune removes the blobs.

    A job (`by_job`) may remove only what it created itself.
    """
    if version is None:
        context.store.models.delete(name, by_job=by_job)
    else:
        now = int(context.clock() * 1000)
        context.store.models.delete_version(name, version, now=now, by_job=by_job)


def files_of(context: Context, version: ModelVersion) -> list[Output]:
    """List the files of a version. Empty if they are not stored on this server."""
    folder = artifact_path(version.location)
    return list_artifacts(context, folder) if folder else []


def _run(context: Context, run_id: str) -> Run | None:
    runs = context.store.runs.load([run_id]) if run_id else []
    return runs[0] if runs else None


def _normalize(path: str) -> str:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if not names or ".." in names or path.startswith("/"):
        raise Invalid(
            f"path: {path!r} is not a path of a job's file; write a file or a folder, such as "
            "outputs/model.pkl",
            field="path",
        )
    return "/".join(names)


def _find_source(context: Context, job: Job, path: str) -> RegistrationSource:
    """Return a file or a folder of the job, or a model that its run logged under this name."""
    job_files = list_files(context, job)
    files = [_relative(file, path) for file in job_files if f"{file.path}/".startswith(f"{path}/")]
    if files:
        return RegistrationSource(f"runs:/{job.id}/{path}", files)
    logged = context.store.logged_models.made_by(job.id)
    for model in logged:
        folder = artifact_path(model.location)
        files = list_artifacts(context, folder) if folder and model.name == path else []
        if files:
            return RegistrationSource(f"models:/{model.id}", files, model.id)
    names = format_paths(job_files, *(model.name for model in logged))
    raise NotFound(f"job {job.name!r} has no {path!r}; it has {names}")


def _relative(file: Output, path: str) -> Output:
    """Return a file with its path in the version: relative to the registered folder."""
    relative = file.path[len(path) + 1 :] or path.rpartition("/")[2]
    return file.model_copy(update={"path": relative})


def _protect_blobs(context: Context, files: list[Output], now: float) -> None:
    """Make sure that a prune that is running does not remove these files."""
    missing = context.files.blobs.missing({file.digest for file in files}, now=now)
    if missing:
        raise NotFound(f"{len(missing)} of the files were deleted from the server")


def _lineage(job: Job | None, run: Run | None, lock: str | None = None) -> Lineage:
    metrics = {metric.key: _number(metric.value) for metric in run.metrics} if run else {}
    if job is None:
        return Lineage(job_id=run.job_id if run else None, metrics=metrics)
    return Lineage(
        job_id=job.id,
        job_name=job.name,
        snapshot=job.spec.snapshot,
        environment=digest_for(job.spec.environment),
        lock=lock,
        metrics=metrics,
    )


def _lock_of(context: Context, job: Job) -> str | None:
    attempts = context.store.jobs.attempts(job.id)
    return attempts[-1].lock if attempts else None


def _number(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
