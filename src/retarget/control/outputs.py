"""The files of a job: outputs, logs, and the artifacts of its run."""

from contextlib import suppress

from retarget.control.context import Context
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Job, Output
from retarget.core.tracking import artifact_path

_MAX_PATHS_IN_MESSAGE = 5


def list_files(context: Context, job: Job) -> list[Output]:
    """Return the files of a job so far, sorted by path. An artifact hides an output of its path."""
    files = {file.path: file for file in context.store.outputs.list(job.id, job.attempt)}
    folder = artifact_folder(context, job)
    files |= {file.path: file for file in (list_artifacts(context, folder) if folder else [])}
    return [files[path] for path in sorted(files)]


def find_file(context: Context, job: Job, path: str) -> Output:
    """Return one file of a job, or raise NotFound that names some of its files."""
    folder = artifact_folder(context, job)
    if folder is not None:  # outputs are in this tree, too: no need to list all files
        with suppress(NotFound, Invalid):
            artifact = context.store.artifacts.find(f"{folder}/{path}")
            return Output(path=path, size=artifact.size, digest=artifact.digest)
    files = list_files(context, job)
    for file in files:
        if file.path == path:
            return file
    raise NotFound(f"job {job.name!r} has no file {path!r}; it has {format_paths(files)}")


def artifact_folder(context: Context, job: Job) -> str | None:
    """Return the folder of a job's artifacts; None if they are not stored on this server."""
    try:
        return artifact_path(context.store.track.run_of(job.id)[1])
    except NotFound:
        return None  # submitted before there were runs


def list_artifacts(context: Context, folder: str) -> list[Output]:
    """Return the files in a folder of the artifacts, with paths relative to it."""
    return [
        Output(path=file.path[len(folder) + 1 :], size=file.size, digest=file.digest)
        for file in context.store.artifacts.walk(folder)
        if file.path != folder
    ]


def format_paths(files: list[Output], *names: str) -> str:
    """Return some of these names and paths for a message."""
    shown = [*names, *(file.path for file in files)]
    more = ", …" if len(shown) > _MAX_PATHS_IN_MESSAGE else ""
    return (", ".join(shown[:_MAX_PATHS_IN_MESSAGE]) or "nothing") + more
