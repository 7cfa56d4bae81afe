"""Attaches, changes and detaches targets. A target is stored only after a successful check."""

import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from retarget.control.attempts import forget_on, forget_soon
from retarget.control.context import Context
from retarget.control.secrets import restore_hidden, seal, unseal
from retarget.control.settings import known_settings, validate_settings
from retarget.core.driver import Driver, Handle, Phase, Releases, Settles
from retarget.core.errors import Conflict, RetargetError, TargetUnreachable
from retarget.core.jobs import Attempt, Job
from retarget.core.names import check_name
from retarget.core.states import LIVE
from retarget.core.targets import Inventory, Target, check_tags

_log = logging.getLogger(__name__)
_LAUNCH_SECONDS = 5.0  # a launch that has begun takes no longer than this
_MAX_TRIES = 20


def attach(context: Context, target: Target) -> Target:
    """Check a new target and store it. If the check fails, nothing is stored."""
    check_name(target.name)
    check_tags(target.tags)
    config = validate_settings(target.kind, target.config)
    with context.store.target_locks.hold(target.name):
        context.store.targets.check_free(target.name)
        sealed = seal(config, secret=context.settings.secret, target=target.name)
        context.links.leases.claim(target.model_copy(update={"config": sealed}))
        checked = _check_settings(context, target.model_copy(update={"config": sealed}))
        with _release_on_error(context, checked):
            context.store.targets.add(checked)
    context.bus.wake()
    return checked


def update(
    context: Context, name: str, config: Mapping[str, Any], tags: dict[str, str] | None
) -> Target:
    """Change settings of a target if the check with the new settings succeeds.

    Settings that `config` does not name keep their values. None resets a setting to its default.
    The items of a mapping are merged.

    Running jobs continue and are looked up with the new settings. Raise Conflict if one of them
    would not be found: it would be taken for lost and retried.
    """
    with context.store.target_locks.hold(name):
        for _ in range(_MAX_TRIES):
            before = context.store.targets.find(name)
            changed = _check_settings(context, _with_settings(context, before, config, tags))
            with _release_on_error(context, changed):
                if _replace(context, before, changed):
                    break
            _release(context, changed)
        else:
            raise Conflict(f"target {name!r} keeps changing; try again")
        context.links.leases.rebind(changed)
    context.bus.wake()
    _release(context, before)
    return changed


def detach(context: Context, name: str, *, force: bool) -> list[Job]:
    """Remove a target. Return its queued and running jobs, as they were before.

    Raise Conflict, with nothing changed, while it has such jobs; with `force` they fail.
    """
    if name in context.settings.managed_settings:
        raise Conflict(f"target {name!r} belongs to the server itself and cannot be detached")
    with context.store.target_locks.hold(name):
        return _detach(context, context.store.targets.find(name), force=force)


def inventory_of(context: Context, target: Target) -> Inventory:
    """Return the inventory of a target. Check the target first if it is not known."""
    return target.inventory or check(context, target)


def check(context: Context, target: Target) -> Inventory:
    """Check a target, and store its inventory or the reason why it cannot be reached."""
    try:
        driver = context.links.connect(target)
        inventory = driver.check()
    except TargetUnreachable as error:
        context.store.targets.save_check(target, None, str(error), context.clock())
        raise
    now = context.clock()
    inventory = inventory.at(now, target.inventory)
    config_change = driver.settle() if isinstance(driver, Settles) else None
    context.store.targets.save_check(target, inventory, "", now, config_change)
    return inventory


def _with_settings(
    context: Context, before: Target, config: Mapping[str, Any], tags: dict[str, str] | None
) -> Target:
    _check_not_managed(context, before, config)
    known = known_settings(before.kind)
    stored = {key: value for key, value in before.config.items() if key in known}
    changes = {key: _merge(stored.get(key), value) for key, value in config.items()}
    merged = stored | restore_hidden(changes, stored)
    for key in known & {key for key, value in config.items() if value is None}:
        del merged[key]
    unsealed = unseal(merged, secret=context.settings.secret, target=before.name)
    settings = validate_settings(before.kind, unsealed)
    sealed = seal(settings, secret=context.settings.secret, target=before.name)
    change = {"config": sealed, "tags": before.tags if tags is None else check_tags(tags)}
    return before.model_copy(update=change)


def _merge(stored: Any, value: Any) -> Any:
    if not isinstance(stored, dict) or not isinstance(value, Mapping):
        return value
    merged = cast("dict[str, Any]", stored) | dict(cast("Mapping[str, Any]", value))
    return {name: item for name, item in merged.items() if item is not None}


