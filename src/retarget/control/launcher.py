"""Launches attempts: new ones, those whose runner died, and those of an earlier server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from retarget.control.attempt_table import AttemptEvent, AttemptPhase, AttemptTable, Entry
from retarget.control.attempts import cancel_and_forget, current_attempt, end_attempt, end_observed
from retarget.control.context import Context
from retarget.control.decide import on_silence, reason_after_silence
from retarget.control.executors import Lane, TargetExecutors
from retarget.control.known_targets import KnownTargets
from retarget.control.launch import launch_of
from retarget.control.target_checks import TargetChecks
from retarget.core.driver import Driver, Handle, Observation, Phase
from retarget.core.errors import (
    Conflict,
    Gone,
    LaunchRejected,
    NotFound,
    NothingStarted,
    NotReady,
    TargetUnreachable,
)
from retarget.core.jobs import Attempt, Job
from retarget.core.states import JobState
from retarget.runner.durations import show_duration
from retarget.store.job_rows import AttemptChange

_FRESH_SECONDS = 0.1  # an attempt that was read longer ago is read again
_LAUNCH_TIMEOUT_SECONDS = 600.0
_MAX_RETRY_SECONDS = 2.0
_CANCELED = "canceled before it was started"
_ENDED = frozenset({Phase.GONE, Phase.PREEMPTED})

Pair = tuple[Job, Attempt]


@dataclass(frozen=True)
class _Task:
    """One launch of an attempt, which one thread performs."""

    context: Context  # under the lease of the moment when it was decided
    job: Job
    attempt: Attempt
    entry: Entry
    is_first: bool  # nothing of the attempt has reached its target
    started_at: float  # by the clock of the table


@dataclass(frozen=True)
class _Outcome:
    event: AttemptEvent
    explains_silence: bool | None = None  # whether the job's reason says so now; None: unchanged


class _Ended(Exception):
    """The target had the attempt before, and nothing of it runs any more."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation.phase)
        self.observation = observation


