"""Builds a conda environment with py-rattler, in its own process, as it may crash at exit."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, NoReturn, cast

from retarget.runner.channels import unreachable_channel
from retarget.runner.locks import without_credentials

_UNREACHABLE = 3
_NETWORK_WORDS = (
    "connect",
    "dns",
    "resolve host",
    "request",
    "timed out",
    "status client",
    "fetch",
)


def build(path: str, prefix: str) -> NoReturn:
    """Solve and install the environment that the file at `path` describes into `prefix`."""
    with open(path, encoding="utf-8") as file:
        spec = json.load(file)
    code = 0
    try:
        packages = asyncio.run(_build(spec, prefix))
        with open(f"{path}.lock", "w", encoding="utf-8") as file:
            json.dump(packages, file)
    except Exception as error:  # noqa: BLE001 - the user sees rattler's own message
        message = " ".join(str(error).split())
        code = 1
        if _is_network_error(error, message, spec["channels"]):
            message = _unreachable(spec["channels"], message)
            code = _UNREACHABLE
        _print(message)
    os._exit(code)  # rattler's threads can crash a normal exit after the work is done


async def _build(spec: dict[str, Any], prefix: str) -> list[str]:
    """Install the packages and return them as a lock names them."""
    from rattler import Gateway, MatchSpec, VirtualPackage, install, solve
    from rattler.platform import Platform

    requirements = list(spec["conda"])
    if spec["python"]:
        version = spec["python"]
        exact = version[0] not in "<>=!~"
        requirements.append(f"python {version}.*" if exact else f"python {version}")
    else:
        requirements.append("python")  # every environment has an interpreter
    requirements += spec["pins"]
    records = await solve(
        spec["channels"],
        [MatchSpec(text) for text in requirements],
        gateway=Gateway(),
        platforms=[cast("Any", str(Platform.current())), "noarch"],
        virtual_packages=VirtualPackage.detect(),
    )
    for record in sorted(records, key=lambda record: record.name.normalized):
        _print(f"  {record.name.normalized} {record.version} {record.build}")
    await install(records, target_prefix=prefix, show_progress=False)
    return sorted(_locked(record) for record in records)


def _locked(record: Any) -> str:
    """Return `channel/subdir::name==version=build`."""
    channel = without_credentials(str(record.channel)).rstrip("/")
    channel = channel.rpartition("//conda.anaconda.org/")[2]
    name = record.name.normalized
    return f"{channel}/{record.subdir}::{name}=={record.version}={record.build}"


def _is_network_error(error: Exception, message: str, channels: list[str]) -> bool:
    if type(error).__name__ == "SolverError":
        return False
    has_word = any(word in message.lower() for word in _NETWORK_WORDS)
    return has_word or bool(unreachable_channel(channels))


def _unreachable(channels: list[str], message: str) -> str:
    """Return the first and the last of the causes in rattler's message."""
    causes = message.split(" Caused by: ")
    cause = ": ".join(causes[:1] + causes[1:][-1:])
    noun = "channel" if len(channels) == 1 else "channels"
    return f"{noun} {', '.join(channels)} cannot be reached: {cause[:300]}"


def _print(text: str) -> None:
    print(text, flush=True)
