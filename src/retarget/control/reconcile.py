"""The loop that makes things so: places, launches, watches, cancels and clears away.

It is woken by whatever happens; its timer is only the fallback. Nothing it does is lost when it
is killed: every step is found again in the store, and may be done twice.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import groupby

from retarget.control.decide import Need, giving_up, on_ending, on_observation, on_silence
from retarget.control.gang import is_to_stop
from retarget.control.launch import launch_of
from retarget.control.parts import Parts
from retarget.control.place import Placement, place
from retarget.control.report import present
from retarget.control.submit import check, waiting_reason
from retarget.control.targets import call_off
from retarget.core.driver import Driver, Handle, Observation, Phase
from retarget.core.errors import (
    Conflict,
    Gone,
    LaunchRejected,
    NotFound,
    NothingStarted,
    NotReady,
    RetargetError,
    TargetUnreachable,
)
from retarget.core.jobs import Attempt, Job
from retarget.core.names import new_id
from retarget.core.states import Event, JobState
from retarget.core.targets import Target
from retarget.store.jobs import AttemptChange

_log = logging.getLogger(__name__)
_EVERY = 1.0  # seconds between two looks at the targets
_HEAD = 64  # jobs at the head of a queue that are told why they wait
_NEXT = 2  # jobs that are looked at when something has happened
_RECHECK = 15.0  # seconds after which a target that could not be used is asked again
_ASK = 60.0  # seconds after which one of several nodes is
_AT_ONCE = 3.0  # seconds after which one is that has a node which does not answer
_FRESH = 0.1  # seconds that what was read of an attempt is taken as true
_PATIENCE = 600.0  # seconds to go on trying to launch
_LATER = 10.0  # seconds that an ended attempt may stay on its target while jobs wait
_TIDY = 3600.0  # seconds between two looks at what nobody came back for
_UNFINISHED = 86400.0  # seconds after which an upload that does not go on is removed

Pair = tuple[Job, Attempt]
Reason = tuple[Job, str]


class Loop:
    def __init__(self, parts: Parts, woken: threading.Event, *, every: float = _EVERY) -> None:
        self._parts = parts
        self._every = every
        self._woken = woken  # what `parts.wake` sets
        self._ending = threading.Event()
        self._busy: set[str] = set()  # attempts, and other things, that a thread is working on
        self._turn = threading.Lock()  # of those who add to it
        self._silent: dict[str, str] = {}  # attempts that cannot be seen, and on which target
        self._untouched: set[str] = set()  # attempts of this server's that no target has heard of
        self._adopted: set[str] = set()  # attempts this server has told its address
        self._checked: dict[str, float] = {}  # when this server has last asked a target
        self._targets: dict[str, Target] = {}  # as they were read last
        self._changed: set[str] = set()  # those that have had other settings since
        self._placements: dict[str, int] = {}  # on each of them, as far as this server knows
        self._read = (-1, -math.inf)  # after which change of theirs, and when
        self._polled = 0.0
        self._tidied = -_TIDY
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="launch")
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)

    def start(self) -> None:
        self._woken.set()
        self._thread.start()

    def stop(self) -> None:
        """End the loop. What it was doing is taken up by the next one."""
        self._ending.set()
        self._woken.set()
        self._thread.join(timeout=10)
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._woken.wait(self._every)
            self._woken.clear()
            try:
                self.round()
            except RetargetError as error:
                _log.error("a round of the loop failed: %s", error)
                self._ending.wait(self._every)
            except Exception:  # noqa: BLE001 - the edge of the loop: one bad round must not be the last
                _log.exception("a round of the loop failed")
                self._ending.wait(self._every)

    def round(self) -> None:
        """Do everything that is to be done now."""
        now = time.monotonic()
        due = now - self._polled >= self._every
        targets = self._check_targets()
        live, reasons = self._place(targets, explain=due)
        keys = {attempt.key for _, attempt in live if attempt.target not in self._changed}
        self._untouched &= keys
        self._adopted &= keys  # what is on a target with other settings is looked for anew
        self._changed.clear()
        for key in self._silent.keys() - keys:
            self._silent.pop(key, None)
        self._launch([pair for pair in live if pair[1].key not in self._adopted])
        self._cancel(live)
        self._explain(reasons)
        if due:
            self._polled = now
            self._poll([pair for pair in live if pair[1].key in self._adopted])
            self._forget(idle=not reasons)
            self._tidy(now)

    # -- placing

    def _check_targets(self) -> list[Target]:
        """Return the targets, those asked again that have not been asked for long."""
        for target in self._known_targets():
            if self._is_to_be_asked(target):
                self._checked[target.name] = time.monotonic()
                self._in_background(
                    f"check {target.name}", lambda target=target: self._check(target)
                )
        return self._known_targets()

    def _check(self, target: Target) -> None:
        with suppress(TargetUnreachable, NotFound):  # remembered as the target's reason; detached
            check(self._parts, target)
        self._parts.wake()

    def _known_targets(self) -> list[Target]:
        """Return the targets, read again when this server has changed one, and now and then."""
        now, changes = time.monotonic(), self._parts.targets.changes
        if changes != self._read[0] or now - self._read[1] >= self._every:
            self._read = changes, now
            # before their settings are: one that is changed in between takes no placement
            self._placements = self._parts.targets.all_placements()
            before, found = self._targets, self._parts.targets.list()
            self._targets = {target.name: target for target in found}
            self._changed |= {
                each.name
                for each in found
                if each.name in before and each.config != before[each.name].config
            }
        return list(self._targets.values())

    def _is_to_be_asked(self, target: Target) -> bool:
        asked = self._checked.get(target.name)
        if asked is None:
            return True
        nodes = target.facts.nodes if target.facts else ()
        patience = _ASK if len(nodes) > 1 else math.inf
        if target.reason or any(node.reason for node in nodes):
            patience = _RECHECK
        elif target.name in self._silent.values():
            patience = _AT_ONCE
        return time.monotonic() - asked > patience

    def _place(self, targets: list[Target], *, explain: bool) -> tuple[list[Pair], list[Reason]]:
        """Place what fits. Return what is live then, and what else is to be said."""
        most = _HEAD if explain else _NEXT
        targets = [target for target in targets if target.name not in self._parts.moving]
        queues = {
            target.name: self._parts.jobs.queued(target.name, most=most) for target in targets
        }
        live, reasons = self._parts.jobs.live(), list[Reason]()
        for target in targets:
            queued = queues[target.name]
            if queued and (target.facts is None or target.reason):
                reason = f"target {target.name!r} cannot be used: {target.reason}"
                reasons += [(job, reason) for job in queued]
            elif queued and target.facts is not None:
                there = [pair for pair in live if pair[1].target == target.name]
                placements = place(queued, there, target.facts)
                live += self._start_all(target, placements)
                if explain or not placements[0].starts:  # a moving queue is told once in a while
                    reasons += _reasons(target, placements, explain=explain)
                if len(queued) == most and placements[-1].starts:
                    self._parts.wake()  # there was room for more than this round looked at
        return live, reasons

    def _start_all(self, target: Target, placements: Sequence[Placement]) -> Iterator[Pair]:
        for placement in placements:
            if placement.starts:
                try:
                    started = self._start(placement, target)
                except Conflict:  # moved by an order, or another server: next round
                    self._read = -1, 0.0
                    return
                self._placements[target.name] += 1
                yield started

    def _explain(self, reasons: Sequence[Reason]) -> None:
        self._parts.jobs.explain_all(reasons)
        for job, reason in reasons:
            if reason != job.reason:
                self._parts.notify(job.id)

    def _start(self, placement: Placement, target: Target) -> Pair:
        job, now, seen = placement.job, self._parts.now(), self._placements.get(target.name, -1)
        attempt = Attempt(
            key=new_id(now),
            job_id=job.id,
            number=job.attempt + 1,
            target=target.name,
            shares=placement.shares,
            fence=target.facts.fence if target.facts and job.retries_left else None,
            created=now,
        )
        reason = f"starting its runner on {target.name}"
        placed = self._parts.jobs.place(job, attempt, reason=reason, now=now, seen=seen)
        self._untouched.add(attempt.key)
        self._parts.notify(job.id)
        return placed, attempt

    # -- launching

    def _launch(self, pairs: Sequence[Pair]) -> None:
        now = time.monotonic()
        for pair in pairs:
            self._in_background(pair[1].key, lambda pair=pair: self._try(pair, read=now))

    def _in_background(self, key: str, work: Callable[[], object]) -> None:
        with self._turn:
            if key in self._busy:
                return
            self._busy.add(key)
        self._pool.submit(self._guarded, key, work)

    def _guarded(self, key: str, work: Callable[[], object]) -> None:
        try:
            work()
        except RetargetError as error:
            _log.error("attempt %s: %s", key, error)
        except Exception:  # noqa: BLE001 - the edge of a thread
            _log.exception("attempt %s", key)
        finally:
            self._busy.discard(key)

    def _try(self, pair: Pair, *, read: float) -> None:
        """Launch an attempt, or launch it again: a new server's address reaches it like this."""
        job, attempt = pair
        if time.monotonic() - read > _FRESH:
            try:
                job, attempt = present(self._parts, attempt.key)
            except Gone:
                return  # it ended while this was waiting for its turn
        untouched = attempt.key in self._untouched
        self._untouched.discard(attempt.key)
        try:
            driver, handle = self._give(job, attempt)
        except LaunchRejected as error:
            self._reject(attempt, error)
        except (TargetUnreachable, OSError) as error:
            if untouched and isinstance(error, NothingStarted):
                self._untouched.add(attempt.key)
            if not self._is_taken_back(job, attempt, error):
                self._later(job, attempt, error)
        else:
            self._adopt(job, attempt, driver, handle)

    def _reject(self, attempt: Attempt, error: LaunchRejected) -> None:
        if error.said:
            self._parts.streams.append(attempt.key, "prepare", 0, error.said.encode())
        self._end(attempt, str(error))

    def _adopt(self, job: Job, attempt: Attempt, driver: Driver, handle: Handle) -> None:
        if attempt.handle != handle:
            told: AttemptChange = {"handle": handle, "launched": self._parts.now()}
            self._parts.jobs.change_attempt(attempt.key, told)
            try:
                self._parts.targets.find(attempt.target)
            except NotFound:  # detached by force meanwhile: nobody else sees to it
                call_off(driver, handle)
        self._adopted.add(attempt.key)
        if job.state is JobState.CANCELING:
            self._parts.wake()

    def _give(self, job: Job, attempt: Attempt) -> tuple[Driver, Handle]:
        """Give an attempt to its driver, unless it had it before and has lost it."""
        target = self._targets.get(attempt.target) or self._parts.targets.find(attempt.target)
        driver = self._parts.connect(target)
        if attempt.handle is not None:
            seen = driver.poll([Handle(attempt.handle)])[0]
            if seen.phase is Phase.GONE:  # launching it again could start the script again
                raise LaunchRejected(giving_up(seen, ""))
        return driver, driver.launch(launch_of(self._parts, job, attempt, target.facts))

    def _is_taken_back(self, job: Job, attempt: Attempt, error: Exception) -> bool:
        """Give up a place that nothing came of, if it is not there any more or not wanted."""
        ready = not isinstance(error, NotReady)
        if ready and attempt.key not in self._untouched:
            return False
        if job.state is JobState.CANCELING:
            self._end(attempt, "canceled before it was started")
            return True
        if not (ready and self._is_set_aside(attempt)):
            return False
        reason = f"{error}; nothing was started there, and it waits for another place"
        with suppress(Conflict):  # the next try finds out more
            self._parts.jobs.take_back(job, attempt, reason=reason, now=self._parts.now())
            self._parts.notify(job.id)
            self._parts.wake()
            return True
        return False

    def _is_set_aside(self, attempt: Attempt) -> bool:
        """Ask again whether what the attempt was to have is there."""
        self._checked[attempt.target] = time.monotonic()
        try:
            facts = check(self._parts, self._parts.targets.find(attempt.target))
        except TargetUnreachable:
            return True
        there = {node.name for node in facts.nodes if not node.reason}
        return any(share.node not in there for share in attempt.shares)

    def _later(self, job: Job, attempt: Attempt, error: Exception) -> None:
        patient = isinstance(error, NotReady) or attempt.handle is not None
        now = self._parts.now()
        silence = Observation(phase=Phase.SILENT, reason=str(error))
        lost, _ = on_silence(job, attempt, silence, now)
        if lost is None and now - attempt.created > _PATIENCE and not patient:
            lost = f"could not be launched for {_PATIENCE:g} s: {error}"
        if lost is not None:
            self._end(attempt, lost)
            return
        why = str(error) if patient else f"cannot launch yet: {error}; trying again"
        self._parts.jobs.explain(job, why)
        self._parts.notify(job.id)
        self._ending.wait(min(2.0, self._every))

    # -- watching

    def _cancel(self, live: Sequence[Pair]) -> None:
        for job, attempt in live:
            if attempt.handle is not None and self._is_to_stop(job, attempt):
                key, work = f"cancel {attempt.key}", (job, attempt)
                self._in_background(key, lambda work=work: self._tell_to_stop(*work))

    def _is_to_stop(self, job: Job, attempt: Attempt) -> bool:
        several = job.spec.nodes > 1 and job.state is not JobState.LAUNCHING
        members = self._parts.members.of(attempt.key) if several else ()
        return is_to_stop(job, members)

    def _tell_to_stop(self, job: Job, attempt: Attempt) -> None:
        try:
            self._parts.driver(attempt.target).cancel(Handle(attempt.handle or ""))
        except (TargetUnreachable, NotFound, OSError) as error:  # tried again next time
            _log.warning("job %s cannot be told to stop: %s", job.name, error)

    def _poll(self, live: Sequence[Pair]) -> None:
        """Look at what is live, each target in a thread of its own: one may not answer."""
        known = [pair for pair in live if pair[1].handle and pair[1].key not in self._busy]
        known.sort(key=lambda pair: pair[1].target)
        for name, group in groupby(known, key=lambda pair: pair[1].target):
            pairs = list(group)
            self._in_background(
                f"poll {name}", lambda name=name, pairs=pairs: self._look(name, pairs)
            )

    def _look(self, target: str, pairs: Sequence[Pair]) -> None:
        """Ask a target about all of its launches at once, and see to each."""
        driver = self._parts.driver(target)
        seen = driver.poll([Handle(attempt.handle or "") for _, attempt in pairs])
        for (job, attempt), each in zip(pairs, seen, strict=True):
            if each.phase is Phase.SILENT:
                self._miss(job, attempt, each)
                continue
            if self._silent.pop(attempt.key, None) is not None:
                self._explain([(job, _seen_again(job))])
            match on_observation(attempt, each):
                case Need.NOTHING:
                    continue
                case Need.RESUME:
                    resumes = attempt.resumes + 1
                    self._parts.jobs.change_attempt(attempt.key, {"resumes": resumes})
                    self._launch([(job, attempt)])
                case Need.GIVE_UP:
                    said = driver.diagnose(Handle(attempt.handle or ""))
                    self._end(attempt, giving_up(each, said))

    def _miss(self, job: Job, attempt: Attempt, seen: Observation) -> None:
        """See to a launch that cannot be seen: it may be alive and well."""
        self._silent[attempt.key] = attempt.target
        lost, reason = on_silence(job, attempt, seen, self._parts.now())
        if lost is not None:
            self._end(attempt, lost)
        else:
            self._explain([(job, reason)])

    def _end(self, attempt: Attempt, reason: str) -> None:
        """End an attempt that will not report its end itself."""
        try:
            job, _ = present(self._parts, attempt.key)
        except Gone:
            return  # it did, and may be deleted by now
        now = self._parts.now()
        verdict = on_ending(job, "lost", reason, None)
        event = Event.STOPPED if job.state is JobState.CANCELING else verdict.event
        with suppress(Conflict):  # it reported after all
            self._parts.jobs.record(
                job,
                event,
                reason=verdict.reason,
                now=now,
                attempt={"ended": now, "reason": reason},
            )
            self._parts.notify(job.id)
            self._parts.wake()

    # -- clearing away

    def _forget(self, *, idle: bool) -> None:
        """Have targets remove what ended attempts left there, one thread for each of them.

        While jobs wait, launching them comes first: what ended a moment ago is left for later.
        """
        ended = self._parts.jobs.ended_with_handle()
        if not idle:
            young = self._parts.now() - _LATER
            ended = [attempt for attempt in ended if (attempt.ended or 0.0) < young]
        ended.sort(key=lambda attempt: attempt.target)
        for target, group in groupby(ended, key=lambda attempt: attempt.target):
            left = list(group)
            self._in_background(f"forget {target}", lambda left=left: forget(self._parts, left))

    def _tidy(self, now: float) -> None:
        """Remove uploads that were never finished."""
        if now - self._tidied >= _TIDY:
            self._tidied = now
            self._parts.uploads.remove_old(before=self._parts.now() - _UNFINISHED)


