"""Schemathesis hooks: use names that exist on the server, and protect what the cases need.

Requests to the API of an attempt are proven as its runner does.
"""

import json
import os
from importlib.machinery import SourceFileLoader
from random import Random
from typing import Any

import schemathesis  # pyright: ignore[reportMissingImports]  installed in its own environment

_REMOTE_KINDS = ("ssh", "container")
_SHARE = float(os.environ["FUZZ_SHARE"])
# the package itself is not installed there, and this module needs nothing else of it
proof = SourceFileLoader("proof", os.environ["FUZZ_PROOF"]).load_module()
_ATTEMPT = os.environ["FUZZ_ATTEMPT"]
_RUNNER_KEY = os.environ["FUZZ_RUNNER_KEY"]
_PROTECTED = set(json.loads(os.environ["FUZZ_PROTECTED"]))  # what the cases read
_EXISTING = {
    "job": ["done", "held"],
    "name": ["kept", "local", "Default"],
    "version": ["1", "best"],
    "key": ["loss"],
    "path": ["outputs/kept.txt", "kept.txt"],
}


@schemathesis.hook  # pyright: ignore[reportUnknownMemberType, reportUntypedFunctionDecorator]
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Replace some names in reading requests by existing ones, and protect those from others."""
    parameters: dict[str, str] = case.path_parameters or {}
    body: Any = case.body
    if hasattr(body, "keys") and body.get("kind") in _REMOTE_KINDS:
        body["kind"] = "nowhere"  # other machines are never contacted
    reads_only = (
        case.method == "GET" or case.operation.definition.raw.get("operationId") == "set_alias"
    )
    if case.path.startswith("/api/attempts/"):
        parameters["key"] = _ATTEMPT
        headers: dict[str, str] = case.headers or {}
        if proof.PROOF_HEADER.lower() in map(str.lower, headers):  # without it, to be refused
            kwargs["auth"] = _prove
    elif reads_only:
        rng = Random(repr(sorted(parameters.items())))
        parameters.update(
            {name: rng.choice(_EXISTING[name]) for name in parameters if _is_replaced(rng, name)}
        )
    else:
        parameters.update(
            {name: "protected" for name, value in parameters.items() if value in _PROTECTED}
        )


def _prove(request: Any) -> Any:
    """Add the proof to a request that is ready to be sent."""
    body = request.body or b""
    content: bytes = body.encode() if isinstance(body, str) else body
    nonce, digest = proof.new_nonce(), proof.digest_of(content)
    target = request.path_url.encode("latin-1", "replace").decode("latin-1")
    signature = proof.prove_request(_RUNNER_KEY, nonce, request.method, target, digest)
    request.headers.update(
        {proof.NONCE_HEADER: nonce, proof.DIGEST_HEADER: digest, proof.PROOF_HEADER: signature}
    )
    return request


def _is_replaced(rng: Random, name: str) -> bool:
    return name in _EXISTING and rng.random() < _SHARE
