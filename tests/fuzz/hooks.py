"""What schemathesis must know of the server it asks: names that are there, and what to spare."""

import json
import os
from random import Random
from typing import Any

import schemathesis  # pyright: ignore[reportMissingImports]  it has an environment of its own

_ELSEWHERE = ("ssh", "container")
_SHARE = float(os.environ["FUZZ_SHARE"])
_ATTEMPT = os.environ["FUZZ_ATTEMPT"]
_SPARED = set(json.loads(os.environ["FUZZ_SPARED"]))  # what the cases look at must stay there
_KNOWN = {
    "job": ["done", "held"],
    "name": ["kept", "local", "Default"],
    "version": ["1", "best"],
    "key": ["loss"],
    "path": ["outputs/kept.txt", "kept.txt"],
}


@schemathesis.hook  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Have some of what is only looked at be there, and leave that alone otherwise."""
    given: dict[str, str] = case.path_parameters or {}
    body: Any = case.body
    if hasattr(body, "keys") and body.get("kind") in _ELSEWHERE:
        body["kind"] = "nowhere"  # nothing is asked of other machines
    looks = case.method == "GET" or case.operation.definition.raw.get("operationId") == "set_alias"
    if case.path.startswith("/api/attempts/"):
        given["key"] = _ATTEMPT
    elif looks:
        chance = Random(repr(sorted(given.items())))
        given.update({name: chance.choice(_KNOWN[name]) for name in given if _takes(chance, name)})
    else:
        given.update({name: "spared" for name, value in given.items() if value in _SPARED})


def _takes(chance: Random, name: str) -> bool:
    return name in _KNOWN and chance.random() < _SHARE
