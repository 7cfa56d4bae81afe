"""Launches attempts: new ones, those whose runner died, and those of an earlier server."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from retarget.control.attempt_table import AttemptEvent, AttemptPhase, AttemptTable, Entry
from retarget.control.cleaner import cancel_and_forget
from retarget.control.context import Context
from retarget.control.decide import failure_reason, on_silence, reason_after_silence
from retarget.control.endings import end_attempt
from retarget.control.executors import Lane, TargetExecutors
from retarget.control.known_targets import KnownTargets
from retarget.control.launch import launch_of
from retarget.control.report import current_attempt
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
from retarget.store.jobs import AttemptChange

_FRESH_SECONDS = 0.1  # an attempt that was read longer ago is read again
_LAUNCH_TIMEOUT_SECONDS = 600.0
_MAX_RETRY_SECONDS = 2.0
_CANCELED = "canceled before it was started"

Pair = tuple[Job, Attempt]


@dataclass(frozen=True)
class _Try:
    """One launch of an attempt, as a thread does it."""

    context: Context  # under the lease of the moment when it was decided
    job: Job
    attempt: Attempt
    entry: Entry
    is_first: bool  # nothing of the attempt has reached its target
    begun: float  # by the clock of the table


@dataclass(frozen=True)
class _Outcome:
    event: AttemptEvent
    explains_silence: bool | None = None  # what it made of the job's reason; None: nothing


class Launcher:
    """The loop calls `launch`; the rest runs in the threads of the targets.

    An attempt in the phase LAUNCHING belongs to one thread: nothing else launches it until that
    thread has told the table how its launch ended.
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
            entry = self._table.apply(before, AttemptEvent.LAUNCH_BEGUN)
            if entry is not None:
                is_first = before.phase is AttemptPhase.PLACED
                context = self._targets.context(attempt.target)
                self._submit(_Try(context, job, attempt, entry, is_first, now))

    def _submit(self, this: _Try) -> None:
        key = this.attempt.key
        begun = self._executors.submit(
            this.attempt.target, Lane.LAUNCH, f"attempt {key}", lambda: self._run(this)
        )
        if not begun:  # the thread of the last launch is just ending: next round
            self._table.apply(this.entry, _failure(nothing_started=this.is_first))

    def _run(self, this: _Try) -> None:
        outcome = _Outcome(AttemptEvent.LAUNCH_FAILED)
        try:
            outcome = self._try(self._fresh(this))
        except Gone:
            pass  # it ended while this launch was waiting for a thread
        finally:
            not_before = -math.inf
            if outcome.event is not AttemptEvent.LAUNCHED:
                not_before = self._table.clock() + self._retry_seconds
            self._table.apply(
                this.entry,
                outcome.event,
                not_before=not_before,
                explains_silence=outcome.explains_silence,
            )

    def _fresh(self, this: _Try) -> _Try:
        """Return a launch with the attempt as it is now, or raise Gone if it has ended."""
        if self._table.clock() - this.begun <= _FRESH_SECONDS:
            return this
        job, attempt = current_attempt(this.context, this.attempt.key)
        return replace(this, job=job, attempt=attempt, begun=self._table.clock())

    def _try(self, this: _Try) -> _Outcome:
        """Launch an attempt, or launch it again: then its runner learns this server's address."""
        if this.is_first and this.job.state is JobState.CANCELING:
            end_attempt(this.context, this.attempt, _CANCELED)
            return _Outcome(AttemptEvent.NOTHING_STARTED)
        try:
            driver, handle = self._send(this)
        except LaunchRejected as error:
            if error.log:
                this.context.streams.append(this.attempt.key, "prepare", 0, error.log.encode())
            end_attempt(this.context, this.attempt, str(error))
            return _Outcome(AttemptEvent.LAUNCH_FAILED)
        except (TargetUnreachable, OSError) as error:
            return self._on_failure(this, error)
        return self._adopt(this, driver, handle)

    def _send(self, this: _Try) -> tuple[Driver, Handle]:
        """Pass an attempt to its driver, unless the target had it before and has lost it."""
        context, job, attempt = this.context, this.job, this.attempt
        target = self._targets.find(attempt.target)
        driver = context.connect(target)
        if attempt.handle is not None:
            observation = driver.poll([Handle(attempt.handle)])[0]
            if observation.phase is Phase.GONE:  # another launch could start the script twice
                raise LaunchRejected(failure_reason(observation, ""))
        elif target.inventory is not None and target.inventory.has_changing_nodes:
            # after a power cut, an attempt that is not on disk could be placed on another node
            context.sync()
        return driver, driver.launch(launch_of(context, job, attempt, target.inventory))

    def _adopt(self, this: _Try, driver: Driver, handle: Handle) -> _Outcome:
        attempt = this.attempt
        if attempt.handle != handle:
            change: AttemptChange = {"handle": handle, "launched_at": this.context.now()}
            this.context.jobs.change_attempt(attempt.key, change)
            try:
                this.context.targets.find(attempt.target)
            except NotFound:  # detached with force meanwhile: nothing else stops it
                launched = attempt.model_copy(update={"handle": handle})
                cancel_and_forget(this.context, driver, launched)
        elif this.entry.explains_silence:
            this.context.jobs.explain(this.job, reason_after_silence(this.job))
        if this.job.state is JobState.CANCELING:
            this.context.wake()
        return _Outcome(AttemptEvent.LAUNCHED, explains_silence=False)

    def _on_failure(self, this: _Try, error: Exception) -> _Outcome:
        nothing_started = this.is_first and isinstance(error, NothingStarted)
        outcome = _Outcome(_failure(nothing_started=nothing_started))
        is_ready = not isinstance(error, NotReady)
        if this.job.state is JobState.CANCELING and (nothing_started or not is_ready):
            end_attempt(this.context, this.attempt, _CANCELED)
            return outcome
        if (
            nothing_started
            and is_ready
            and self._checks.is_unavailable(this.context, this.attempt, since=this.begun)
            and self._unplace(this, error)
        ):
            return outcome
        return self._explain_or_end(this, error, outcome)

    def _unplace(self, this: _Try, error: Exception) -> bool:
        """Undo a placement that started nothing. Return whether it was undone."""
        reason = f"{error}; nothing was started, and the job waits for another node"
        job, now = this.job, this.context.now()
        try:
            this.context.jobs.unplace(job, this.attempt, reason=reason, now=now)
        except Conflict:  # the next launch shows what happened
            return False
        this.context.wake()
        return True

    def _explain_or_end(self, this: _Try, error: Exception, outcome: _Outcome) -> _Outcome:
        """Write why a launch is tried again later, or end its attempt: it took too long."""
        job, attempt, now = this.job, this.attempt, this.context.now()
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
            end_attempt(this.context, attempt, lost)
            return outcome
        why = str(error) if may_take_long else f"the job cannot be launched yet: {error}; retrying"
        this.context.jobs.explain(job, why)
        return replace(outcome, explains_silence=attempt.handle is not None)


def _is_due(job: Job, entry: Entry, now: float) -> bool:
    """Tell whether to launch an attempt now. One that is canceled before that need not wait."""
    is_canceled = job.state is JobState.CANCELING and entry.phase is AttemptPhase.PLACED
    return now >= entry.not_before or is_canceled


def _failure(*, nothing_started: bool) -> AttemptEvent:
    return AttemptEvent.NOTHING_STARTED if nothing_started else AttemptEvent.LAUNCH_FAILED