def _replace(context: Context, before: Target, changed: Target) -> bool:
    """Store a changed target; return False if another change or placement came first."""
    placements = context.store.targets.placements(before.name)
    if changed.config != before.config:
        with suppress(RetargetError, OSError):  # the old settings may be wrong
            _clean_up(context, context.links.connect(before), before.name)
        _check_jobs_reachable(context, changed)
    return context.store.targets.change(changed, before=before, placements=placements)


@contextmanager
def _release_on_error(context: Context, target: Target) -> Generator[None]:
    try:
        yield
    except RetargetError:
        _release(context, target)
        raise


def _detach(context: Context, target: Target, *, force: bool) -> list[Job]:
    jobs = _remove(context, target, force=force)
    context.bus.wake()
    try:
        driver = context.links.connect(target)
        _stop(context, driver, [job for job in jobs if job.state in LIVE])
        _clean_up(context, driver, target.name)
    except (RetargetError, OSError) as error:  # the target is detached: only log it
        _log.warning("target %s was detached, but not cleaned up: %s", target.name, error)
    context.store.jobs.clear_handles([attempt.key for attempt in _ended(context, target.name)])
    _release(context, target)
    return jobs


def _check_settings(context: Context, target: Target) -> Target:
    """Return a target with what a check with its settings has shown. Nothing is stored."""
    driver = context.links.connect(target)
    try:
        inventory = driver.check()
    except TargetUnreachable:
        _release(context, target)  # no connection may keep retrying
        raise
    config_change, now = driver.settle() if isinstance(driver, Settles) else {}, context.clock()
    return target.model_copy(
        update={
            "config": target.config | config_change,
            "inventory": inventory.at(now, target.inventory),
            "checked_at": now,
            "reason": "",
        }
    )


def _check_jobs_reachable(context: Context, target: Target) -> None:
    live = _launched(context, target.name)
    handles = [Handle(attempt.handle) for _, attempt in live if attempt.handle is not None]
    observations = iter(context.links.connect(target).poll(handles) if handles else ())
    for job, attempt in live:
        if attempt.handle is None or next(observations).phase is Phase.GONE:
            raise Conflict(
                f"job {job.name!r} would be unreachable with these settings; wait for it, cancel "
                "it, or attach another target"
            )


def _launched(context: Context, target: str) -> list[tuple[Job, Attempt]]:
    """Return the live attempts of a target, once all have a handle or the time is up."""
    deadline = time.monotonic() + _LAUNCH_SECONDS
    while True:
        live = [pair for pair in context.store.jobs.live() if pair[1].target == target]
        if all(attempt.handle for _, attempt in live) or time.monotonic() > deadline:
            return live
        time.sleep(0.05)


def _check_not_managed(context: Context, target: Target, config: Mapping[str, Any]) -> None:
    managed = sorted(set(config) & context.settings.managed_settings.get(target.name, frozenset()))
    if managed:
        raise Conflict(
            f"config.{managed[0]}: the server manages this setting of target {target.name!r}"
        )


def _remove(context: Context, target: Target, *, force: bool) -> list[Job]:
    reason = f"target {target.name!r} was detached"
    for _ in range(_MAX_TRIES):
        try:
            return context.store.targets.remove(
                target.name, reason=reason, now=context.clock(), force=force
            )
        except Conflict:
            if not force:
                raise
            # the state of a job changed at the same moment: try again
    raise Conflict(f"the jobs of target {target.name!r} keep changing; try again")


def _stop(context: Context, driver: Driver, live: Sequence[Job]) -> None:
    """Stop runners now. Otherwise they would stop at their next report."""
    for job in live:
        attempt = context.store.jobs.attempts(job.id)[-1]
        if attempt.handle is not None:
            driver.cancel(Handle(attempt.handle))


def _clean_up(context: Context, driver: Driver, target: str) -> None:
    """Remove the files of ended attempts from a target, if their runners exit soon."""
    forget_soon(_ended(context, target), lambda ended: forget_on(context, driver, ended))


def _ended(context: Context, target: str) -> list[Attempt]:
    attempts = context.store.jobs.ended_with_handle()
    return [attempt for attempt in attempts if attempt.target == target]


def _release(context: Context, target: Target) -> None:
    try:
        driver = context.links.connect(target)
        if isinstance(driver, Releases):
            driver.release()
    except (RetargetError, OSError) as error:
        _log.warning("target %s could not be released: %s", target.name, error)
