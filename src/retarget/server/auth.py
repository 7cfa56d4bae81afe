"""Who may ask: the owner's token opens everything, an attempt's token its own door only."""

import hmac
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from retarget.control.parts import Parts
from retarget.core.errors import Forbidden, Unauthorized
from retarget.core.tokens import is_attempt_token, opens
from retarget.server.state import State

_bearer = HTTPBearer(auto_error=False, description="The token in RETARGET_HOME/token")
_NO_TOKEN = "a token is needed: set RETARGET_TOKEN, or send Authorization: Bearer …"
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


# All of these are `async`: what is not is run in a thread, which takes longer than they do.
async def state_of(request: Request) -> State:
    return request.app.state.retarget


async def parts_of(request: Request) -> Parts:
    return request.app.state.retarget.parts


StateDep = Annotated[State, Depends(state_of)]
PartsDep = Annotated[Parts, Depends(parts_of)]


def token_in(header: str | None) -> str:
    """Return the token of an Authorization header, or raise Unauthorized."""
    kind, _, token = (header or "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthorized(_NO_TOKEN)
    return token.strip()


def open_server(state: State, token: str) -> None:
    """Let the owner of the server in."""
    if is_attempt_token(token):
        raise Forbidden("a job's token does not open this")
    if not hmac.compare_digest(token.encode(), state.token.encode()):
        raise Unauthorized("that token is not this server's; see RETARGET_TOKEN")


def open_attempt(parts: Parts, token: str, key: str) -> None:
    """Let a runner in to its own attempt."""
    if not opens(parts.secret, token, key):
        raise Unauthorized("that token does not open this attempt")


async def owner(state: StateDep, credentials: Credentials) -> None:
    open_server(state, _token(credentials))


async def runner(key: str, parts: PartsDep, credentials: Credentials) -> str:
    open_attempt(parts, _token(credentials), key)
    return key


RunnerKey = Annotated[str, Depends(runner)]


def _token(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None:
        raise Unauthorized(_NO_TOKEN)
    return credentials.credentials
