"""Cleans up: removes ended attempts from their targets, and abandoned uploads."""

import math
from functools import partial
from itertools import groupby

from retarget.control.attempt_table import AttemptTable
from retarget.control.attempts import forget
from retarget.control.context import Context
from retarget.control.executors import Lane, TargetExecutors
from retarget.control.known_targets import KnownTargets

_FORGET_DELAY_SECONDS = 10.0  # for an ended attempt, while jobs wait
_UPLOAD_CHECK_SECONDS = 3600.0  # between two searches for abandoned uploads
_UPLOAD_EXPIRY_SECONDS = 86400.0  # an upload without progress is removed after this


class Cleaner:
    """Only the loop calls it; what waits for a target runs in a thread of that target."""

    def __init__(
        self,
        context: Context,
        table: AttemptTable,
        executors: TargetExecutors,
        targets: KnownTargets,
    ) -> None:
        self._context = context
        self._clock = table.clock
        self._executors = executors
        self._targets = targets
        self._uploads_checked = -math.inf

    def clean(self, *, idle: bool) -> None:
        """Remove ended attempts from their targets, and uploads that made no progress for long.

        While jobs wait, launches come first: attempts that ended a moment ago are skipped.
        """
        ended = self._context.store.jobs.ended_with_handle()
        if not idle:
            before = self._context.clock() - _FORGET_DELAY_SECONDS
            ended = [attempt for attempt in ended if (attempt.ended_at or 0.0) < before]
        ended.sort(key=lambda attempt: attempt.target)
        for target, group in groupby(ended, key=lambda attempt: attempt.target):
            if (context := self._context_for(target)) is not None:
                work = partial(forget, context, list(group))
                self._executors.submit(target, Lane.WATCH, f"forget {target}", work)
        self._remove_abandoned_uploads()

    def _context_for(self, target: str) -> Context | None:
        """Return the context to clean a target with; None if another server looks after it."""
        if self._targets.is_held(target):
            return self._targets.context(target)
        # any server may note that nothing is left on a target that was detached
        return None if self._targets.is_known(target) else self._context

    def _remove_abandoned_uploads(self) -> None:
        now = self._clock()
        if now - self._uploads_checked >= _UPLOAD_CHECK_SECONDS:
            self._uploads_checked = now
            self._context.files.uploads.remove_old(
                before=self._context.clock() - _UPLOAD_EXPIRY_SECONDS
            )
