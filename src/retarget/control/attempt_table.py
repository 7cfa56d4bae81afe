"""The table of live attempts: what this server is doing with each of them."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import count

from retarget.core.jobs import Attempt


class AttemptPhase(StrEnum):
    PLACED = "placed"  # by this server, and nothing of it has reached its target
    UNCONFIRMED = "unconfirmed"  # its runner, if it has one, may not know this server's address
    LAUNCHING = "launching"  # a thread passes it to its driver
    OUTDATED = "outdated"  # like LAUNCHING, with settings that have changed meanwhile
    WATCHED = "watched"  # its runner knows this server's address
    SILENT = "silent"  # like WATCHED, but its host does not answer


class AttemptEvent(StrEnum):
    LAUNCH_STARTED = "launch started"
    NOTHING_STARTED = "nothing started"  # for certain: no launch before this one reached its target
    LAUNCH_FAILED = "launch failed"  # it may have reached its target
    LAUNCHED = "launched"
    SILENCE = "silence"
    ANSWER = "answer"
    RUNNER_DIED = "runner died"
    SETTINGS_CHANGED = "settings changed"


P, E = AttemptPhase, AttemptEvent
TRANSITIONS: dict[tuple[AttemptPhase, AttemptEvent], AttemptPhase] = {
    (P.PLACED, E.LAUNCH_STARTED): P.LAUNCHING,
    (P.UNCONFIRMED, E.LAUNCH_STARTED): P.LAUNCHING,
    (P.LAUNCHING, E.LAUNCHED): P.WATCHED,
    (P.LAUNCHING, E.SETTINGS_CHANGED): P.OUTDATED,
    (P.OUTDATED, E.LAUNCHED): P.UNCONFIRMED,  # looked up again, with the new settings
}
for _launching in (P.LAUNCHING, P.OUTDATED):
    TRANSITIONS[_launching, E.NOTHING_STARTED] = P.PLACED
    TRANSITIONS[_launching, E.LAUNCH_FAILED] = P.UNCONFIRMED
for _launched in (P.WATCHED, P.SILENT):  # Entry.is_launched
    TRANSITIONS[_launched, E.ANSWER] = P.WATCHED
    TRANSITIONS[_launched, E.SILENCE] = P.SILENT
    TRANSITIONS[_launched, E.RUNNER_DIED] = P.UNCONFIRMED
    TRANSITIONS[_launched, E.SETTINGS_CHANGED] = P.UNCONFIRMED


@dataclass(frozen=True)
class Entry:
    """What this server knows about a live attempt beyond its row."""

    key: str
    target: str
    phase: AttemptPhase
    serial: int  # a new one for each placement, which may have the same key, and for each launch
    not_before: float = -math.inf  # when it may be launched, by the clock of the table
    explains_silence: bool = False  # the reason of its job says that its target does not answer

    @property
    def is_launched(self) -> bool:
        return self.phase in (AttemptPhase.WATCHED, AttemptPhase.SILENT)


class AttemptTable:
    """Thread-safe: the loop adds and removes entries, and threads report what became of them.

    Entries are immutable. Each method holds one lock and calls nothing meanwhile. A thread applies
    an event to the entry that it was given. If the attempt was launched or placed again since, or
    the event does not fit its present phase, the event came too late and changes nothing.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._serials = count()
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def add(self, attempt: Attempt) -> Entry:
        """Add an attempt that this server has just placed."""
        with self._lock:
            return self._add(attempt, P.PLACED)

    def keep(self, live: Iterable[Attempt]) -> None:
        """Remove the attempts that are no longer live. Add those that an earlier server placed."""
        attempts = {attempt.key: attempt for attempt in live}
        with self._lock:
            for key in self._entries.keys() - attempts.keys():
                del self._entries[key]
            for key in attempts.keys() - self._entries.keys():
                self._add(attempts[key], P.UNCONFIRMED)

    def change_settings(self, targets: Collection[str]) -> None:
        """Have the launches of these targets looked up again: their settings have changed."""
        with self._lock:
            for entry in list(self._entries.values()):
                phase = TRANSITIONS.get((entry.phase, E.SETTINGS_CHANGED))
                if entry.target in targets and phase is not None:
                    self._entries[entry.key] = replace(entry, phase=phase)

    def drop(self, targets: Collection[str]) -> None:
        """Forget everything about these targets: other servers may have acted on them meanwhile."""
        with self._lock:
            for entry in list(self._entries.values()):
                if entry.target in targets:
                    del self._entries[entry.key]

    def get(self, key: str) -> Entry | None:
        with self._lock:
            return self._entries.get(key)

    def apply(
        self,
        entry: Entry,
        event: AttemptEvent,
        *,
        not_before: float = -math.inf,
        explains_silence: bool | None = None,
    ) -> Entry | None:
        """Apply an event and return the entry after it, or None if the event came too late."""
        with self._lock:
            current = self._entries.get(entry.key)
            if current is None or current.serial != entry.serial:
                return None
            phase = TRANSITIONS.get((current.phase, event))
            if phase is None:
                return None
            after = replace(
                current,
                phase=phase,
                serial=next(self._serials) if event is E.LAUNCH_STARTED else current.serial,
                not_before=not_before,
                explains_silence=current.explains_silence
                if explains_silence is None
                else explains_silence,
            )
            self._entries[entry.key] = after
            return after

    def silent_targets(self) -> set[str]:
        """Return the targets with a silent launch."""
        with self._lock:
            return {entry.target for entry in self._entries.values() if entry.phase is P.SILENT}

    def next_launch(self) -> float:
        """Return when the next entry may be launched; infinity if none waits for it."""
        with self._lock:
            return min(
                (
                    entry.not_before
                    for entry in self._entries.values()
                    if (entry.phase, E.LAUNCH_STARTED) in TRANSITIONS
                ),
                default=math.inf,
            )

    def _add(self, attempt: Attempt, phase: AttemptPhase) -> Entry:
        entry = Entry(attempt.key, attempt.target, phase, next(self._serials))
        self._entries[attempt.key] = entry
        return entry
