"""Locks that runners report, and those that belong to a job."""

import logging
from typing import Any, cast

from pydantic import ValidationError

from retarget.control.context import Context
from retarget.core.jobs import Attempt, Job
from retarget.core.locks import Lock

_log = logging.getLogger(__name__)


def take_lock(context: Context, job: Job, event: dict[str, Any]) -> str | None:
    """Store the lock that a runner reports with its environment, and return its id.

    None if the event has no valid lock. Storing it again changes nothing.
    """
    if event["kind"] != "environment" or not isinstance(event.get("lock"), dict):
        return None
    digest, reported = job.spec.environment.digest, cast(dict[str, Any], event["lock"])
    if digest is None:
        return None
    known = reported.get("id")
    if known is not None:
        return (
            known if isinstance(known, str) and known in context.store.locks.read([known]) else None
        )
    try:
        return context.store.locks.add(digest, Lock.model_validate(reported), context.clock())
    except ValidationError as error:
        _log.warning("job %s: its runner sent an invalid lock: %s", job.name, error)
        return None


def lock_of(context: Context, attempts: list[Attempt]) -> Lock | None:
    """Return the versions that the last attempt ran with; None if they are not known."""
    lock_id = attempts[-1].lock if attempts else None
    return context.store.locks.read([lock_id]).get(lock_id) if lock_id else None
