"""Named environments, where each is built, and how to remove it everywhere."""

import logging
from typing import Any

from retarget.control.context import Context
from retarget.core.driver import Caches
from retarget.core.environments import Environment
from retarget.core.errors import Invalid, TargetUnreachable
from retarget.core.names import check_name
from retarget.store.environments import StoredEnvironment

_log = logging.getLogger(__name__)


def built(context: Context) -> dict[str, list[dict[str, Any]]]:
    """Return what the reachable targets have built, by digest."""
    builds: dict[str, list[dict[str, Any]]] = {}
    for target in context.store.targets.list():
        try:
            driver = context.links.connect(target)
            if not isinstance(driver, Caches):
                continue
            for build in driver.environments():
                fields = {name: build[name] for name in ("how", "size", "seconds")}
                fields |= {"target": target.name, "built_at": build["built"]}
                fields["failed"] = build.get("failed")
                builds.setdefault(build["digest"], []).append(fields)
        except TargetUnreachable as error:
            _log.warning("target %s: %s", target.name, error)
    return builds


def register(context: Context, name: str, environment: Environment) -> StoredEnvironment:
    """Make a definition the newest version of a name."""
    check_name(name)
    if environment.kind == "user":
        raise Invalid(
            "kind: only an environment with packages or an image can have a name", field="kind"
        )
    return context.store.environments.register(name, environment, context.clock())


def update(context: Context, name: str) -> StoredEnvironment:
    """Add a version of a name that the next build resolves again."""
    newest = context.store.environments.versions(name)[0].environment
    if newest.kind == "image" and not (newest.pip or newest.conda or newest.context):
        raise Invalid(
            f"environment {name!r} is an image without packages: there is nothing to resolve; "
            "register it again with another tag"
        )
    return context.store.environments.update(name, context.clock())


def remove(context: Context, text: str) -> list[str]:
    """Remove an environment from the targets, then from the store. Return those targets.

    A name stands for all its versions. A definition that another version has stays.
    """
    removed: list[str] = []
    known = context.store.environments.find(text)
    if text == known.name:
        for version in context.store.environments.versions(text):
            removed += _remove_version(context, version)
        context.store.environments.remove_name(text)
    elif _is_label(text, known):
        removed = _remove_version(context, known)
    else:
        removed = _remove_definition(context, known.digest)
    return list(dict.fromkeys(removed))


def _is_label(text: str, known: StoredEnvironment) -> bool:
    return known.name is not None and text in (known.environment.label, f"{known.name}@latest")


def _remove_version(context: Context, known: StoredEnvironment) -> list[str]:
    others = [other for other in context.store.environments.list() if other.digest == known.digest]
    if len(others) > 1 and known.name and known.version:
        context.store.environments.remove_version(known.name, known.version)
        return []
    return _remove_definition(context, known.digest)


def _remove_definition(context: Context, digest: str) -> list[str]:
    removed: list[str] = []
    for target in context.store.targets.list():
        try:
            driver = context.links.connect(target)
            if isinstance(driver, Caches) and driver.remove_environment(digest):
                removed.append(target.name)
        except TargetUnreachable as error:
            _log.warning("environment %s, target %s: %s", digest[:12], target.name, error)
    context.store.environments.remove(digest)
    return removed
