"""One module per kind of compute: the module's name is the kind, its `Driver` runs it.

Those whose names begin with `_` are what several kinds stand on.
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

_PLUGINS = "retarget.drivers"


@cache
def kinds() -> tuple[str, ...]:
    """Name every kind this installation knows, without importing any of them."""
    own = {name for _, name, _ in iter_modules(__path__) if not name.startswith("_")}
    return tuple(sorted(own | entry_points(group=_PLUGINS).names))


def connect(kind: str, config: dict[str, Any]) -> Driver:
    """Build the driver for one target. Only the kinds in use are ever imported."""
    driver = load(kind)
    try:
        return driver(driver.Config.model_validate(config))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise Invalid(f"{kind} target: {field}: {first['msg']}", field=field) from None


def about(kind: str) -> str:
    """Return what a kind is, in the words of its module."""
    return (sys.modules[load(kind).__module__].__doc__ or "").strip().partition("\n")[0]


@cache
def load(kind: str) -> type[Driver]:
    """Return the driver class of a kind, or say what would have to be installed."""
    if kind not in kinds():
        raise Invalid(
            f"unknown kind {kind!r}; this server knows {', '.join(kinds())}", field="kind"
        )
    if kind in (plugins := entry_points(group=_PLUGINS)).names:
        return plugins[kind].load()
    try:
        return import_module(f"{__name__}.{kind}").Driver
    except ModuleNotFoundError as missing:
        raise Invalid(f"{kind} needs {missing.name}: pip install 'retarget[{kind}]'") from missing
