"""Authentication: a user's token opens the whole API, a runner's proof only its attempt."""

import hmac
from base64 import b64decode
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.requests import HTTPConnection
from starlette.types import Scope

from retarget.control.context import Context
from retarget.core.errors import Forbidden, Unauthorized
from retarget.core.tokens import is_script_token, is_token_for, key_of
from retarget.runner.proof import PROOF_HEADER
from retarget.server.state import State

PRINCIPAL = "retarget.principal"  # where a scope has its Principal

_bearer = HTTPBearer(auto_error=False, description="The token in RETARGET_HOME/token")
_proof = APIKeyHeader(
    name=PROOF_HEADER,
    auto_error=False,
    scheme_name="RunnerProof",
    description="The proof of a request by the runner's key, which is never sent",
)
_NO_TOKEN = "missing token; set RETARGET_TOKEN, or send Authorization: Bearer …"
NO_PROOF = "this request has no valid proof by the runner of this attempt"
PROVEN_KEY = "retarget.attempt"  # in a scope: the attempt whose runner has proven the request


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request: a user, or the attempt with this key."""

    attempt: str | None = None


_USER = Principal()


# Dependencies are `async` because FastAPI runs others in a thread, which costs more than they do.
async def get_state(request: Request) -> State:
    return request.app.state.retarget


async def get_context(request: Request) -> Context:
    return request.app.state.retarget.context


StateDep = Annotated[State, Depends(get_state)]
ContextDep = Annotated[Context, Depends(get_context)]


def authenticate_user(state: State, header: str) -> Principal:
    """Return the user that an Authorization header proves, or raise."""
    token = _bearer_token(header)
    if is_script_token(token):
        raise Forbidden("the token of a job cannot be used here")
    if not hmac.compare_digest(token.encode(), state.token.encode()):
        raise Unauthorized("this server does not accept that token; check RETARGET_TOKEN")
    return _USER


def authenticate_runner(scope: Scope, key: str) -> Principal:
    """Return the attempt with this key if its runner has proven the request, or raise."""
    if scope.get(PROVEN_KEY) != key:
        raise Unauthorized(NO_PROOF)
    return Principal(key)


def authenticate_mlflow(state: State, header: str) -> Principal:
    """Return the user or the attempt that an Authorization header of MLflow proves, or raise."""
    token = _mlflow_token(header)
    if is_script_token(token):
        key = key_of(token)
        if not is_token_for(state.context.settings.secret, token, key):
            raise Unauthorized("this server did not issue that token")
        return Principal(key)
    if not hmac.compare_digest(token.encode(), state.token.encode()):
        raise Unauthorized("this server does not accept that token; check MLFLOW_TRACKING_TOKEN")
    return _USER


def principal_of(request: HTTPConnection) -> Principal:
    """Return who makes the request, as the gate found, or raise Unauthorized."""
    principal = request.scope.get(PRINCIPAL)
    if not isinstance(principal, Principal):
        raise Unauthorized(_NO_TOKEN)
    return principal


# The gate has checked the token. `Security` describes that in /openapi.json, and a path that the
# gate does not know is not open.
async def require_user(request: Request, _: Annotated[object, Security(_bearer)]) -> None:
    if principal_of(request) != _USER:
        raise Forbidden("the token of a job cannot be used here")


async def require_runner(
    key: str, request: Request, _: Annotated[str | None, Security(_proof)]
) -> str:
    if principal_of(request).attempt != key:
        raise Unauthorized(NO_PROOF)
    return key


RunnerKey = Annotated[str, Depends(require_runner)]


def _bearer_token(header: str) -> str:
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthorized(_NO_TOKEN)
    return token.strip()


def _mlflow_token(header: str) -> str:
    """Return the bearer token, or the password of basic authentication: http://x:TOKEN@host."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return b64decode(value).decode().partition(":")[2]
        except ValueError:
            pass
    raise Unauthorized("missing token; set MLFLOW_TRACKING_TOKEN")
