"""Targets come, change and go. None is kept before it has answered."""

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from retarget.control.parts import Parts
from retarget.control.secrets import keep, seal, unseal
from retarget.control.settings import known_settings, validated
from retarget.core.driver import Driver, Handle, Phase, Releases, Settles
from retarget.core.errors import Conflict, RetargetError, TargetUnreachable
from retarget.core.jobs import Attempt, Job
from retarget.core.names import check_name
from retarget.core.states import LIVE
from retarget.core.targets import Target, check_tags

_log = logging.getLogger(__name__)
_LEAVING = 10.0  # seconds that runners which were told to stop may take to be gone
_ANSWERING = 5.0  # seconds that a launch which is under way may take
_TRIES = 20


def attach(parts: Parts, target: Target) -> Target:
    """Keep a new target once it has answered a check; if it does not, nothing has changed."""
    check_name(target.name)
    check_tags(target.tags)
    config = validated(target.kind, target.config)
    with parts.moving.turn(target.name):
        parts.targets.check_free(target.name)
        sealed = seal(config, secret=parts.secret, target=target.name)
        found = _answering(parts, target.model_copy(update={"config": sealed}))
        with _released_if_not_kept(parts, found):
            parts.targets.add(found)
    parts.wake()
    return found


def update(
    parts: Parts, name: str, config: Mapping[str, Any], tags: dict[str, str] | None
) -> Target:
    """Change settings of a target, if it answers with them; those not given stay as they are.

    One that is given as None has its default again; of a mapping, what is given is changed.

    Jobs that are on it go on, and are looked for by the new settings. Raise Conflict for settings
    by which one of them would not be found: it would be taken for lost, and tried again.
    """
    with parts.moving.turn(name):
        for _ in range(_TRIES):
            before = parts.targets.find(name)
            found = _answering(parts, _changed(parts, before, config, tags))
            with _released_if_not_kept(parts, found):
                if _replace(parts, before, found):
                    break
            _release(parts, found)
        else:
            raise Conflict(f"target {name!r} keeps changing; try again")
    parts.wake()
    _release(parts, before)
    return found


def detach(parts: Parts, name: str, *, force: bool) -> list[Job]:
    """Have a target no longer; return the jobs that were on it or waited for it, as they were.

    Raise Conflict, with nothing changed, while there are any; with `force` they fail.
    """
    if name in parts.own:
        raise Conflict(f"target {name!r} is the server's own machine and cannot be detached")
    with parts.moving.turn(name):
        return _detach(parts, parts.targets.find(name), force=force)


def call_off(driver: Driver, handle: Handle) -> None:
    """Have a launch end, and nothing be left of it if that does not take long."""
    driver.cancel(handle)
    deadline = time.monotonic() + _LEAVING
    while driver.poll([handle])[0].phase is Phase.RUNNING:
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
    driver.forget(handle)


def _changed(
    parts: Parts, before: Target, config: Mapping[str, Any], tags: dict[str, str] | None
) -> Target:
    _check_not_ours(parts, before, config)
    known = known_settings(before.kind)
    kept = {key: value for key, value in before.config.items() if key in known}
    given = {key: _merged(kept.get(key), value) for key, value in config.items()}
    wanted = kept | keep(given, kept)
    for key in known & {key for key, value in config.items() if value is None}:
        del wanted[key]
    merged = unseal(wanted, secret=parts.secret, target=before.name)
    sealed = seal(validated(before.kind, merged), secret=parts.secret, target=before.name)
    change = {"config": sealed, "tags": before.tags if tags is None else check_tags(tags)}
    return before.model_copy(update=change)


def _merged(kept: Any, given: Any) -> Any:
    if not isinstance(kept, dict) or not isinstance(given, Mapping):
        return given
    both = cast("dict[str, Any]", kept) | dict(cast("Mapping[str, Any]", given))
    return {name: value for name, value in both.items() if value is not None}


def _replace(parts: Parts, before: Target, found: Target) -> bool:
    """Keep a target in the place of what it was; False if that has moved meanwhile."""
    seen = parts.targets.placements(before.name)
    if found.config != before.config:
        with suppress(RetargetError, OSError):  # it may be what is to be mended
            _clear_away(parts, parts.connect(before), before.name)
        _check_in_reach(parts, found)
    return parts.targets.change(found, before=before, seen=seen)


@contextmanager
def _released_if_not_kept(parts: Parts, target: Target) -> Generator[None]:
    try:
        yield
    except RetargetError:
        _release(parts, target)
        raise