class Launcher:
    """The loop calls `launch`; the rest runs in the threads of the targets.

    An attempt in the phase LAUNCHING belongs to one thread: nothing else launches it until that
    thread has reported to the table how its launch ended.
    """

    def __init__(
        self,
        table: AttemptTable,
        *,
        executors: TargetExecutors,
        targets: KnownTargets,
        checks: TargetChecks,
        retry_seconds: float,
    ) -> None:
        self._table = table
        self._executors = executors
        self._targets = targets
        self._checks = checks
        self._retry_seconds = min(_MAX_RETRY_SECONDS, retry_seconds)

    def launch(self, live: Sequence[Pair]) -> None:
        """Begin to launch the attempts that are due."""
        now = self._table.clock()
        for job, attempt in live:
            before = self._table.get(attempt.key)
            if before is None or not _is_due(job, before, now):
                continue
            entry = self._table.apply(before, AttemptEvent.LAUNCH_STARTED)
            if entry is not None:
                is_first = before.phase is AttemptPhase.PLACED
                context = self._targets.context(attempt.target)
                self._submit(_Task(context, job, attempt, entry, is_first, now))

    def _submit(self, task: _Task) -> None:
        key = task.attempt.key
        is_submitted = self._executors.submit(
            task.attempt.target, Lane.LAUNCH, f"attempt {key}", lambda: self._run(task)
        )
        if not is_submitted:  # the thread of the last launch is just ending: next round
            self._table.apply(task.entry, _failure(nothing_started=task.is_first))

    def _run(self, task: _Task) -> None:
        outcome = _Outcome(AttemptEvent.LAUNCH_FAILED)
        try:
            outcome = self._try(self._refreshed(task))
        except Gone:
            pass  # it ended while this launch was waiting for a thread
        finally:
            not_before = -math.inf
            if outcome.event is not AttemptEvent.LAUNCHED:
                not_before = self._table.clock() + self._retry_seconds
            self._table.apply(
                task.entry,
                outcome.event,
                not_before=not_before,
                explains_silence=outcome.explains_silence,
            )

    def _refreshed(self, task: _Task) -> _Task:
        """Return a launch with the attempt as it is now, or raise Gone if it has ended."""
        if self._table.clock() - task.started_at <= _FRESH_SECONDS:
            return task
        job, attempt = current_attempt(task.context, task.attempt.key)
        return replace(task, job=job, attempt=attempt, started_at=self._table.clock())

    def _try(self, task: _Task) -> _Outcome:
        """Launch an attempt, or launch it again: then its runner learns this server's address."""
        if task.is_first and task.job.state is JobState.CANCELING:
            end_attempt(task.context, task.attempt, _CANCELED)
            return _Outcome(AttemptEvent.NOTHING_STARTED)
        try:
            driver, handle = self._send(task)
        except _Ended as error:
            end_observed(task.context, task.attempt, error.observation, "")
            return _Outcome(AttemptEvent.LAUNCH_FAILED)
        except LaunchRejected as error:
            if error.log:
                task.context.files.streams.append(
                    task.attempt.key, "prepare", 0, error.log.encode()
                )
            end_attempt(task.context, task.attempt, str(error))
            return _Outcome(AttemptEvent.LAUNCH_FAILED)
        except (TargetUnreachable, OSError) as error:
            return self._on_failure(task, error)
        return self._adopt(task, driver, handle)

    def _send(self, task: _Task) -> tuple[Driver, Handle]:
        """Pass an attempt to its driver, unless the target had it before and has lost it."""
        context, job, attempt = task.context, task.job, task.attempt
        target = self._targets.find(attempt.target)
        driver = context.links.connect(target)
        if attempt.handle is not None:
            observation = driver.poll([Handle(attempt.handle)])[0]
            if observation.phase in _ENDED:  # another launch could start the script twice
                raise _Ended(observation)
        elif target.inventory is not None and target.inventory.has_changing_nodes:
            # after a power cut, an attempt that is not on disk could be placed on another node
            context.files.sync()
        return driver, driver.launch(launch_of(context, job, attempt, target.inventory))

    def _adopt(self, task: _Task, driver: Driver, handle: Handle) -> _Outcome:
        attempt = task.attempt
        if attempt.handle != handle:
            change: AttemptChange = {"handle": handle, "launched_at": task.context.clock()}
            task.context.store.jobs.change_attempt(attempt.key, change)
            try:
                task.context.store.targets.find(attempt.target)
            except NotFound:  # detached with force meanwhile: nothing else stops it
                launched = attempt.model_copy(update={"handle": handle})
                cancel_and_forget(task.context, driver, launched)
        elif task.entry.explains_silence:
            task.context.store.jobs.explain(task.job, reason_after_silence(task.job))
        if task.job.state is JobState.CANCELING:
            task.context.bus.wake()
        return _Outcome(AttemptEvent.LAUNCHED, explains_silence=False)

    def _on_failure(self, task: _Task, error: Exception) -> _Outcome:
        nothing_started = task.is_first and isinstance(error, NothingStarted)
        outcome = _Outcome(_failure(nothing_started=nothing_started))
        is_ready = not isinstance(error, NotReady)
        if task.job.state is JobState.CANCELING and (nothing_started or not is_ready):
            end_attempt(task.context, task.attempt, _CANCELED)
            return outcome
        if (
            nothing_started
            and is_ready
            and self._checks.is_unavailable(task.context, task.attempt, since=task.started_at)
            and self._unplace(task, error)
        ):
            return outcome
        return self._explain_or_end(task, error, outcome)

    def _unplace(self, task: _Task, error: Exception) -> bool:
        """Undo a placement that started nothing. Return whether it was undone."""
        reason = f"{error}; nothing was started, and the job waits for another node"
        job, now = task.job, task.context.clock()
        try:
            task.context.store.jobs.unplace(job, task.attempt, reason=reason, now=now)
        except Conflict:  # the next launch shows what happened
            return False
        task.context.bus.wake()
        return True

    def _explain_or_end(self, task: _Task, error: Exception, outcome: _Outcome) -> _Outcome:
        """Write why a launch is tried again later, or end its attempt: it took too long."""
        job, attempt, now = task.job, task.attempt, task.context.clock()
        may_take_long = isinstance(error, NotReady) or attempt.handle is not None
        silence = Observation(phase=Phase.SILENT, reason=str(error))
        lost, _ = on_silence(job, attempt, silence, now)
        if (
            lost is None
            and now - attempt.created_at > _LAUNCH_TIMEOUT_SECONDS
            and not may_take_long
        ):
            limit = show_duration(_LAUNCH_TIMEOUT_SECONDS)
            lost = f"the job could not be launched within {limit}: {error}"
        if lost is not None:
            end_attempt(task.context, attempt, lost)
            return outcome
        why = str(error) if may_take_long else f"the job cannot be launched yet: {error}; retrying"
        task.context.store.jobs.explain(job, why)
        return replace(outcome, explains_silence=attempt.handle is not None)


def _is_due(job: Job, entry: Entry, now: float) -> bool:
    """Return whether to launch an attempt now. If it is canceled, it need not wait."""
    is_canceled = job.state is JobState.CANCELING and entry.phase is AttemptPhase.PLACED
    return now >= entry.not_before or is_canceled


def _failure(*, nothing_started: bool) -> AttemptEvent:
    return AttemptEvent.NOTHING_STARTED if nothing_started else AttemptEvent.LAUNCH_FAILED
