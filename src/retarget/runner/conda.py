"""Builds a conda environment with py-rattler, in a process of its own: it may crash at exit."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, NoReturn, cast

_UNREACHABLE = 3
_SIGNS = ("connect", "dns", "resolve host", "request", "timed out", "status client", "fetch")


def build(spec: str, prefix: str) -> NoReturn:
    """Solve and install what the file `spec` asks for into `prefix`."""
    with open(spec, encoding="utf-8") as file:
        wanted = json.load(file)
    code = 0
    try:
        asyncio.run(_build(wanted, prefix))
    except Exception as error:  # noqa: BLE001 - whatever rattler says is the user's answer
        text = " ".join(str(error).split())
        code = 1
        if _is_network(error, text):
            text = f"{', '.join(wanted['channels'])} cannot be reached: {text[:300]}"
            code = _UNREACHABLE
        _say(text)
    os._exit(code)  # its threads have been seen to crash a normal exit, after the work was done


async def _build(wanted: dict[str, Any], prefix: str) -> None:
    from rattler import Gateway, MatchSpec, VirtualPackage, install, solve
    from rattler.platform import Platform

    specs = list(wanted["conda"])
    if wanted["python"]:
        version = wanted["python"]
        specs.append(f"python {version}" if version[0] in "<>=!~" else f"python {version}.*")
    else:
        specs.append("python")  # an environment has an interpreter, whatever else is in it
    records = await solve(
        wanted["channels"],
        [MatchSpec(text) for text in specs],
        gateway=Gateway(),
        platforms=[cast("Any", str(Platform.current())), "noarch"],
        virtual_packages=VirtualPackage.detect(),
    )
    for record in sorted(records, key=lambda record: record.name.normalized):
        _say(f"  {record.name.normalized} {record.version} {record.build}")
    await install(records, target_prefix=prefix, show_progress=False)


def _is_network(error: Exception, text: str) -> bool:
    if type(error).__name__ == "SolverError":
        return False
    return any(sign in text.lower() for sign in _SIGNS)


def _say(text: str) -> None:
    print(text, flush=True)
