"""Environments across targets: where each is built, and removing them everywhere."""

import logging
from typing import Any

from retarget.control.parts import Parts
from retarget.core.driver import Caches
from retarget.core.errors import TargetUnreachable

_log = logging.getLogger(__name__)


def built(parts: Parts) -> dict[str, list[dict[str, Any]]]:
    """Return what every target that answers has built, by digest."""
    found: dict[str, list[dict[str, Any]]] = {}
    for target in parts.targets.list():
        try:
            driver = parts.connect(target)
            if not isinstance(driver, Caches):
                continue
            for each in driver.environments():
                facts = {name: each[name] for name in ("how", "size", "seconds", "built")}
                found.setdefault(each["digest"], []).append({"target": target.name, **facts})
        except TargetUnreachable as error:
            _log.warning("target %s: %s", target.name, error)
    return found


def remove(parts: Parts, name_or_digest: str) -> list[str]:
    """Remove an environment from the targets and then from the store. Return which targets.

    Of one that has other names, too, only the name is removed.
    """
    known = parts.environments.find(name_or_digest)
    names = {each.name for each in parts.environments.list() if each.digest == known.digest}
    if name_or_digest in names and len(names) > 1:
        parts.environments.remove_name(name_or_digest)
        return []
    removed: list[str] = []
    for target in parts.targets.list():
        try:
            driver = parts.connect(target)
            if isinstance(driver, Caches) and driver.remove_environment(known.digest):
                removed.append(target.name)
        except TargetUnreachable as error:  # it may be there, or may never have been
            _log.warning("environment %s, target %s: %s", known.digest[:12], target.name, error)
    parts.environments.remove(known.digest)
    return removed
