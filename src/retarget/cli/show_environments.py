"""Environments for people."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from retarget.cli.show import ago, pairs
from retarget.cli.tables import Cell, new_table
from retarget.cli.terminal import say, show
from retarget.core.units import show_duration, show_memory

if TYPE_CHECKING:
    from retarget.sdk.records import KnownEnvironment


def show_environments(environments: "Sequence[KnownEnvironment]") -> None:
    if not environments:
        say("no environments; `retarget run --env FILE` builds one when it is needed", "dim")
        return
    titles = ("NAME", "DIGEST", "PYTHON", "BUILT ON", "SIZE", "PACKAGES")
    rows = [_row(each) for each in environments]
    optional = ("BUILT ON", "PYTHON", "SIZE")
    show(new_table(titles, rows, flexible="PACKAGES", optional=optional))


def show_environment(each: "KnownEnvironment") -> None:
    rows: list[tuple[str, str | Text]] = [
        ("environment", each.name or ""),
        ("digest", each.digest or ""),
        ("kind", each.kind),
        ("image", each.image or ""),
        ("dockerfile", each.dockerfile or ""),
        ("context", (each.context or "")[:12]),
        ("python", each.python or ""),
        ("channels", ", ".join(each.channels)),
        ("conda", "\n".join(each.conda)),
        ("pip", "\n".join(each.pip)),
    ]
    if each.created is not None:
        rows.append(("created", ago(time.time() - each.created)))
    for built in each.built:
        size, length = show_memory(built["size"]), show_duration(built["seconds"])
        age = ago(time.time() - built["built"])
        rows.append((f"on {built['target']}", f"{size}, built {age} in {length} ({built['how']})"))
    show(pairs(rows))


def _row(each: "KnownEnvironment") -> list[Cell]:
    size = max((built["size"] for built in each.built), default=0)
    return [
        each.name or "",
        (each.digest or "")[:12],
        each.python or "",
        ", ".join(built["target"] for built in each.built),
        show_memory(size) if size else "",
        _packages(each),
    ]


def _packages(each: "KnownEnvironment") -> str:
    container = each.image or each.dockerfile
    return ", ".join([*([container] if container else []), *each.conda, *each.pip])