def _seen_again(job: Job) -> str:
    """Return the reason of a job whose launch is seen again after a while."""
    return "the script is running" if job.state is JobState.RUNNING else f"it is {job.state.value}"


def _reasons(target: Target, placements: Sequence[Placement], *, explain: bool) -> list[Reason]:
    """Return what is to be said to those that wait: to all, or to those that are new."""
    new = waiting_reason(target.name)
    waiting = [placement for placement in placements if not placement.starts]
    return [(each.job, each.reason) for each in waiting if explain or each.job.reason == new]


def forget(parts: Parts, ended: Sequence[Attempt]) -> bool:
    """Remove what ended attempts left on their target; False while a runner is still there."""
    if ended[0].target in parts.moving:
        return False
    handles = [Handle(attempt.handle or "") for attempt in ended]
    forgotten: list[str] = []
    try:
        driver = parts.driver(ended[0].target)
        for attempt, handle, seen in zip(ended, handles, driver.poll(handles), strict=True):
            if seen.phase is not Phase.RUNNING:
                driver.forget(handle)
                forgotten.append(attempt.key)
    except NotFound:  # the target itself is gone, and what was on it is no longer ours
        forgotten = [attempt.key for attempt in ended]
    except TargetUnreachable:
        pass  # the rest when it is there again
    parts.jobs.clear_handles(forgotten)
    return len(forgotten) == len(ended)
