"""Snapshots: whether one was uploaded completely, and the blobs that are in use."""

from retarget.control.context import Context
from retarget.core.environments import Environment
from retarget.core.errors import Invalid, NotFound
from retarget.core.snapshots import decode


def check_snapshot(context: Context, snapshot: str | None, field: str) -> None:
    """Raise Invalid unless a snapshot was uploaded completely."""
    if snapshot is None:
        return
    now = context.clock()
    try:
        missing = context.files.snapshots.missing(
            snapshot, lambda: _sizes_in(context, snapshot), now=now
        )
    except NotFound:
        raise Invalid(f"{field}: not found on the server; upload it first", field=field) from None
    if missing:
        raise Invalid(f"{field}: {len(missing)} of its files were not uploaded", field=field)


def check_context(context: Context, environment: Environment) -> None:
    """Raise Invalid unless the build context of an environment was uploaded completely."""
    check_snapshot(context, environment.context, "context")


def referenced_blobs(context: Context) -> set[str]:
    """Return every blob that a job, an environment, an artifact or a model refers to."""
    blobs = context.store.outputs.digests() | context.store.artifacts.digests()
    snapshots = (
        context.store.jobs.snapshots()
        | context.store.jobs.build_contexts()
        | context.store.environments.build_contexts()
    )
    for snapshot in snapshots | context.store.models.snapshots():
        blobs |= {snapshot, *decode(context.files.blobs.path(snapshot).read_bytes()).digests()}
    return blobs


def _sizes_in(context: Context, snapshot: str) -> dict[str, int]:
    path = context.files.blobs.checked_path(snapshot, None)
    return decode(path.read_bytes()).sizes()
