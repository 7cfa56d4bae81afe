"""What a job left: the files in its outputs/ and logs/, and the artifacts of its run."""

from contextlib import suppress

from retarget.control.parts import Parts
from retarget.core.errors import Invalid, NotFound
from retarget.core.jobs import Job, Output
from retarget.core.tracking import artifact_path

_SHOWN = 5  # how many paths a message names


def left(parts: Parts, job: Job) -> list[Output]:
    """Return all a job left so far, by path; an artifact stands before an output at its path."""
    found = {each.path: each for each in parts.outputs.list(job.id, job.attempt)}
    folder = artifacts_of(parts, job)
    found |= {each.path: each for each in (below(parts, folder) if folder else [])}
    return [found[path] for path in sorted(found)]


def find_left(parts: Parts, job: Job, path: str) -> Output:
    """Return one file, or raise NotFound that names some of those there are."""
    folder = artifacts_of(parts, job)
    if folder is not None:  # outputs stand there too: no need to go through all of them
        with suppress(NotFound, Invalid):
            file = parts.artifacts.find(f"{folder}/{path}")
            return Output(path=path, size=file.size, digest=file.digest)
    there = left(parts, job)
    for each in there:
        if each.path == path:
            return each
    raise NotFound(f"job {job.name!r} left no file {path!r}; it left {named(there)}")


def artifacts_of(parts: Parts, job: Job) -> str | None:
    """Return the folder of a job's artifacts; None if they are not ours to keep."""
    try:
        return artifact_path(parts.track.run_of(job.id)[1])
    except NotFound:
        return None  # submitted before there were runs


def below(parts: Parts, folder: str) -> list[Output]:
    """Return the files below a folder of the artifacts; their paths begin there."""
    return [
        Output(path=each.path[len(folder) + 1 :], size=each.size, digest=each.digest)
        for each in parts.artifacts.walk(folder)
        if each.path != folder
    ]


def named(files: list[Output], *others: str) -> str:
    """Name some of these for a sentence."""
    names = [*others, *(file.path for file in files)]
    more = ", …" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "nothing") + more
