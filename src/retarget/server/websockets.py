"""WebSockets: opened and refused like any other request."""

import asyncio
import logging
from importlib import import_module
from typing import Any

from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from retarget.core.errors import RetargetError
from retarget.server.errors import problem_response

MAX_MESSAGE_BYTES = 1 << 17

_log = logging.getLogger(__name__)


def websocket_protocol(**arguments: Any) -> asyncio.Protocol:
    """Return a protocol for a connection that becomes a WebSocket.

    Most servers never need it, and to import it takes longer than most requests.
    """
    module = import_module("uvicorn.protocols.websockets.websockets_sansio_impl")
    return module.WebSocketsSansIOProtocol(**arguments)


async def deny(scope: Scope, receive: Receive, send: Send, error: Exception) -> None:
    """Answer a request for a WebSocket with an error, as to any other request."""
    if not isinstance(error, RetargetError):
        _log.error("WebSocket %s", scope["path"], exc_info=error)
    await WebSocket(scope, receive, send).send_denial_response(problem_response(error))
