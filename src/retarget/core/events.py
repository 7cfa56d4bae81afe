"""Events say what has changed, never its content: their ids, history and rate. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

_MAX_NUMBER_DIGITS = 18


class Noun(StrEnum):
    """What an event can be about."""

    JOB = "job"  # submitted, deleted, or its state or reason has changed
    METRIC = "metric"  # a run was created or changed, or has logged metrics, params or tags
    OUTPUT = "output"  # files of a job were added, replaced or removed
    TARGET = "target"  # attached, changed, detached, or a check had another result
    NODE = "node"  # a node of a target was added or removed, or its state has changed
    LOG = "log"  # bytes of a log have arrived; only inside servers


PUBLIC_NOUNS = tuple(noun for noun in Noun if noun is not Noun.LOG)
RESET = "reset"  # instead of a noun: events were missed, so read everything again
_COALESCED = frozenset({Noun.METRIC, Noun.OUTPUT})


class Change(NamedTuple):
    """Something that has changed: the job, run, target or node with this id."""

    noun: Noun
    id: str  # of the job, run or target; of a node: TARGET/NODE
    version: int | None = None  # of a job; of an output: its attempt. None if there is none
    job: str | None = None  # the id of the job that it belongs to


class Event(NamedTuple):
    number: int
    change: Change


@dataclass(frozen=True, slots=True)
class EventId:
    """Where a client is in the events of one server. Another server has another epoch."""

    epoch: str
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> "EventId | None":
        """Return the id, or None if the text is not one."""
        epoch, _, number = text.strip().rpartition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) <= _MAX_NUMBER_DIGITS
        return cls(epoch, int(number)) if epoch and is_number else None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which changes a subscriber wants: of these nouns, and of these jobs or of all.

    Of the jobs in `logs`, it also wants to know that their logs may have grown or ended.
    """

    nouns: frozenset[Noun] = frozenset(PUBLIC_NOUNS)
    jobs: frozenset[str] | None = None
    logs: frozenset[str] = frozenset()

    def __contains__(self, change: Change) -> bool:
        return change.noun in self.nouns and (self.jobs is None or change.job in self.jobs)

    def is_about_log(self, change: Change) -> bool:
        """Whether a log that the subscriber follows may have grown or ended."""
        return change.job in self.logs and change.noun in (Noun.LOG, Noun.JOB)


def job_changed(job_id: str, version: int | None) -> Change:
    """Return that a job has changed. The version is None if it was deleted."""
    return Change(Noun.JOB, job_id, version, job_id)


def log_changed(job_id: str) -> Change:
    """Return that bytes of a job's log have arrived, or that it is complete."""
    return Change(Noun.LOG, job_id, job=job_id)


def of_job(job_id: str, *nouns: Noun) -> Selection:
    return Selection(frozenset(nouns), frozenset({job_id}))


class History:
    """The newest events, numbered in order, for clients that come back."""

    def __init__(self, epoch: str, size: int) -> None:
        self._epoch = epoch
        self._events: deque[Event] = deque(maxlen=size)
        self._last = 0

    @property
    def position(self) -> EventId:
        """The id of the last event."""
        return EventId(self._epoch, self._last)

    def add(self, change: Change) -> Event:
        self._last += 1
        event = Event(self._last, change)
        self._events.append(event)
        return event

    def clear(self) -> None:
        """Forget all events, so that every earlier id is too old."""
        self._events.clear()
        self._last += 1

    def since(self, position: EventId, selection: Selection) -> list[Event] | None:
        """Return the selected events after an id, or None if it is unknown or too old."""
        missed = self._last - position.number
        if position.epoch != self._epoch or not 0 <= missed <= len(self._events):
            return None
        newest = islice(self._events, len(self._events) - missed, None)
        return [event for event in newest if event.change in selection]


class Coalescer:
    """Lets through the first of many equal changes at once, and the last one a moment later.

    So there is at most one per noun, id and `seconds`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # by what has changed: until when it is held back, and what is. Ordered by that time.
        self._held: dict[tuple[Noun, str], tuple[float, Change | None]] = {}

    @property
    def next_at(self) -> float | None:
        """When to call `due` next; None if nothing is held back."""
        return next((until for until, _ in self._held.values()), None)

    def offer(self, change: Change, now: float) -> bool:
        """Return whether to publish a change now. If not, `due` returns it later."""
        if change.noun not in _COALESCED:
            return True
        key = change.noun, change.id
        if key in self._held:
            self._held[key] = self._held[key][0], change
            return False
        self._held[key] = now + self._seconds, None
        return True

    def due(self, now: float) -> list[Change]:
        """Return the changes that were held back for long enough."""
        released: list[Change] = []
        while self._held:
            key, (until, change) = next(iter(self._held.items()))
            if until > now:
                break
            del self._held[key]
            if change is not None:
                released.append(change)
        for change in released:
            self._held[change.noun, change.id] = now + self._seconds, None
        return released


def newest_of_each(changes: Iterable[Change]) -> list[Change]:
    """Return only the last change of each thing, in the order of the first ones."""
    by_thing = {(change.noun, change.id): change for change in changes}
    return list(by_thing.values())