def _detach(parts: Parts, target: Target, *, force: bool) -> list[Job]:
    left = _remove(parts, target, force=force)
    for job in left:
        parts.notify(job.id)
    parts.wake()
    try:
        driver = parts.connect(target)
        _stop(parts, driver, [job for job in left if job.state in LIVE])
        _clear_away(parts, driver, target.name)
    except (RetargetError, OSError) as error:  # what is on it is no longer ours to mend
        _log.warning("target %s was detached, and not cleared: %s", target.name, error)
    parts.jobs.clear_handles([attempt.key for attempt in _ended(parts, target.name)])
    _release(parts, target)
    return left


def _answering(parts: Parts, target: Target) -> Target:
    driver = parts.connect(target)
    try:
        facts = driver.check()
    except TargetUnreachable:
        _release(parts, target)  # nobody is to go on knocking
        raise
    learnt = driver.settle() if isinstance(driver, Settles) else {}
    return target.model_copy(
        update={
            "config": target.config | learnt,
            "facts": facts,
            "checked": parts.now(),
            "reason": "",
        }
    )


def _check_in_reach(parts: Parts, target: Target) -> None:
    live = _launched(parts, target.name)
    handles = [Handle(attempt.handle) for _, attempt in live if attempt.handle is not None]
    seen = iter(parts.connect(target).poll(handles) if handles else ())
    for job, attempt in live:
        if attempt.handle is None or next(seen).phase is Phase.GONE:
            raise Conflict(
                f"job {job.name!r} would be out of reach with these settings; wait for it, cancel "
                "it, or attach another target"
            )


def _launched(parts: Parts, target: str) -> list[tuple[Job, Attempt]]:
    """Return what is on a target, when it has answered for each or some seconds have passed."""
    deadline = time.monotonic() + _ANSWERING
    while True:
        live = [pair for pair in parts.jobs.live() if pair[1].target == target]
        if all(attempt.handle for _, attempt in live) or time.monotonic() > deadline:
            return live
        time.sleep(0.05)


def _check_not_ours(parts: Parts, target: Target, config: Mapping[str, Any]) -> None:
    ours = sorted(set(config) & parts.own.get(target.name, frozenset()))
    if ours:
        raise Conflict(f"config.{ours[0]}: the server sets this of target {target.name!r} itself")


def _remove(parts: Parts, target: Target, *, force: bool) -> list[Job]:
    reason = f"target {target.name!r} was detached"
    for _ in range(_TRIES):
        try:
            return parts.targets.remove(target.name, reason=reason, now=parts.now(), force=force)
        except Conflict:
            if not force:
                raise
            # a job moved at that very moment: look again
    raise Conflict(f"the jobs of target {target.name!r} keep moving; try again")


def _stop(parts: Parts, driver: Driver, live: Sequence[Job]) -> None:
    """Have runners stop at once; they would notice by themselves, when they report next."""
    for job in live:
        attempt = parts.jobs.attempts(job.id)[-1]
        if attempt.handle is not None:
            driver.cancel(Handle(attempt.handle))


def _clear_away(parts: Parts, driver: Driver, target: str) -> None:
    """Have the target remove what ended attempts left there, of all whose runner leaves soon."""
    left = _ended(parts, target)
    deadline = time.monotonic() + _LEAVING
    while left and time.monotonic() < deadline:
        left = _forget(parts, driver, left)
        time.sleep(0.05 if left else 0.0)


def _ended(parts: Parts, target: str) -> list[Attempt]:
    return [each for each in parts.jobs.ended_with_handle() if each.target == target]


def _forget(parts: Parts, driver: Driver, ended: Sequence[Attempt]) -> list[Attempt]:
    """Return those whose runner is still there."""
    handles = [Handle(attempt.handle or "") for attempt in ended]
    seen = driver.poll(handles)
    for handle, each in zip(handles, seen, strict=True):
        if each.phase is not Phase.RUNNING:
            driver.forget(handle)
    both = list(zip(ended, seen, strict=True))
    parts.jobs.clear_handles([a.key for a, each in both if each.phase is not Phase.RUNNING])
    return [attempt for attempt, each in both if each.phase is Phase.RUNNING]


def _release(parts: Parts, target: Target) -> None:
    try:
        driver = parts.connect(target)
        if isinstance(driver, Releases):
            driver.release()
    except (RetargetError, OSError) as error:
        _log.warning("target %s could not be released: %s", target.name, error)
