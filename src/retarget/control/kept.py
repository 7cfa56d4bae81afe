"""What runners report about files outside of outputs/, and what belongs to a job."""

import logging
from typing import Any

from pydantic import TypeAdapter, ValidationError

from retarget.control.context import Context
from retarget.core.jobs import Job
from retarget.core.kept import Kept, combine_nodes

_log = logging.getLogger(__name__)
_reports = TypeAdapter(Kept)


def take_kept(context: Context, job: Job, event: dict[str, Any], node: int = 0) -> None:
    """Store what a runner kept, if the event says so. Storing it again changes nothing."""
    if event["kind"] != "kept":
        return
    try:
        kept = _reports.validate_python(event)
    except ValidationError as error:
        _log.warning("job %s: its runner sent an invalid report of kept files: %s", job.name, error)
        return
    context.store.kept_files.put(job.id, job.attempt, node, kept)


def kept_of(context: Context, job: Job) -> Kept | None:
    """Return what the last attempt of a job wrote outside of outputs/; None if nothing."""
    return combine_nodes(context.store.kept_files.read(job.id, job.attempt))
