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
Credentials = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


def state_of(request: Request) -> State:
    return request.app.state.retarget


def parts_of(request: Request) -> Parts:
    return state_of(request).parts


StateDep = Annotated[State, Depends(state_of)]
PartsDep = Annotated[Parts, Depends(parts_of)]


def owner(state: StateDep, credentials: Credentials) -> None:
    """Let the owner of the server in."""
    token = _token(credentials)
    if is_attempt_token(token):
        raise Forbidden("a job's token does not open this")
    if not hmac.compare_digest(token.encode(), state.token.encode()):
        raise Unauthorized("that token is not this server's; see RETARGET_TOKEN")


def runner(key: str, parts: PartsDep, credentials: Credentials) -> str:
    """Let a runner in to its own attempt."""
    if not opens(parts.secret, _token(credentials), key):
        raise Unauthorized("that token does not open this attempt")
    return key


RunnerKey = Annotated[str, Depends(runner)]


def _token(credentials: HTTPAuthorizationCredentials | None) -> str:
    if credentials is None:
        raise Unauthorized("a token is needed: Authorization: Bearer …")
    return credentials.credentials
