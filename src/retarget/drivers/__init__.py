"""One module per kind of target: its name is the kind, its `Driver` runs the jobs.

Modules whose names begin with `_` are shared by several kinds.
"""

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from pydantic import ValidationError

from retarget.core.driver import Driver
from retarget.core.errors import Invalid
from retarget.core.extras import install_command
from retarget.core.links import Links

_PLUGIN_GROUP = "retarget.drivers"


@cache
def kinds() -> tuple[str, ...]:
    """Name every kind that is installed, without importing any of them."""
    builtin = {name for _, name, _ in iter_modules(__path__) if not name.startswith("_")}
    return tuple(sorted(builtin | entry_points(group=_PLUGIN_GROUP).names))


def connect(kind: str, config: dict[str, Any], links: Links) -> Driver:
    """Build the driver for one target. Only kinds in use are ever imported."""
    driver = load(kind)
    try:
        settings = driver.Config.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Invalid(f"{kind} target: {field}: {first['msg']}", field=field) from None
    return driver(settings, links)


def describe(kind: str) -> str:
    """Return a description of a kind: the first line of its module's docstring."""
    return (sys.modules[load(kind).__module__].__doc__ or "").strip().partition("\n")[0]


@cache
def load(kind: str) -> type[Driver]:
    """Return the driver class of a kind. Raise Invalid, with what to install, if it is missing."""
    if kind not in kinds():
        raise Invalid(
            f"unknown kind {kind!r}; this server knows {', '.join(kinds())}", field="kind"
        )
    if kind in (plugins := entry_points(group=_PLUGIN_GROUP)).names:
        return plugins[kind].load()
    try:
        return import_module(f"{__name__}.{kind}").Driver
    except ModuleNotFoundError as missing:
        raise Invalid(
            f"{kind} needs {missing.name}; install it with {install_command(kind)}"
        ) from missing
