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
        driver = parts.connect(target)
        if not isinstance(driver, Caches):
            continue
        try:
            for each in driver.environments():
                facts = {name: each[name] for name in ("how", "size", "seconds", "built")}
                found.setdefault(each["digest"], []).append({"target": target.name, **facts})
        except TargetUnreachable as error:
            _log.warning("target %s: %s", target.name, error)
    return found


def remove(parts: Parts, digest: str) -> list[str]:
    """Remove an environment from the targets and then from the store. Return which targets."""
    removed: list[str] = []
    for target in parts.targets.list():
        driver = parts.connect(target)
        if isinstance(driver, Caches) and driver.remove_environment(digest):
            removed.append(target.name)
    parts.environments.remove(digest)
    return removed
