"""Watches launched attempts: polls them, acts on what is observed, and asks for stops."""

import logging
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from retarget.control.attempt_table import AttemptEvent, AttemptTable, Entry
from retarget.control.attempts import end_attempt, end_observed
from retarget.control.context import Context
from retarget.control.decide import (
    Need,
    on_observation,
    on_silence,
    reason_after_silence,
)
from retarget.control.executors import Lane, TargetExecutors
from retarget.control.gang import must_stop
from retarget.control.known_targets import KnownTargets
from retarget.core.driver import Driver, Handle, Observation, Phase
from retarget.core.errors import NotFound, TargetUnreachable
from retarget.core.jobs import Attempt, Job
from retarget.core.states import JobState

Pair = tuple[Job, Attempt]
Watched = tuple[Job, Attempt, Entry]
_log = logging.getLogger(__name__)


class Watcher:
    """The loop calls the public methods; the rest runs in the threads of the targets.

    A thread observes the attempts as the loop read them. The table ignores what it reports about
    those that were launched again meanwhile.
    """

    def __init__(
        self, table: AttemptTable, executors: TargetExecutors, targets: KnownTargets
    ) -> None:
        self._table = table
        self._executors = executors
        self._targets = targets

    def cancel(self, live: Sequence[Pair]) -> None:
        """Ask the runners of all attempts that must stop to do so."""
        for job, attempt in live:
            context = self._targets.context(attempt.target)
            if attempt.handle is not None and _must_stop(context, job, attempt):
                self._executors.submit(
                    attempt.target,
                    Lane.WATCH,
                    f"cancel {attempt.key}",
                    partial(_request_stop, context, job, attempt),
                )

    def poll(self, live: Sequence[Pair]) -> None:
        """Poll the attempts whose runners know this server, each target in one call."""
        watched = [
            (job, attempt, entry)
            for job, attempt in live
            if attempt.handle and (entry := self._table.get(attempt.key)) and entry.is_launched
        ]
        watched.sort(key=lambda item: item[1].target)
        for name, group in groupby(watched, key=lambda item: item[1].target):
            self._executors.submit(
                name,
                Lane.WATCH,
                f"poll {name}",
                partial(self._poll, self._targets.context(name), tuple(group)),
            )

    def _poll(self, context: Context, watched: Sequence[Watched]) -> None:
        driver = context.driver(watched[0][1].target)
        observations = driver.poll([Handle(attempt.handle or "") for _, attempt, _ in watched])
        for item, observation in zip(watched, observations, strict=True):
            job, _, entry = item
            if observation.phase is Phase.SILENT:
                self._on_silence(context, item, observation)
            elif self._table.apply(entry, AttemptEvent.ANSWER, explains_silence=False):
                if entry.explains_silence:
                    context.store.jobs.explain(job, reason_after_silence(job))
                self._on_observation(context, driver, item, observation)

    def _on_silence(self, context: Context, item: Watched, observation: Observation) -> None:
        """Give up a silent launch, or explain that its job waits: it may still be running."""
        job, attempt, entry = item
        if not self._table.apply(entry, AttemptEvent.SILENCE, explains_silence=True):
            return
        lost, reason = on_silence(job, attempt, observation, context.clock())
        if lost is not None:
            end_attempt(context, attempt, lost)
        else:
            context.store.jobs.explain(job, reason)

    def _on_observation(
        self, context: Context, driver: Driver, item: Watched, observation: Observation
    ) -> None:
        _, attempt, entry = item
        match on_observation(attempt, observation):
            case Need.NOTHING:
                pass
            case Need.RESUME:
                context.store.jobs.change_attempt(attempt.key, {"resumes": attempt.resumes + 1})
                self._table.apply(entry, AttemptEvent.RUNNER_DIED)
                context.bus.wake()
            case Need.GIVE_UP:
                diagnosis = driver.diagnose(Handle(attempt.handle or ""))
                end_observed(context, attempt, observation, diagnosis)


def _must_stop(context: Context, job: Job, attempt: Attempt) -> bool:
    has_reports = job.spec.nodes > 1 and job.state is not JobState.LAUNCHING
    reports = context.store.node_reports.of(attempt.key) if has_reports else ()
    return must_stop(job, reports)


def _request_stop(context: Context, job: Job, attempt: Attempt) -> None:
    try:
        context.driver(attempt.target).cancel(Handle(attempt.handle or ""))
    except (TargetUnreachable, NotFound, OSError) as error:  # the next round tries again
        _log.warning("job %s cannot be stopped yet: %s", job.name, error)
