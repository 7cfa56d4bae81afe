"""The hints for failed jobs: core/hints, with the files of their snapshots."""

from functools import lru_cache
from pathlib import Path

from retarget.control.context import Context
from retarget.core import hints
from retarget.core.errors import RetargetError
from retarget.core.jobs import Job
from retarget.core.snapshots import decode
from retarget.core.states import JobState


def hint_of(context: Context, job: Job) -> str | None:
    """Return what the user can do about a failed job, or None if there is no hint."""
    snapshot = job.spec.snapshot
    if job.state is not JobState.FAILED or snapshot is None or not hints.needs_files(job.reason):
        return hints.hint_of(job)
    try:
        return hints.hint_of(job, _files(context.files.blobs.path(snapshot)))
    except (OSError, RetargetError):  # the manifest was damaged or deleted
        return None  # what is missing may be the user's own module


@lru_cache(maxsize=32)  # a list may have many jobs of one snapshot, and a snapshot never changes
def _files(manifest: Path) -> tuple[str, ...]:
    return tuple(entry.path for entry in decode(manifest.read_bytes()).entries)
